#include "apps/text_layout.h"

#include <catch2/catch.hpp>

using namespace tessera;

TEST_CASE("Printable text keeps UTF-8 and escapes what is none or would steer a terminal") {
    CHECK(printable("plain\ntext") == "plain\ntext");
    CHECK(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") == "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    CHECK(printable("\x1b[2J\r\x7f") == "\\x1b[2J\\x0d\\x7f");
    CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");                    // a control character of two bytes
    CHECK(printable("a\xe2\x82") == "a\\xe2\\x82");                  // cut
    CHECK(printable("\x80\xff") == "\\x80\\xff");                    // no first bytes
    CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");                    // overlong '/'
    CHECK(printable("\xe0\x80\xaf") == "\\xe0\\x80\\xaf");           // the same in three bytes
    CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // half of a surrogate pair
    CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
    CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
    CHECK(printable("").empty());
}

TEST_CASE("Lines are broken at spaces, and only there") {
    using Lines = std::vector<std::string>;
    CHECK(wrap("one two three", 7) == Lines{"one two", "three"});
    CHECK(wrap("one two three", 6) == Lines{"one", "two", "three"});
    CHECK(wrap("incomprehensible word", 5) == Lines{"incomprehensible", "word"});
    CHECK(wrap("a\n\nb c", 3) == Lines{"a", "", "b c"});
    CHECK(wrap("  deep", 6) == Lines{"  deep"});
    CHECK(wrap("", 5) == Lines{""});
    // Width counts characters, not bytes: each of these words has three.
    CHECK(wrap("\xc3\xa9\xc3\xa9\xc3\xa9 \xc3\xa9\xc3\xa9\xc3\xa9", 7).size() == 1);
}
