// Safetensors files: named tensors behind a JSON header. Tensors are read and written in pieces.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/dtype.h"
#include "io/durable_file.h"
#include "io/file.h"

namespace tessera {

struct TensorInfo {
    std::string name;
    std::string dtype_name;  // as in the file: "F32", "BF16", ...
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  // of the first byte, from the start of the file
    std::int64_t bytes = 0;
    std::int64_t elements = 0;
};

/// The DType of a safetensors dtype name; nullopt for those whose values we cannot read.
[[nodiscard]] std::optional<DType> dtype_from_safetensors(const std::string& name);

/// A file open for reading; reads from several threads do not disturb each other.
class SafetensorsFile {
  public:
    /// Reads and checks the header: its length, names, shapes, and that the tensors' bytes fill the file without
    /// overlap, hole or rest. Throws missing_input, or bad_data with file, tensor and reason.
    explicit SafetensorsFile(const std::string& path);

    [[nodiscard]] const std::string& path() const { return file_.path(); }
    /// In the order of their bytes.
    [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
    /// nullptr where there is none of that name.
    [[nodiscard]] const TensorInfo* find(const std::string& name) const;

    /// Elements [first, first + count) in row-major order, converted to `dtype`. Throws bad_data where the tensor's
    /// dtype cannot be read.
    void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count, DType dtype, void* to) const;

  private:
    ReadOnlyFile file_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, std::size_t> index_;
};

/// A new file, written tensor after tensor in the order of the list. Without finish() the destructor removes it.
class SafetensorsWriter {
  public:
    struct Tensor {
        std::string name;
        std::vector<std::int64_t> shape;
        DType dtype = DType::f32;
    };

    SafetensorsWriter(const std::string& path, std::vector<Tensor> tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

    /// The next `count` elements of tensor `name`, which must be the one whose turn it is. Throws numerical where a
    /// finite value is beyond what float16 holds.
    void write(const std::string& name, DType from, const void* values, std::int64_t count);

    /// Checks that everything was written, flushes to the disk and closes.
    void finish();

  private:
    void skip_complete();

    DurableFile file_;
    std::vector<Tensor> tensors_;
    std::size_t current_ = 0;
    std::int64_t written_ = 0;  // elements of the current tensor
};

}  // namespace tessera
