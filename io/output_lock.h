// Two runs must not write to one output directory at once.
#pragma once

#include <cstdint>
#include <string>

#include "io/durable_file.h"

namespace tessera {

enum class LockMethod : std::uint8_t {
    automatic,   // the system's lock on <directory>/.lock; where the file system has none, as below
    owner_file,  // <directory>/.lock.owner, created by one process only and judged by whether that still lives
};

/// Holds a directory for this process until its destruction. The system's lock ends with its owner, however that ends;
/// an owner file is taken over when its process is gone from this host (a process that merely has its number, or one
/// before a reboot, does not count). For rank 0 alone.
class OutputLock {
  public:
    /// `directory` exists. Throws cannot_write, naming job, host, process and start of the other run, where one holds
    /// it.
    OutputLock(const std::string& directory, const std::string& job_name, LockMethod method = LockMethod::automatic);
    OutputLock(OutputLock&&) = delete;
    ~OutputLock();

  private:
    void claim_owner_file(const std::string& directory, const std::string& owner);

    FileDescriptor file_;
    std::string owner_file_;  // empty where the system's lock serves
};

}  // namespace tessera
