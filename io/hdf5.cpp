#include "io/hdf5.h"

#include <hdf5.h>

#include <array>
#include <cstring>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/file.h"

namespace tessera::hdf5 {

namespace {

/// A chunk is decompressed into memory whole: a header must not make that more than this.
constexpr std::int64_t kMostChunkBytes = std::int64_t{256} << 20;
constexpr std::int64_t kDefaultCacheBytes = 1 << 20;  // of HDF5
constexpr std::int64_t kMostStringBytes = std::int64_t{16} << 20;

struct TypeRow {
    Type type;
    hid_t file;
    hid_t memory;
    const char* name;
};

/// The ids of the types are read from the library at run time, so this cannot be a constant.
std::array<TypeRow, 6> type_table() {
    return {{{Type::u8, H5T_STD_U8LE, H5T_NATIVE_UINT8, "uint8"},
             {Type::u16, H5T_STD_U16LE, H5T_NATIVE_UINT16, "uint16"},
             {Type::u32, H5T_STD_U32LE, H5T_NATIVE_UINT32, "uint32"},
             {Type::i64, H5T_STD_I64LE, H5T_NATIVE_INT64, "int64"},
             {Type::f32, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, "float32"},
             {Type::f64, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, "float64"}}};
}

TypeRow row_of(Type type) {
    return type_table()[static_cast<std::size_t>(type)];
}

template <typename T>
constexpr Type type_of = Type::u8;
template <>
constexpr Type type_of<std::uint16_t> = Type::u16;
template <>
constexpr Type type_of<std::uint32_t> = Type::u32;
template <>
constexpr Type type_of<std::int64_t> = Type::i64;
template <>
constexpr Type type_of<float> = Type::f32;
template <>
constexpr Type type_of<double> = Type::f64;

herr_t keep_first(unsigned position, const H5E_error2_t* error, void* to) {
    if (position == 0 && error->desc != nullptr) {
        *static_cast<std::string*>(to) = error->desc;
    }
    return 0;
}

/// The innermost message of the library about the call that just failed.
std::string last_message() {
    std::string message = "no reason given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &message);
    H5Eclear2(H5E_DEFAULT);
    return message;
}

/// Throws where a call of the library reports failure by a negative result; returns the result otherwise.
template <typename Result>
Result check(Result result, const std::string& place, const char* what, ExitCode code = ExitCode::bad_data) {
    if (result < 0) {
        fail(code, "{}: {} (HDF5: {})", place, what, last_message());
    }
    return result;
}

/// How files are opened: without locks, which many file systems of clusters do not have. Two runs in one directory are
/// kept apart by other means.
Handle access_properties() {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    Handle access(check(H5Pcreate(H5P_FILE_ACCESS), "HDF5", "no property list", ExitCode::internal), H5Pclose);
    H5Pset_file_locking(access.get(), false, true);  // refused where HDF5_USE_FILE_LOCKING decides: let it decide
    return access;
}

/// In the format of HDF5 1.8: newer versions of the file's head hold a mark "open for writing" that a killed process
/// leaves behind.
Handle writing_properties() {
    Handle access = access_properties();
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18), "HDF5", "no such version",
          ExitCode::internal);
    return access;
}

std::int64_t file_size(hid_t file, const std::string& path) {
    hsize_t size = 0;
    check(H5Fget_filesize(file, &size), path, "the size of the file cannot be found");
    return narrow<std::int64_t>(size);
}

/// Refuses chunks that were never written; returns the bytes of one.
std::int64_t refuse_chunks(const std::string& place, hid_t dataset, hid_t space, hid_t properties,
                           std::int64_t elements, std::int64_t element_bytes) {
    hsize_t chunk = 0;
    check(H5Pget_chunk(properties, 1, &chunk), place, "the size of its chunks cannot be read");
    if (chunk == 0 || chunk > static_cast<hsize_t>(kMostChunkBytes / element_bytes)) {
        fail(ExitCode::bad_data, "{}: chunks of {} elements are not supported; use chunks of at most {} MiB", place,
             chunk, kMostChunkBytes >> 20);
    }
    hsize_t chunks = 0;
    check(H5Dget_num_chunks(dataset, space, &chunks), place, "its chunks cannot be counted");
    const std::int64_t needed = ceil_div(elements, static_cast<std::int64_t>(chunk));
    if (chunks < static_cast<hsize_t>(needed)) {
        fail(ExitCode::bad_data, "{}: {} elements need {} chunks but only {} were written; the file is incomplete",
             place, elements, needed, chunks);
    }
    return static_cast<std::int64_t>(chunk) * element_bytes;
}

