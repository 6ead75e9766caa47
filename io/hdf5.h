// HDF5 files: an owner for each handle of the C API, every call checked, its message carried into our Error.
//
// The library keeps its state in the process: use it from one thread at a time. Its own printing of errors is switched
// off when the first file is opened. Errors are bad_data for what a file holds, missing_input where there is none,
// cannot_write for everything that writes. Sizes that a damaged file promises never lead to memory that it does not
// fill; but a damaged heap of variable-length strings can crash HDF5 1.10 itself, as it does under h5py.
#pragma once

#include <H5Ipublic.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::hdf5 {

/// Owns one handle of the C API.
class Handle {
  public:
    using Close = herr_t (*)(hid_t);

    Handle() = default;
    Handle(hid_t id, Close close_with) : id_(id), close_(close_with) {}
    Handle(Handle&& other) noexcept;
    Handle& operator=(Handle&& other) noexcept;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle();

    [[nodiscard]] hid_t get() const { return id_; }
    /// Closes now; negative where that went wrong.
    [[nodiscard]] herr_t close();

  private:
    hid_t id_ = H5I_INVALID_HID;
    Close close_ = nullptr;
};

/// Element types of the files of this project; little-endian in the file.
enum class Type : std::uint8_t { u8, u16, u32, i64, f32, f64 };

/// A dataset of one dimension. It keeps its file open, so it may outlive the File.
class Dataset {
  public:
    /// Elements.
    [[nodiscard]] std::int64_t size() const { return size_; }
    [[nodiscard]] Type type() const { return type_; }
    /// "file.h5: /name", for messages.
    [[nodiscard]] const std::string& place() const { return place_; }

    /// Copies elements [first, first + count); the range must lie within the dataset. T is converted from the file's
    /// type where it can hold every value of it (so u8, u16 and u32 may be read as int64_t), else it is an error.
    template <typename T>
    void read(std::int64_t first, std::int64_t count, T* to) const;
    /// The byte of the file at which the elements begin, where they lie there one after another, as in memory; nullopt
    /// where they do not (or there are none). Whoever writes there does it when the file is closed.
    [[nodiscard]] std::optional<std::int64_t> offset() const;

  private:
    friend class File;
    Dataset(Handle handle, std::string place, std::int64_t size, Type type)
        : handle_(std::move(handle)), place_(std::move(place)), size_(size), type_(type) {}
    [[nodiscard]] Handle select(std::int64_t first, std::int64_t count) const;

    Handle handle_;
    std::string place_;
    std::int64_t size_ = 0;
    Type type_ = Type::u8;
};

class File {
  public:
    /// For reading. Works on file systems without locks.
    [[nodiscard]] static File open(const std::string& path);
    /// For reading and writing what is there, as a resumed writer does.
    [[nodiscard]] static File open_to_write(const std::string& path);
    /// A new file, or an old one emptied, in the format that HDF5 1.8 and later read.
    [[nodiscard]] static File create(const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }

    [[nodiscard]] bool has(const std::string& name) const;
    /// The dataset `name` of one dimension. Refused: other ranks and types, links out of this file, external or virtual
    /// storage, and storage that holds fewer elements than the header promises. So size() elements really exist, but
    /// what a filter packs may promise more than can be unpacked.
    [[nodiscard]] Dataset dataset(const std::string& name) const;
    /// The same; refused unless its type is one of `wanted`.
    [[nodiscard]] Dataset dataset(const std::string& name, std::initializer_list<Type> wanted) const;
    /// A new dataset with contiguous storage that exists at once; nothing is written there, so a new file reads as 0.
    [[nodiscard]] Dataset create_dataset(const std::string& name, Type type, std::int64_t size) const;

    /// Attributes of the file's root; nullopt where there is none. One of another type or with several values is an
    /// error that names it.
    [[nodiscard]] std::optional<std::int64_t> integer_attribute(const std::string& name) const;
    [[nodiscard]] std::optional<double> real_attribute(const std::string& name) const;
    [[nodiscard]] std::optional<std::string> string_attribute(const std::string& name) const;
    /// Sets an attribute of the root. Of one that is there only the value changes, in place, and it must have that
    /// type. Strings are UTF-8 and may not hold NUL.
    void set_attribute(const std::string& name, std::int64_t value) const;
    void set_attribute(const std::string& name, double value) const;
    void set_attribute(const std::string& name, const std::string& value) const;

    /// Refuses a file whose attribute `format` is not `name` or whose `format_version` is not `version`.
    void require_format(std::string_view name, std::int64_t version) const;

    /// Closes the file, and says where not everything could be written. Its datasets must be gone; nothing may follow.
    void close();

  private:
    File(Handle handle, std::string path) : handle_(std::move(handle)), path_(std::move(path)) {}
    [[nodiscard]] Handle open_attribute(const std::string& name, const char* kind) const;
    [[nodiscard]] bool read_number(const std::string& name, const char* kind, bool real, hid_t memory_type,
                                   void* to) const;
    void write_attribute(const std::string& name, hid_t file_type, hid_t memory_type, const void* value) const;

    Handle handle_;
    std::string path_;
};

}  // namespace tessera::hdf5
