#include "io/safetensors.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "test/io/expect_error.h"
#include "test/io/raw_safetensors.h"
#include "test/io/temporary_directory.h"

using namespace tessera;

namespace {

const std::string kTwoFloats = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

/// A header with one tensor of 4 data bytes and one member exchanged.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

struct Row {
    const char* about;
    std::string file;
    std::string message;
};

std::vector<Row> malformed() {
    const std::string four(4, '\0');
    const std::string eight(8, '\0');
    const std::string two = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],)";
    std::string deep = R"({"a":)";
    deep += std::string(100'000, '[');
    return {
        {"empty file", "", "too few"},
        {"seven bytes", "1234567", "too few"},
        {"only a length", raw_safetensors("", "", 0), "does not begin with '{'"},
        {"a length beyond the file", raw_safetensors(kTwoFloats, eight, 5000), "has only"},
        {"a huge length", raw_safetensors(kTwoFloats, eight, 1ull << 62), "at most 100000000"},
        {"the largest length", raw_safetensors(kTwoFloats, eight, ~0ull), "at most 100000000"},
        {"the length that wraps", raw_safetensors(kTwoFloats, eight, ~0ull - 7), "at most 100000000"},
        {"a length one too small", raw_safetensors(kTwoFloats, eight, kTwoFloats.size() - 1), "not valid JSON"},
        {"a pickle", std::string("\x80\x02}q\x00.PK\x03\x04 torch", 16), "at most 100000000"},
        {"a header that is a list", raw_safetensors("[1,2]"), "does not begin with '{'"},
        {"space before the header", raw_safetensors(" " + kTwoFloats, eight), "does not begin with '{'"},
        {"broken JSON", raw_safetensors(R"({"a":)"), "not valid JSON at byte"},
        {"text behind the JSON", raw_safetensors(kTwoFloats + "x", eight), "not valid JSON"},
        {"a name that is not UTF-8", raw_safetensors("{\"\xff\xfe\":1}"), "not valid JSON"},
        {"deep JSON", raw_safetensors(deep), "deeper than 64"},
        {"a tensor twice", raw_safetensors(two.substr(0, 53) + R"(,"a":1})", four), "is there twice"},
        {"dtype twice", raw_safetensors(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "is there twice"},
        {"an entry that is a number", raw_safetensors(R"({"a":1})"), "not an object"},
        {"an unknown key", raw_safetensors(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", four),
         "unknown key \"x\""},
        {"no dtype", raw_safetensors(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four), "its dtype"},
        {"no shape", raw_safetensors(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", four), "its shape"},
        {"no offsets", raw_safetensors(R"({"a":{"dtype":"F32","shape":[1]}})", four), "its data_offsets"},
        {"dtype that is a number", raw_safetensors(entry("32", "[1]", "[0,4]"), four), "dtype 32"},
        {"a negative size", raw_safetensors(entry("\"F32\"", "[-1]", "[0,4]"), four), "shape [-1]"},
        {"a fraction as size", raw_safetensors(entry("\"F32\"", "[1.0]", "[0,4]"), four), "shape [1.0]"},
        {"a string as size", raw_safetensors(entry("\"F32\"", "[\"1\"]", "[0,4]"), four), "shape [\"1\"]"},
        {"a shape that is a number", raw_safetensors(entry("\"F32\"", "1", "[0,4]"), four), "shape 1"},
        {"a size above 2^63", raw_safetensors(entry("\"F32\"", "[9223372036854775808]", "[0,4]"), four), "shape"},
        {"sizes whose product wraps to 1",
         raw_safetensors(entry("\"F32\"", "[4294967297,4294967295,4294967297,4294967295]", "[0,4]"), four),
         "too large"},
        {"sizes that overflow before a 0", raw_safetensors(entry("\"F32\"", "[4294967296,4294967296,0]", "[0,0]")),
         "too large"},
        {"bytes that wrap", raw_safetensors(entry("\"F64\"", "[2305843009213693952]", "[0,0]")), "too large"},
        {"a shape larger than its bytes", raw_safetensors(entry("\"F32\"", "[2]", "[0,4]"), four), "needs 8 bytes"},
        {"a shape smaller than its bytes", raw_safetensors(entry("\"F16\"", "[1]", "[0,4]"), four), "needs 2 bytes"},
        {"half a byte", raw_safetensors(entry("\"F4\"", "[1]", "[0,1]"), "x"), "needs 1 bytes"},
        {"one offset", raw_safetensors(entry("\"F32\"", "[1]", "[0]"), four), "data_offsets [0]"},
        {"three offsets", raw_safetensors(entry("\"F32\"", "[1]", "[0,4,8]"), four), "data_offsets [0,4,8]"},
        {"offsets the wrong way", raw_safetensors(entry("\"F32\"", "[1]", "[4,0]"), four), "data_offsets [4,0]"},
        {"a negative offset", raw_safetensors(entry("\"F32\"", "[1]", "[-4,0]"), four), "data_offsets [-4,0]"},
        {"offsets beyond the end", raw_safetensors(entry("\"F32\"", "[1]", "[0,4]"), "abc"), "truncated?"},
        {"offsets far beyond the end",
         raw_safetensors(entry("\"F32\"", "[1]", "[9223372036854775800,9223372036854775804]"), four), "truncated?"},
        {"overlap", raw_safetensors(two + R"("data_offsets":[2,6]}})", std::string(6, '\0')), "overlap"},
        {"the same bytes twice", raw_safetensors(two + R"("data_offsets":[0,4]}})", four), "overlap"},
        {"a hole", raw_safetensors(two + R"("data_offsets":[8,12]}})", std::string(12, '\0')),
         "4 bytes before tensor \"b\""},
        {"a hole at the beginning", raw_safetensors(entry("\"F32\"", "[1]", "[4,8]"), eight),
         "4 bytes before tensor \"a\""},
        {"bytes behind the last tensor", raw_safetensors(entry("\"F32\"", "[1]", "[0,4]"), four + "xyz"),
         "3 bytes behind"},
        {"data without a tensor", raw_safetensors("{}", "xyz"), "3 bytes behind"},
        {"metadata that is a list", raw_safetensors(R"({"__metadata__":[]})"), "__metadata__ is []"},
        {"metadata that is a number", raw_safetensors(R"({"__metadata__":{"format":1}})"), "\"format\" is 1"},
    };
}

}  // namespace

TEST_CASE("malformed files are refused by name and reason") {
    const TemporaryDirectory directory;
    const std::vector<Row> rows = malformed();
    CHECK(rows.size() >= 40);
    for (const Row& row : rows) {
        INFO(row.about);
        const std::string path = directory.write("bad.safetensors", row.file);
        expect_error(ExitCode::bad_data, {path, row.message}, [&path] { SafetensorsFile{path}; });
    }
    expect_error(ExitCode::bad_data, {"a directory"}, [&directory] { SafetensorsFile{directory.path()}; });
    expect_error(ExitCode::missing_input, {"absent"}, [&directory] { SafetensorsFile{directory.path("absent")}; });
}

TEST_CASE("every prefix of a file is refused") {
    const TemporaryDirectory directory;
    const std::string whole = raw_safetensors(kTwoFloats, bytes_of<float>({1, 2}));
    CHECK_NOTHROW(SafetensorsFile(directory.write("whole", whole)));
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const std::string path = directory.write("part", whole.substr(0, size));
        CHECK_THROWS_AS(SafetensorsFile(path), Error);
    }
}

TEST_CASE("every dtype is read as every other, whole and in part") {
    const TemporaryDirectory directory;
    // Values that all four types hold exactly: 0x3fc0 is 1.5 in bf16, 0x3e00 in f16.
    const std::string header =
        R"({"__metadata__":{"format":"pt"},)"
        R"("f64":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},"f32":{"dtype":"F32","shape":[3,1],"data_offsets":[24,36]},)"
        R"("bf16":{"dtype":"BF16","shape":[1,3],"data_offsets":[36,42]},"f16":{"dtype":"F16","shape":[3],"data_offsets":[42,48]},)"
        R"("none":{"dtype":"F32","shape":[2,0],"data_offsets":[48,48]},"i8":{"dtype":"I8","shape":[],"data_offsets":[48,49]}}   )";
    const std::string data = bytes_of<double>({1.5, -2, 0.25}) + bytes_of<float>({1.5F, -2, 0.25F}) +
                             bytes_of<std::uint16_t>({0x3fc0, 0xc000, 0x3e80}) +
                             bytes_of<std::uint16_t>({0x3e00, 0xc000, 0x3400}) + "x";
    const SafetensorsFile file(directory.write("all", raw_safetensors(header, data)));
    CHECK(file.tensors().size() == 6);
    CHECK(file.tensors()[1].name == "f32");
    CHECK(file.tensors()[1].shape == std::vector<std::int64_t>{3, 1});
    for (const char* name : {"f64", "f32", "bf16", "f16"}) {
        INFO(name);
        const TensorInfo* tensor = file.find(name);
        REQUIRE(tensor != nullptr);
        CHECK(tensor->elements == 3);
        std::vector<double> wide(3);
        std::vector<float> single(3);
        std::vector<std::uint16_t> upper(3);
        std::vector<std::uint16_t> half(3);
        file.read(*tensor, 0, 3, DType::f64, wide.data());
        file.read(*tensor, 0, 3, DType::f32, single.data());
        file.read(*tensor, 0, 3, DType::bf16, upper.data());
        file.read(*tensor, 0, 3, DType::f16, half.data());
        CHECK(wide == std::vector<double>{1.5, -2, 0.25});
        CHECK(single == std::vector<float>{1.5F, -2, 0.25F});
        CHECK(upper == std::vector<std::uint16_t>{0x3fc0, 0xc000, 0x3e80});
        CHECK(half == std::vector<std::uint16_t>{0x3e00, 0xc000, 0x3400});
        file.read(*tensor, 2, 1, DType::f32, single.data());
        CHECK(single[0] == 0.25F);
        expect_error(ExitCode::internal, {name}, [&] { file.read(*tensor, 2, 2, DType::f32, single.data()); });
        expect_error(ExitCode::internal, {name}, [&] { file.read(*tensor, -1, 1, DType::f32, single.data()); });
    }
    float value = 0;
    file.read(*file.find("none"), 0, 0, DType::f64, &value);
    expect_error(ExitCode::bad_data, {"i8", "I8"}, [&] { file.read(*file.find("i8"), 0, 1, DType::f32, &value); });
    CHECK(file.find("absent") == nullptr);
}

TEST_CASE("an unknown dtype is a reason to refuse only when its tensor is read") {
    const TemporaryDirectory directory;
    const SafetensorsFile file(directory.write("new", raw_safetensors(entry("\"F7\"", "[9]", "[0,4]"), "abcd")));
    float value = 0;
    expect_error(ExitCode::bad_data, {"\"a\"", "F7"}, [&] { file.read(file.tensors()[0], 0, 1, DType::f32, &value); });
}

TEST_CASE("long tensors are converted in pieces without a seam") {
    const TemporaryDirectory directory;
    const std::size_t count = 300'001;
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>(i) * 0.5F;
    }
    const std::string header = R"({"a":{"dtype":"F32","shape":[300001],"data_offsets":[0,1200004]}})";
    const SafetensorsFile file(directory.write("long", raw_safetensors(header, bytes_of(values))));
    std::vector<double> read(count - 5);
    file.read(file.tensors()[0], 5, static_cast<std::int64_t>(count) - 5, DType::f64, read.data());
    for (std::size_t i = 0; i < read.size(); ++i) {
        REQUIRE(read[i] == static_cast<double>(i + 5) * 0.5);
    }
}

TEST_CASE("a written file has the bytes that the format says") {
    const TemporaryDirectory directory;
    SafetensorsWriter writer(directory.path("new"),
                             {{"b", {2}, DType::bf16}, {"e", {0, 4}, DType::f32}, {"a", {1, 1}, DType::f32}});
    const std::vector<double> values = {1.5, -2};
    writer.write("b", DType::f64, values.data(), 1);
    writer.write("b", DType::f64, values.data() + 1, 1);
    const float last = 0.25F;
    writer.write("a", DType::f32, &last, 1);
    writer.finish();
    std::string header = R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[4,8],"dtype":"F32","shape":[1,1]},)"
                         R"("b":{"data_offsets":[0,4],"dtype":"BF16","shape":[2]},)"
                         R"("e":{"data_offsets":[4,4],"dtype":"F32","shape":[0,4]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    CHECK(directory.read("new") ==
          raw_safetensors(header, bytes_of<std::uint16_t>({0x3fc0, 0xc000}) + bytes_of<float>({0.25F})));
    CHECK(SafetensorsFile(directory.path("new")).find("b")->shape == std::vector<std::int64_t>{2});
}

