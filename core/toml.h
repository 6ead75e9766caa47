// toml++ with its assertions as exceptions. With NDEBUG the library tells the compiler to assume what it asserts, and
// some malformed files (an endless row of brackets) break that: undefined behaviour on input. Include it only here.
#pragma once

#include <stdexcept>

namespace tessera {

/// A file so malformed that the parser's own expectations do not hold.
class TomlAssertion : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

[[noreturn]] inline void fail_toml_assertion() {
    throw TomlAssertion("malformed beyond description");
}

}  // namespace tessera

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ASSERT(holds) (static_cast<bool>(holds) ? static_cast<void>(0) : ::tessera::fail_toml_assertion())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")
