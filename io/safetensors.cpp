#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/json.h"

namespace tessera {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::int64_t kMaxHeader = 100'000'000;  // the format's own bound
constexpr std::int64_t kChunkElements = 1 << 17;  // converted at a time

struct DTypeBits {
    const char* name;
    std::int64_t bits;
};

constexpr std::array kDTypeBits = {
    DTypeBits{"BOOL", 8},    DTypeBits{"U8", 8},      DTypeBits{"I8", 8},          DTypeBits{"F8_E4M3", 8},
    DTypeBits{"F8_E5M2", 8}, DTypeBits{"F8_E8M0", 8}, DTypeBits{"F8_E4M3FNUZ", 8}, DTypeBits{"F8_E5M2FNUZ", 8},
    DTypeBits{"I16", 16},    DTypeBits{"U16", 16},    DTypeBits{"F16", 16},        DTypeBits{"BF16", 16},
    DTypeBits{"I32", 32},    DTypeBits{"U32", 32},    DTypeBits{"F32", 32},        DTypeBits{"I64", 64},
    DTypeBits{"U64", 64},    DTypeBits{"F64", 64},    DTypeBits{"C64", 64},        DTypeBits{"F4", 4},
    DTypeBits{"F6_E2M3", 6}, DTypeBits{"F6_E3M2", 6},
};

const char* safetensors_name(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return "F64";
        case DType::f32:
            return "F32";
        case DType::bf16:
            return "BF16";
        case DType::f16:
            return "F16";
    }
    fail(ExitCode::internal, "a dtype without a safetensors name");
}

/// A header entry in the making; `where` is "<path>: tensor "<name>"".
class EntryReader {
  public:
    EntryReader(const json& entry, std::string where) : entry_(entry), where_(std::move(where)) {
        if (!entry.is_object()) {
            fail(ExitCode::bad_data, "{}: its entry is {}, not an object", where_, shown(entry));
        }
        for (const auto& [key, value] : entry.items()) {
            if (key != "dtype" && key != "shape" && key != "data_offsets") {
                fail(ExitCode::bad_data, "{}: unknown key {} in the header", where_, in_quotes(key));
            }
        }
    }

    [[nodiscard]] std::string dtype() const {
        const json& value = member("dtype");
        if (!value.is_string()) {
            fail(ExitCode::bad_data, "{}: dtype {} is not a string", where_, shown(value));
        }
        return value.get<std::string>();
    }

    /// Non-negative whole numbers.
    [[nodiscard]] std::vector<std::int64_t> numbers(const char* key) const {
        const json& value = member(key);
        if (!value.is_array()) {
            fail(ExitCode::bad_data, "{}: {} {} is not a list", where_, key, shown(value));
        }
        std::vector<std::int64_t> result;
        for (const json& number : value) {
            if (!number.is_number_unsigned() || !std::in_range<std::int64_t>(number.get<std::uint64_t>())) {
                fail(ExitCode::bad_data, "{}: {} {} is not a list of whole numbers from 0 to 2^63 - 1", where_, key,
                     shown(value));
            }
            result.push_back(number.get<std::int64_t>());
        }
        return result;
    }

    [[nodiscard]] const std::string& where() const { return where_; }

  private:
    [[nodiscard]] const json& member(const char* key) const {
        const auto found = entry_.find(key);
        if (found == entry_.end()) {
            fail(ExitCode::bad_data, "{}: the header does not say its {}", where_, key);
        }
        return *found;
    }

    const json& entry_;
    std::string where_;
};

void check_metadata(const json& metadata, const std::string& path) {
    if (!metadata.is_object()) {
        fail(ExitCode::bad_data, "{}: __metadata__ is {}, not an object", path, shown(metadata));
    }
    for (const auto& [key, value] : metadata.items()) {
        if (!value.is_string()) {
            fail(ExitCode::bad_data, "{}: __metadata__ entry {} is {}, not a string", path, in_quotes(key),
                 shown(value));
        }
    }
}

