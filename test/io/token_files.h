// Makes data files for tests, byte by byte or with HDF5's own C API.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "test/io/expect_error.h"
#include "test/io/temporary_directory.h"

namespace tessera::test {

template <typename T>
void put(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// What a token file of ours is made of; each part can be made wrong.
struct TokenFile {
    std::vector<std::int64_t> tokens = {};
    std::vector<std::int64_t> offsets = {};  // empty: one document
    std::optional<std::vector<std::int64_t>> mask = std::nullopt;
    hid_t token_type = H5T_STD_U16LE;
    hid_t offset_type = H5T_STD_I64LE;
    hid_t mask_type = H5T_STD_U8LE;
    std::string format = "tessera.tokens";
    int version = 1;
    hsize_t chunk = 0;  // 0: contiguous
    bool compressed = false;
};

inline void put_dataset(hid_t file, const char* name, hid_t type, const std::vector<std::int64_t>& values,
                        hsize_t chunk = 0, bool compressed = false) {
    const hsize_t size = values.size();
    const hid_t space = H5Screate_simple(1, &size, nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk > 0) {
        H5Pset_chunk(properties, 1, &chunk);
    }
    if (compressed) {
        H5Pset_shuffle(properties);
        H5Pset_deflate(properties, 4);
    }
    const hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
}

inline void put_string(hid_t file, const char* name, const std::string& text) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, text.size() + 1);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, text.c_str());
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

inline void put_integer(hid_t file, const char* name, int value) {
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT, &value);
    H5Aclose(attribute);
    H5Sclose(space);
}

inline std::vector<std::int64_t> count_up(std::int64_t count, std::int64_t first = 0) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return values;
}

inline void write_tokens(const std::string& path, const TokenFile& content) {
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const auto size = static_cast<std::int64_t>(content.tokens.size());
    put_dataset(file, "tokens", content.token_type, content.tokens, content.chunk, content.compressed);
    put_dataset(file, "offsets", content.offset_type,
                content.offsets.empty() ? std::vector<std::int64_t>{0, size} : content.offsets);
    if (content.mask) {
        put_dataset(file, "loss_mask", content.mask_type, *content.mask, content.chunk, content.compressed);
    }
    put_string(file, "format", content.format);
    put_integer(file, "format_version", content.version);
    H5Fclose(file);
}

}  // namespace tessera::test
