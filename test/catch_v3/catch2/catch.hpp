// The header of Catch2 version 2, for version 3, which has it in parts and other names for some of what is in them.
#pragma once

#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>

namespace Catch {
namespace Matchers {

inline StringContainsMatcher Contains(const std::string& text) {
    return ContainsSubstring(text);
}

}  // namespace Matchers

using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::StartsWith;

struct TestEventListenerBase : EventListenerBase {
    using EventListenerBase::EventListenerBase;
};

}  // namespace Catch

using Catch::Approx;