TensorInfo read_entry(const std::string& name, const json& entry, const std::string& path, std::int64_t data_start,
                      std::int64_t file_size) {
    const EntryReader reader(entry, fmt::format("{}: tensor {}", path, in_quotes(name)));
    TensorInfo tensor;
    tensor.name = name;
    tensor.dtype_name = reader.dtype();
    tensor.shape = reader.numbers("shape");
    const std::vector<std::int64_t> offsets = reader.numbers("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        fail(ExitCode::bad_data, "{}: data_offsets {} is not a begin and an end", reader.where(),
             shown(entry["data_offsets"]));
    }
    if (offsets[1] > file_size - data_start) {
        fail(ExitCode::bad_data, "{}: its bytes end at {} of the data, but the file has {} bytes of data: truncated?",
             reader.where(), offsets[1], file_size - data_start);
    }
    tensor.offset = data_start + offsets[0];
    tensor.bytes = offsets[1] - offsets[0];
    tensor.elements = 1;
    for (const std::int64_t size : tensor.shape) {
        tensor.elements = checked_mul(tensor.elements, size, reader.where().c_str());
    }
    for (const DTypeBits& dtype : kDTypeBits) {
        if (dtype.name != tensor.dtype_name) {
            continue;
        }
        const std::int64_t bits = checked_mul(tensor.elements, dtype.bits, reader.where().c_str());
        if (bits % 8 != 0 || bits / 8 != tensor.bytes) {
            fail(ExitCode::bad_data, "{}: shape {} of {} needs {} bytes, the header gives it {}", reader.where(),
                 shown(entry["shape"]), dtype.name, ceil_div(bits, 8), tensor.bytes);
        }
    }
    return tensor;
}

void check_coverage(const std::vector<TensorInfo>& tensors, const std::string& path, std::int64_t data_start,
                    std::int64_t file_size) {
    std::int64_t end = data_start;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].offset < end) {
            fail(ExitCode::bad_data, "{}: tensors {} and {} overlap", path, in_quotes(tensors[i - 1].name),
                 in_quotes(tensors[i].name));
        }
        if (tensors[i].offset > end) {
            fail(ExitCode::bad_data, "{}: {} bytes before tensor {} belong to no tensor", path, tensors[i].offset - end,
                 in_quotes(tensors[i].name));
        }
        end = tensors[i].offset + tensors[i].bytes;
    }
    if (end != file_size) {
        fail(ExitCode::bad_data, "{}: {} bytes behind the last tensor belong to no tensor", path, file_size - end);
    }
}

json read_header(const ReadOnlyFile& file, std::int64_t& data_start) {
    std::uint64_t length = 0;
    if (file.size() < 8) {
        fail(ExitCode::bad_data, "{}: {} bytes are too few for a safetensors file", file.path(), file.size());
    }
    file.read(0, &length, 8);
    if (length > kMaxHeader) {
        fail(ExitCode::bad_data,
             "{}: says that its header has {} bytes; at most {} are allowed. Is it a safetensors file?", file.path(),
             length, kMaxHeader);
    }
    data_start = 8 + static_cast<std::int64_t>(length);
    if (data_start > file.size()) {
        fail(ExitCode::bad_data, "{}: says that its header has {} bytes, but the file has only {}: truncated?",
             file.path(), length, file.size());
    }
    std::string text(length, '\0');
    file.read(8, text.data(), static_cast<std::int64_t>(length));
    if (!text.starts_with('{')) {
        fail(ExitCode::bad_data, "{}: the header does not begin with '{{': not a safetensors file", file.path());
    }
    return parse_json(text, file.path(), 8);
}

/// Values that float16 would turn into infinities.
bool overflows_float16(DType from, const void* values, std::int64_t count) {
    std::array<double, 1024> wide{};
    for (std::int64_t first = 0; first < count; first += std::ssize(wide)) {
        const std::int64_t now = std::min<std::int64_t>(std::ssize(wide), count - first);
        convert(DType::f64, wide.data(), from, static_cast<const char*>(values) + first * size_of(from), now);
        for (std::int64_t i = 0; i < now; ++i) {
            const double size = std::fabs(wide[static_cast<std::size_t>(i)]);
            if (size >= 65520.0 && std::isfinite(size)) {
                return true;
            }
        }
    }
    return false;
}

std::int64_t element_count(const SafetensorsWriter::Tensor& tensor) {
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.shape) {
        count = checked_mul(count, size, tensor.name.c_str());
    }
    return count;
}

}  // namespace