/// Refuses storage outside the file and storage that does not hold all elements. Returns the bytes of a chunk, 0
/// without chunks.
std::int64_t refuse_storage(const std::string& place, hid_t dataset, hid_t space, std::int64_t elements,
                            std::int64_t element_bytes, std::int64_t bytes_of_file) {
    const Handle properties(check(H5Dget_create_plist(dataset), place, "cannot be examined"), H5Pclose);
    const H5D_layout_t layout = H5Pget_layout(properties.get());
    if (layout == H5D_VIRTUAL || check(H5Pget_external_count(properties.get()), place, "cannot be examined") > 0) {
        fail(ExitCode::bad_data, "{} keeps its values in other files, which is not supported; copy them into this one",
             place);
    }
    const bool filtered = check(H5Pget_nfilters(properties.get()), place, "its filters cannot be read") > 0;
    const auto stored = static_cast<std::int64_t>(H5Dget_storage_size(dataset));
    const std::int64_t needed = checked_mul(elements, element_bytes, place.c_str());
    std::int64_t room = bytes_of_file;
    if (layout == H5D_CONTIGUOUS && stored > 0) {
        const haddr_t address = H5Dget_offset(dataset);  // the largest value where it has none
        room = address > static_cast<haddr_t>(bytes_of_file) ? 0 : bytes_of_file - static_cast<std::int64_t>(address);
    }
    if (stored < 0 || stored > room || (!filtered && stored < needed)) {
        fail(ExitCode::bad_data,
             "{} claims {} values, which take {} bytes, but {} are stored in a file of {}; the file is incomplete",
             place, elements, needed, stored, bytes_of_file);
    }
    return layout == H5D_CHUNKED && elements > 0
               ? refuse_chunks(place, dataset, space, properties.get(), elements, element_bytes)
               : 0;
}

/// The type of a dataset's elements in words, for a message.
std::string describe_type(hid_t type) {
    for (const TypeRow& row : type_table()) {
        if (H5Tequal(type, row.file) > 0) {
            return row.name;
        }
    }
    const char* class_name = "values of another type";
    switch (H5Tget_class(type)) {
        case H5T_INTEGER:
            class_name = H5Tget_sign(type) == H5T_SGN_NONE ? "unsigned integers" : "integers";
            break;
        case H5T_FLOAT:
            class_name = "floating-point numbers";
            break;
        case H5T_STRING:
            class_name = "strings";
            break;
        case H5T_ENUM:
            class_name = "enumerated values (booleans)";
            break;
        case H5T_COMPOUND:
            class_name = "compounds";
            break;
        default:
            break;
    }
    return fmt::format("{}{} of {} bytes", H5Tget_order(type) == H5T_ORDER_BE ? "big-endian " : "", class_name,
                       H5Tget_size(type));
}

Type file_type(const std::string& place, hid_t dataset, std::initializer_list<Type> wanted) {
    const Handle type(check(H5Dget_type(dataset), place, "its type cannot be read"), H5Tclose);
    std::string names;
    for (const Type one : wanted) {
        if (H5Tequal(type.get(), row_of(one).file) > 0) {
            return one;
        }
        names += std::string(names.empty() ? "" : " or ") + row_of(one).name;
    }
    fail(ExitCode::bad_data, "{} should hold {} (little-endian), not {}", place, names, describe_type(type.get()));
}

/// Elements of a dataspace of one dimension.
std::int64_t length_of(const std::string& place, hid_t space) {
    const int rank = check(H5Sget_simple_extent_ndims(space), place, "its shape cannot be read");
    if (rank != 1 || H5Sget_simple_extent_type(space) != H5S_SIMPLE) {
        fail(ExitCode::bad_data, "{} has {} dimensions instead of one dimension", place, rank);
    }
    hsize_t size = 0;
    check(H5Sget_simple_extent_dims(space, &size, nullptr), place, "its shape cannot be read");
    if (size > static_cast<hsize_t>(INT64_MAX)) {
        fail(ExitCode::bad_data, "{}: claims {} elements", place, size);
    }
    return static_cast<std::int64_t>(size);
}

