// What of our Errors a test wants to see: code and message.
#pragma once

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tessera::test {

/// The code and message of the Error that a call throws; code ok where it throws none.
struct Caught {
    ExitCode code = ExitCode::ok;
    std::string message;
    [[nodiscard]] bool says(std::string_view part) const { return message.find(part) != std::string::npos; }
};

template <typename Call>
Caught caught(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    }
    return {};
}

}  // namespace tessera::test

/// Checks that a call throws our Error with a code and with words in its message.
template <typename Call>
void expect_error(tessera::ExitCode code, std::initializer_list<std::string> parts, Call&& call) {
    const tessera::test::Caught error = tessera::test::caught(call);
    INFO(error.message);
    CHECK(error.code == code);
    for (const std::string& part : parts) {
        CHECK_THAT(error.message, Catch::Contains(part));
    }
}