std::optional<DType> dtype_from_safetensors(const std::string& name) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        if (name == safetensors_name(dtype)) {
            return dtype;
        }
    }
    return std::nullopt;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    std::int64_t data_start = 0;
    const json header = read_header(file_, data_start);
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") {
            check_metadata(entry, path);
        } else {
            tensors_.push_back(read_entry(name, entry, path, data_start, file_.size()));
        }
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    check_coverage(tensors_, path, data_start, file_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        index_.emplace(tensors_[i].name, i);
    }
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t first, std::int64_t count, DType dtype,
                           void* to) const {
    if (first < 0 || count < 0 || first > tensor.elements - count) {
        fail(ExitCode::internal, "{}: elements {} to {} of tensor {}, which has {}", path(), first, first + count,
             in_quotes(tensor.name), tensor.elements);
    }
    const std::optional<DType> from = dtype_from_safetensors(tensor.dtype_name);
    if (!from) {
        fail(ExitCode::bad_data, "{}: tensor {} has dtype {}; only F64, F32, BF16 and F16 can be read", path(),
             in_quotes(tensor.name), in_quotes(tensor.dtype_name));
    }
    const std::int64_t start = tensor.offset + first * size_of(*from);
    if (*from == dtype) {
        file_.read(start, to, count * size_of(*from));
        return;
    }
    std::vector<char> chunk(static_cast<std::size_t>(std::min(count, kChunkElements) * size_of(*from)));
    for (std::int64_t done = 0; done < count; done += kChunkElements) {
        const std::int64_t now = std::min(kChunkElements, count - done);
        file_.read(start + done * size_of(*from), chunk.data(), now * size_of(*from));
        convert(dtype, static_cast<char*>(to) + done * size_of(dtype), *from, chunk.data(), now);
    }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
    json header = json::object();
    if (!metadata.empty()) {
        header["__metadata__"] = metadata;
    }
    std::int64_t begin = 0;
    for (const Tensor& tensor : tensors_) {
        const std::int64_t bytes = checked_mul(element_count(tensor), size_of(tensor.dtype), tensor.name.c_str());
        const std::int64_t end = checked_add(begin, bytes, tensor.name.c_str());
        json entry = {{"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}};
        entry["data_offsets"] = {begin, end};
        if (tensor.name == "__metadata__" || !header.emplace(tensor.name, std::move(entry)).second) {
            fail(ExitCode::internal, "{}: tensor {} twice", path, in_quotes(tensor.name));
        }
        begin = end;
    }
    std::string text = header.dump();
    text.resize(static_cast<std::size_t>(round_up(narrow<std::int64_t>(text.size()), 8)), ' ');
    const auto length = static_cast<std::uint64_t>(text.size());
    file_.write(&length, 8);
    file_.write(text);
    skip_complete();
}

void SafetensorsWriter::skip_complete() {
    while (current_ < tensors_.size() && written_ == element_count(tensors_[current_])) {
        ++current_;
        written_ = 0;
    }
}

void SafetensorsWriter::write(const std::string& name, DType from, const void* values, std::int64_t count) {
    if (count == 0) {
        return;
    }
    if (current_ >= tensors_.size() || tensors_[current_].name != name ||
        count > element_count(tensors_[current_]) - written_) {
        fail(ExitCode::internal, "{}: {} elements of {} were given out of turn", file_.path(), count, in_quotes(name));
    }
    const DType dtype = tensors_[current_].dtype;
    if (dtype == DType::f16 && from != DType::f16 && overflows_float16(from, values, count)) {
        fail(ExitCode::numerical,
             "{}: tensor {} has a value beyond 65504, which float16 cannot hold: write bf16 or fp32", file_.path(),
             in_quotes(name));
    }
    if (from == dtype) {
        file_.write(values, count * size_of(dtype));
    } else {
        std::vector<char> chunk(static_cast<std::size_t>(std::min(count, kChunkElements) * size_of(dtype)));
        for (std::int64_t done = 0; done < count; done += kChunkElements) {
            const std::int64_t now = std::min(kChunkElements, count - done);
            convert(dtype, chunk.data(), from, static_cast<const char*>(values) + done * size_of(from), now);
            file_.write(chunk.data(), now * size_of(dtype));
        }
    }
    written_ += count;
    skip_complete();
}

void SafetensorsWriter::finish() {
    if (current_ < tensors_.size()) {
        fail(ExitCode::internal, "{}: finished with {} of {} elements of {} written", file_.path(), written_,
             element_count(tensors_[current_]), in_quotes(tensors_[current_].name));
    }
    file_.close();
}

}  // namespace tessera