Handle new_string_type(std::size_t size) {
    Handle type(check(H5Tcopy(H5T_C_S1), "HDF5", "no string type", ExitCode::internal), H5Tclose);
    check(H5Tset_size(type.get(), size), "HDF5", "no string type", ExitCode::internal);
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "HDF5", "no string type", ExitCode::internal);
    return type;
}

}  // namespace

Handle::Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}

Handle& Handle::operator=(Handle&& other) noexcept {
    // The old handle leaves with `moved`, at once.
    Handle moved(std::move(other));
    std::swap(id_, moved.id_);
    std::swap(close_, moved.close_);
    return *this;
}

Handle::~Handle() {
    (void)close();
}

herr_t Handle::close() {
    return id_ >= 0 ? close_(std::exchange(id_, H5I_INVALID_HID)) : 0;
}

// ------------------------------------------------------------------------------------------------ datasets

Handle Dataset::select(std::int64_t first, std::int64_t count) const {
    if (first < 0 || count < 0 || first > size_ || count > size_ - first) {
        fail(ExitCode::internal, "{}: elements {} to {} + {} of {} were asked for", place_, first, first, count, size_);
    }
    Handle space(check(H5Dget_space(handle_.get()), place_, "its shape cannot be read"), H5Sclose);
    const auto start = static_cast<hsize_t>(first);
    const auto length = static_cast<hsize_t>(count);
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr), place_,
          "a range cannot be selected");
    return space;
}

template <typename T>
void Dataset::read(std::int64_t first, std::int64_t count, T* to) const {
    const bool widens = type_of<T> == Type::i64 && type_ < Type::i64;
    if (type_ != type_of<T> && !widens) {
        fail(ExitCode::bad_data, "{}: holds {} instead of {}", place_, row_of(type_).name, row_of(type_of<T>).name);
    }
    if (count == 0) {
        return;
    }
    const Handle file_space = select(first, count);
    const auto length = static_cast<hsize_t>(count);
    const Handle memory_space(check(H5Screate_simple(1, &length, nullptr), place_, "no dataspace"), H5Sclose);
    check(H5Dread(handle_.get(), row_of(type_of<T>).memory, memory_space.get(), file_space.get(), H5P_DEFAULT, to),
          place_, "cannot be read");
}

std::optional<std::int64_t> Dataset::offset() const {
    const haddr_t at = H5Dget_offset(handle_.get());
    return at == HADDR_UNDEF ? std::nullopt : std::optional(narrow<std::int64_t>(at));
}

template void Dataset::read(std::int64_t, std::int64_t, std::uint8_t*) const;
template void Dataset::read(std::int64_t, std::int64_t, std::uint16_t*) const;
template void Dataset::read(std::int64_t, std::int64_t, std::uint32_t*) const;
template void Dataset::read(std::int64_t, std::int64_t, std::int64_t*) const;
template void Dataset::read(std::int64_t, std::int64_t, float*) const;
template void Dataset::read(std::int64_t, std::int64_t, double*) const;

// --------------------------------------------------------------------------------------------------- files

File File::open(const std::string& path) {
    (void)ReadOnlyFile(path);  // says what HDF5 says less well: no such file, a directory
    const Handle access = access_properties();
    return {
        Handle(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), path, "not a readable HDF5 file"), H5Fclose),
        path};
}

File File::open_to_write(const std::string& path) {
    const Handle access = writing_properties();
    return {Handle(check(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), path, "cannot be opened for writing",
                         ExitCode::cannot_write),
                   H5Fclose),
            path};
}

File File::create(const std::string& path) {
    const Handle access = writing_properties();
    const Handle creation(check(H5Pcreate(H5P_FILE_CREATE), "HDF5", "no property list", ExitCode::internal), H5Pclose);
    // All attributes in one object header: to change one is then a single small write.
    check(H5Pset_attr_phase_change(creation.get(), 64, 0), "HDF5", "no property", ExitCode::internal);
    return {Handle(check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), path,
                         "cannot be created", ExitCode::cannot_write),
                   H5Fclose),
            path};
}

bool File::has(const std::string& name) const {
    return check(H5Lexists(handle_.get(), name.c_str(), H5P_DEFAULT), path_, "its contents cannot be read") > 0;
}

