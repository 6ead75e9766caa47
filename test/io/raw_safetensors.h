// Safetensors files put together by hand, independent of the code under test.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

/// The bytes of a file with this header and these data; `length` is what the file says of its header.
inline std::string raw_safetensors(const std::string& header, const std::string& data, std::uint64_t length) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    return file + header + data;
}

inline std::string raw_safetensors(const std::string& header, const std::string& data = "") {
    return raw_safetensors(header, data, header.size());
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
