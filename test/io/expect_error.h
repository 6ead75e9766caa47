// Checks that something throws our Error with a code and with words in its message.
#pragma once

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>
#include <utility>

#include "core/base/error.h"

template <typename Call>
void expect_error(tessera::ExitCode code, std::initializer_list<std::string> parts, Call&& call) {
    try {
        std::forward<Call>(call)();
    } catch (const tessera::Error& error) {
        INFO(error.what());
        CHECK(error.code() == code);
        for (const std::string& part : parts) {
            CHECK_THAT(error.what(), Catch::Contains(part));
        }
        return;
    }
    std::string expected;
    for (const std::string& part : parts) {
        expected += " " + part;
    }
    FAIL_CHECK("no error; expected one about" << expected);
}