Dataset File::dataset(const std::string& name) const {
    return dataset(name, {Type::u8, Type::u16, Type::u32, Type::i64, Type::f32, Type::f64});
}

Dataset File::dataset(const std::string& name, std::initializer_list<Type> wanted) const {
    const std::string place = path_ + ": /" + name;
    if (!has(name)) {
        fail(ExitCode::bad_data, "{} is missing", place);
    }
    H5L_info_t link;
    check(H5Lget_info(handle_.get(), name.c_str(), &link, H5P_DEFAULT), place, "cannot be examined");
    if (link.type != H5L_TYPE_HARD) {
        fail(ExitCode::bad_data, "{} is a link to something else, which is not supported", place);
    }
    Handle dataset(check(H5Dopen2(handle_.get(), name.c_str(), H5P_DEFAULT), place, "is not a readable dataset"),
                   H5Dclose);
    const Handle space(check(H5Dget_space(dataset.get()), place, "its shape cannot be read"), H5Sclose);
    const std::int64_t size = length_of(place, space.get());
    const Type type = file_type(place, dataset.get(), wanted);
    const std::int64_t chunk_bytes =
        refuse_storage(place, dataset.get(), space.get(), size,
                       static_cast<std::int64_t>(H5Tget_size(row_of(type).memory)), file_size(handle_.get(), path_));
    if (2 * chunk_bytes >
        kDefaultCacheBytes) {  // else neighbouring ranges would decompress their chunk again and again
        const Handle access(check(H5Pcreate(H5P_DATASET_ACCESS), place, "no property list", ExitCode::internal),
                            H5Pclose);
        check(H5Pset_chunk_cache(access.get(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT,
                                 static_cast<std::size_t>(2 * chunk_bytes), H5D_CHUNK_CACHE_W0_DEFAULT),
              place, "no cache", ExitCode::internal);
        dataset = {};  // the cache of a dataset that is open stays as it is
        dataset = Handle(check(H5Dopen2(handle_.get(), name.c_str(), access.get()), place, "cannot be opened again"),
                         H5Dclose);
    }
    return {std::move(dataset), place, size, type};
}

Dataset File::create_dataset(const std::string& name, Type type, std::int64_t size) const {
    const std::string place = path_ + ": /" + name;
    const auto length = static_cast<hsize_t>(size);
    const Handle space(check(H5Screate_simple(1, &length, nullptr), place, "no dataspace", ExitCode::internal),
                       H5Sclose);
    const Handle properties(check(H5Pcreate(H5P_DATASET_CREATE), place, "no property list", ExitCode::internal),
                            H5Pclose);
    check(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY), place, "no property", ExitCode::internal);
    check(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER), place, "no property", ExitCode::internal);
    Handle dataset(check(H5Dcreate2(handle_.get(), name.c_str(), row_of(type).file, space.get(), H5P_DEFAULT,
                                    properties.get(), H5P_DEFAULT),
                         place, "cannot be created", ExitCode::cannot_write),
                   H5Dclose);
    return {std::move(dataset), place, size, type};
}

void File::close() {
    check(handle_.close(), path_, "cannot be written", ExitCode::cannot_write);
}

// ---------------------------------------------------------------------------------------------- attributes

Handle File::open_attribute(const std::string& name, const char* kind) const {
    const std::string place = path_ + ": attribute " + name;
    if (check(H5Aexists(handle_.get(), name.c_str()), path_, "its attributes cannot be read") == 0) {
        return {};
    }
    Handle attribute(check(H5Aopen(handle_.get(), name.c_str(), H5P_DEFAULT), place, "cannot be read"), H5Aclose);
    const Handle space(check(H5Aget_space(attribute.get()), place, "cannot be read"), H5Sclose);
    if (H5Sget_simple_extent_npoints(space.get()) != 1) {
        fail(ExitCode::bad_data, "{} is not {}", place, kind);
    }
    return attribute;
}

/// Reads a number of one of the two classes; false where there is no such attribute.
bool File::read_number(const std::string& name, const char* kind, bool real, hid_t memory_type, void* to) const {
    const Handle attribute = open_attribute(name, kind);
    if (attribute.get() < 0) {
        return false;
    }
    const std::string place = path_ + ": attribute " + name;
    const Handle type(check(H5Aget_type(attribute.get()), place, "cannot be read"), H5Tclose);
    const H5T_class_t found = H5Tget_class(type.get());
    if (found != H5T_INTEGER && !(real && found == H5T_FLOAT)) {
        fail(ExitCode::bad_data, "{} is not {}", place, kind);
    }
    check(H5Aread(attribute.get(), memory_type, to), place, "cannot be read");
    return true;
}

