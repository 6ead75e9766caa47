#include "test/simt/memory_checks.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "test/simt/block.h"
#include "test/simt/device_memory.h"
#include "test/simt/races.h"

namespace tessera::simt::emulated {

namespace {

/// The parts of the program and its libraries that nothing can write: constants and code.
const std::vector<std::pair<std::uintptr_t, std::uintptr_t>>& read_only_ranges() {
    static const auto ranges = [] {
        std::vector<std::pair<std::uintptr_t, std::uintptr_t>> found;
        dl_iterate_phdr(
            [](dl_phdr_info* image, std::size_t, void* to) {
                for (int i = 0; i < image->dlpi_phnum; ++i) {
                    const ElfW(Phdr)& part = image->dlpi_phdr[i];
                    if ((part.p_type == PT_LOAD && (part.p_flags & PF_W) == 0) || part.p_type == PT_GNU_RELRO) {
                        const std::uintptr_t begin = image->dlpi_addr + part.p_vaddr;
                        static_cast<decltype(found)*>(to)->push_back({begin, begin + part.p_memsz});
                    }
                }
                return 0;
            },
            &found);
        return found;
    }();
    return ranges;
}

bool is_constant(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return std::any_of(read_only_ranges().begin(), read_only_ranges().end(),
                       [&](const auto& range) { return at >= range.first && at < range.second; });
}

bool is_parameter(const Launch& launch, const void* address) {
    const auto* begin = launch.parameters.get();
    return address >= begin && address < begin + launch.call.parameter_bytes;
}

[[noreturn]] void report(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site,
                         const std::string& why) {
    block().fail(thread, fmt::format("{} of {} bytes at {}{}{}", access == Access::read ? "read" : "write", bytes,
                                     describe_address(address), why, site.describe()));
}

/// "train+0x1234", as addr2line understands it.
std::string describe_instruction(const void* instruction) {
    Dl_info image{};
    if (dladdr(instruction, &image) == 0) {
        return fmt::format("{}", instruction);
    }
    const auto offset = static_cast<const char*>(instruction) - static_cast<const char*>(image.dli_fbase);
    return fmt::format("{}+{:#x}", image.dli_fname, offset);
}

}  // namespace

std::string Site::describe() const {
    if (value_ == 0) {
        return "";
    }
    // NOLINTBEGIN(performance-no-int-to-ptr): pointers are packed with other bits
    if ((value_ & kWord) != 0) {
        const auto file = value_ & ((std::uint64_t{1} << kAddressBits) - 1);
        const auto line = static_cast<unsigned>((value_ & ~kWord) >> kAddressBits);
        return fmt::format(" (at {})", emulated::describe(Place{reinterpret_cast<const char*>(file), line}));
    }
    return fmt::format(" (at {})", describe_instruction(reinterpret_cast<const void*>(value_)));
    // NOLINTEND(performance-no-int-to-ptr)
}

std::string describe_address(const void* address) {
    const Block& here = block();
    if (device_memory().contains(address)) {
        return device_memory().describe(address);
    }
    if (block().shared().contains(address)) {
        return block().shared().describe(address);
    }
    if (current_thread != nullptr && is_parameter(here.launch(), address)) {
        return "the parameters of the kernel, which it cannot write";
    }
    if (const int owner = here.stacks().owner(address); owner >= 0) {
        return fmt::format("a local variable of thread {}", owner);
    }
    if (is_constant(address)) {
        return fmt::format("{}, a constant of the program", address);
    }
    return fmt::format("{}, which is no memory of the device (a pointer of the host?)", address);
}

void check_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site) {
    const auto* at = static_cast<const std::byte*>(address);
    if (static_cast<std::size_t>(at - thread.fiber.low) < thread.fiber.bytes) {
        return;
    }
    Block& here = block();
    if (here.shared().contains(address)) {
        check_shared_access(thread, address, bytes, access, site);
    } else if (device_memory().contains(address)) {
        check_device_access(thread, address, bytes, access, site);
    } else if (access == Access::write || !(is_parameter(here.launch(), address) || is_constant(address))) {
        report(thread, address, bytes, access, site, "");
    }
}

void check_alignment(Thread& thread, const void* address, std::int64_t alignment, Site site) {
    if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(alignment) != 0) {
        block().fail(thread, fmt::format("misaligned: {} at {} is no multiple of {}{}", address,
                                         describe_address(address), alignment, site.describe()));
    }
}

void check_shared_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site) {
    Block& here = block();
    if (!here.shared().contains(address)) {
        report(thread, address, bytes, access, site, ", where shared memory is needed");
    }
    if (!here.shared().holds(address, bytes)) {
        report(thread, address, bytes, access, site, ": out of bounds");
    }
    if (here.checked()) {
        races().access_shared(thread, here.shared().offset(address), bytes, access, site);
    }
}

void check_device_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site) {
    if (!device_memory().contains(address)) {
        report(thread, address, bytes, access, site, ", where device memory is needed");
    }
    if (!device_memory().holds(address, bytes)) {
        report(thread, address, bytes, access, site, ": out of bounds");
    }
    if (block().checked()) {
        races().access_device(thread, device_memory().offset(address), bytes, access, site);
    }
}

}  // namespace tessera::simt::emulated
