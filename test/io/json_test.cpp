#include "io/json.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "test/io/expect_error.h"

using namespace tessera;
using nlohmann::json;

namespace {

void refuse(ExitCode code, std::initializer_list<std::string> parts, const std::string& text, std::size_t offset = 0) {
    INFO(text.substr(0, 100));
    expect_error(code, parts, [&] { static_cast<void>(parse_json(text, "x.json", offset)); });
}

}  // namespace

TEST_CASE("JSON is read as it is") {
    const json value = parse_json(R"( {"a": [1, -2, 2.5, null, true, "\u00e9"], "b": {"a": {}}, "": []} )", "x.json");
    CHECK(value["a"] == json::array({1, -2, 2.5, nullptr, true, "\xc3\xa9"}));
    CHECK(value["b"]["a"] == json::object());
    CHECK(value[""] == json::array());
    CHECK(value["a"][0].is_number_unsigned());
    CHECK(parse_json("18446744073709551615", "x.json").get<std::uint64_t>() == 18446744073709551615u);
    CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "x.json").is_array());
}

TEST_CASE("a key twice is refused by name and place, but not in two objects") {
    CHECK_NOTHROW(parse_json(R"([{"key": 1}, {"key": 2}])", "x.json"));
    // The second "key" of the outer object ends at byte 34.
    refuse(ExitCode::bad_data, {"x.json", "\"key\"", "byte 34", "twice"}, R"({"key": [], "b": {"key": 2}, "key": 1})");
}

TEST_CASE("what is not JSON is refused with file and byte") {
    const std::initializer_list<const char*> rows = {
        "",   "{",     "[1, 2", "{\"a\" 1}",   "{\"a\": 1,}", "{'a': 1}", "NaN",    "[1] [2]", "\"\xff\"",
        "01", "1e999", "\"a",   "{\"a\": 1}x", "// c\n1",     "\"\x01\"", "[1,,2]", "{1: 2}",  "tru"};
    for (const char* text : rows) {
        refuse(ExitCode::bad_data, {"x.json", "not valid JSON at byte"}, text);
    }
    refuse(ExitCode::bad_data, {"x.json", "byte 108"}, "[1, 2, x]", 100);
}

TEST_CASE("deep nesting is refused before it costs anything") {
    refuse(ExitCode::bad_data, {"x.json", "deeper than 64", "byte 65"}, std::string(10'000'000, '['));
    std::string deep;
    for (int i = 0; i < 65; ++i) {
        deep += "{\"a\":";
    }
    refuse(ExitCode::bad_data, {"x.json", "deeper than 64"}, deep);
}

TEST_CASE("text from files is shown on one line and never at length") {
    CHECK(in_quotes("a\nb\x1b") == "\"a\\x0ab\\x1b\"");
    CHECK(in_quotes(std::string(500, 'x')).size() == 120 + 3 + 2);
    std::string accents = "x";
    for (int i = 0; i < 100; ++i) {
        accents += "\xc3\xa9";
    }
    CHECK(in_quotes(accents) == fmt::format("\"{}...\"", accents.substr(0, 119)));
    CHECK(shown(json{{"a", {1, 2}}}) == R"({"a":[1,2]})");
}