std::optional<std::int64_t> File::integer_attribute(const std::string& name) const {
    std::int64_t value = 0;
    return read_number(name, "one whole number", false, H5T_NATIVE_INT64, &value) ? std::optional(value) : std::nullopt;
}

std::optional<double> File::real_attribute(const std::string& name) const {
    double value = 0;
    return read_number(name, "one number", true, H5T_NATIVE_DOUBLE, &value) ? std::optional(value) : std::nullopt;
}

std::optional<std::string> File::string_attribute(const std::string& name) const {
    const Handle attribute = open_attribute(name, "one string");
    if (attribute.get() < 0) {
        return std::nullopt;
    }
    const std::string place = path_ + ": attribute " + name;
    const Handle type(check(H5Aget_type(attribute.get()), place, "cannot be read"), H5Tclose);
    if (H5Tget_class(type.get()) != H5T_STRING) {
        fail(ExitCode::bad_data, "{} is not one string", place);
    }
    if (check(H5Tis_variable_str(type.get()), place, "cannot be read") > 0) {
        char* text = nullptr;
        check(H5Aread(attribute.get(), type.get(), &text), place, "cannot be read");
        if (text == nullptr) {
            return std::string();
        }
        std::string value;
        try {
            value = text;
        } catch (...) {
            H5free_memory(text);
            throw;
        }
        H5free_memory(text);
        return value;
    }
    const std::size_t size = H5Tget_size(type.get());
    const hsize_t stored = H5Aget_storage_size(attribute.get());
    if (size > static_cast<std::size_t>(kMostStringBytes) || size != stored ||
        static_cast<std::int64_t>(size) > file_size(handle_.get(), path_)) {
        fail(ExitCode::bad_data, "{}: a string of {} bytes is not supported", place, size);
    }
    std::string value(size, '\0');
    check(H5Aread(attribute.get(), type.get(), value.data()), place, "cannot be read");
    value.resize(std::strlen(value.c_str()));  // what is shorter than its type is filled with NUL
    return value;
}

void File::write_attribute(const std::string& name, hid_t file_type, hid_t memory_type, const void* value) const {
    const std::string place = path_ + ": attribute " + name;
    Handle attribute = open_attribute(name, "one value");
    if (attribute.get() < 0) {
        const Handle space(check(H5Screate(H5S_SCALAR), place, "no dataspace", ExitCode::internal), H5Sclose);
        attribute =
            Handle(check(H5Acreate2(handle_.get(), name.c_str(), file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                         place, "cannot be created", ExitCode::cannot_write),
                   H5Aclose);
    }
    check(H5Awrite(attribute.get(), memory_type, value), place, "cannot be written", ExitCode::cannot_write);
}

void File::set_attribute(const std::string& name, std::int64_t value) const {
    write_attribute(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void File::set_attribute(const std::string& name, double value) const {
    write_attribute(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

void File::set_attribute(const std::string& name, const std::string& value) const {
    if (value.find('\0') != std::string::npos) {
        fail(ExitCode::internal, "{}: attribute {}: a string may not hold NUL", path_, name);
    }
    const Handle type = new_string_type(H5T_VARIABLE);  // as h5py writes strings
    const char* text = value.c_str();
    write_attribute(name, type.get(), type.get(), &text);
}

void File::require_format(std::string_view name, std::int64_t version) const {
    const std::optional<std::string> found = string_attribute("format");
    if (!found || *found != name) {
        fail(ExitCode::bad_data, "{}: attribute format is {} instead of \"{}\"", path_,
             found ? '"' + *found + '"' : "missing", name);
    }
    const std::optional<std::int64_t> number = integer_attribute("format_version");
    if (!number || *number != version) {
        const std::string shown = number ? std::to_string(*number) : "missing";
        fail(ExitCode::bad_data,
             "{}: attribute format_version is {} instead of {}; this program cannot read {} of format_version {}",
             path_, shown, version, name, shown);
    }
}

}  // namespace tessera::hdf5