TEST_CASE("a file that is not finished does not stay") {
    const TemporaryDirectory directory;
    const std::vector<float> values(8);
    {
        SafetensorsWriter writer(directory.path("new"), {{"a", {2}}, {"b", {3}}});
        writer.write("a", DType::f32, values.data(), 2);
        expect_error(ExitCode::internal, {"b"}, [&] { writer.finish(); });
        expect_error(ExitCode::internal, {"a"}, [&] { writer.write("a", DType::f32, values.data(), 1); });
        expect_error(ExitCode::internal, {"b"}, [&] { writer.write("b", DType::f32, values.data(), 4); });
        CHECK(directory.exists("new"));
    }
    CHECK(!directory.exists("new"));
    expect_error(ExitCode::internal, {"twice"}, [&] {
        SafetensorsWriter(directory.path("x"), {{"a", {1}}, {"a", {1}}});
    });
    expect_error(ExitCode::cannot_write, {"no/new"}, [&] {
        SafetensorsWriter(directory.path("no/new"), {{"a", {1}}});
    });
}

TEST_CASE("a value that float16 cannot hold is refused, an infinity is not") {
    const TemporaryDirectory directory;
    SafetensorsWriter writer(directory.path("new"), {{"a", {4}, DType::f16}});
    const std::vector<float> fine = {65519.0F, -std::numeric_limits<float>::infinity(), NAN};
    writer.write("a", DType::f32, fine.data(), 3);
    const float large = -65520.0F;
    expect_error(ExitCode::numerical, {"\"a\"", "float16"}, [&] { writer.write("a", DType::f32, &large, 1); });
}
