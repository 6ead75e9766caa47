// Faults of the processor in a kernel (a stack that overflows, an address that is none) as reports of the emulator.
#pragma once

#include <csignal>

namespace tessera::simt::emulated {

/// While it lives, faults of the emulated thread that runs end its launch with a report. Faults elsewhere go to who
/// handled them before. Does nothing under the address sanitizer, which reports faults itself.
class FaultReports {
  public:
    FaultReports();
    ~FaultReports();
    FaultReports(const FaultReports&) = delete;
    FaultReports& operator=(const FaultReports&) = delete;

  private:
    struct sigaction before_ {};
    stack_t stack_before_{};
};

}  // namespace tessera::simt::emulated
