#include "io/hdf5.h"

#include <hdf5.h>

#include <catch2/catch.hpp>

#include <fstream>

#include "test/io/token_files.h"

#ifdef __SANITIZE_ADDRESS__
// HDF5 asks malloc for what a damaged header says and reports its refusal; the sanitizer would end the process instead.
extern "C" const char* __asan_default_options() {  // NOLINT: the sanitizer's name
    return "allocator_may_return_null=1";
}
// Its own ways out of a damaged file do not give back everything.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT: the sanitizer's name
    return "leak:libhdf5";
}
#endif

using namespace tessera;
using namespace tessera::test;

namespace {

hid_t new_file(const std::string& path) {
    return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
}

}  // namespace

TEST_CASE("a file made by h5py is read") {
    const auto file = hdf5::File::open("goldens/20_loss_mask/tokens.h5");
    file.require_format("tessera.tokens", 1);
    CHECK(file.string_attribute("format") == "tessera.tokens");
    CHECK(file.string_attribute("tokenizer") == "");
    CHECK(file.integer_attribute("vocab_size") == 97);
    CHECK(file.real_attribute("vocab_size") == 97.0);
    CHECK_FALSE(file.integer_attribute("nothing").has_value());
    CHECK(file.has("tokens"));
    CHECK_FALSE(file.has("token"));
    const auto tokens = file.dataset("tokens");
    CHECK(tokens.size() == 110);
    CHECK(tokens.type() == hdf5::Type::u32);
    std::vector<std::uint32_t> narrow_values(110);
    std::vector<std::int64_t> wide_values(10);
    tokens.read(0, 110, narrow_values.data());
    tokens.read(100, 10, wide_values.data());
    CHECK(std::equal(wide_values.begin(), wide_values.end(), narrow_values.begin() + 100));
    std::uint8_t byte = 0;
    CHECK(caught([&] { tokens.read(0, 1, &byte); }).says("holds uint32 instead of uint8"));
    CHECK(caught([&] { tokens.read(109, 2, wide_values.data()); }).code == ExitCode::internal);
}

TEST_CASE("what is written is there for the C API, and can be gone on with") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.h5";
    std::int64_t begin = 0;
    {
        auto file = hdf5::File::create(path);
        file.set_attribute("format", std::string("x.y"));
        file.set_attribute("format_version", std::int64_t{1});
        file.set_attribute("complete", std::int64_t{0});
        file.set_attribute("temperature", 0.7);
        file.set_attribute("job", std::string(200'000, 'j'));  // more than the head of an object holds
        begin = file.create_dataset("values", hdf5::Type::f32, 1000).offset().value();
        CHECK_FALSE(file.create_dataset("empty", hdf5::Type::i64, 0).offset().has_value());
        file.close();
    }
    const auto put_value = [&](std::int64_t place, float value) {
        std::fstream raw(path, std::ios::binary | std::ios::in | std::ios::out);
        raw.seekp(begin + 4 * place).write(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put_value(998, 1.5F);
    put_value(999, -2.5F);
    const auto bytes = contents(path).size();
    {
        auto file = hdf5::File::open_to_write(path);
        CHECK(file.dataset("values").offset() == begin);
        file.set_attribute("complete", std::int64_t{1});
        CHECK(caught([&] { file.set_attribute("complete", std::string("yes")); }).code == ExitCode::cannot_write);
        file.close();
    }
    CHECK(contents(path).size() == bytes);  // an attribute changes in its place
    put_value(0, 7);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(file >= 0);
    const hid_t dataset = H5Dopen2(file, "values", H5P_DEFAULT);
    CHECK(H5Dget_storage_size(dataset) == 4000);  // allocated although most of it was never written
    std::vector<float> values(1000);
    REQUIRE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
    CHECK(values[0] == 7);
    CHECK(values[1] == 0);
    CHECK(values[998] == 1.5F);
    CHECK(values[999] == -2.5F);
    H5Dclose(dataset);
    H5Fclose(file);
    const auto again = hdf5::File::open(path);
    CHECK(again.integer_attribute("complete") == 1);
    CHECK(again.real_attribute("temperature") == 0.7);
    CHECK(again.string_attribute("job")->size() == 200'000);
    CHECK(again.dataset("empty").size() == 0);
    // The second version of the head of a file is that of 1.8; later ones keep a mark "open" after a kill.
    CHECK(contents(path)[8] == 2);
}

TEST_CASE("files that are not HDF5, or not whole, are refused in one message") {
    const TemporaryDirectory directory;
    CHECK(caught([&] { (void)hdf5::File::open(directory / "no.h5"); }).code == ExitCode::missing_input);
    CHECK(caught([&] { (void)hdf5::File::open(directory / "."); }).says("is a directory"));
    for (const std::string& bytes : {std::string(), std::string("\x89HDF\r\n\x1a\n"), std::string(5000, 'x')}) {
        write_file(directory / "bad.h5", bytes);
        const Caught error = caught([&] { (void)hdf5::File::open(directory / "bad.h5"); });
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("bad.h5: not a readable HDF5 file (HDF5: "));
    }
    const std::string whole = contents("goldens/20_loss_mask/tokens.h5");
    write_file(directory / "cut.h5", whole.substr(0, whole.size() - 100));
    CHECK(caught([&] { (void)hdf5::File::open(directory / "cut.h5"); }).says("truncated"));
    CHECK(caught([&] { (void)hdf5::File::create(directory / "no/such/place.h5"); }).code == ExitCode::cannot_write);
    CHECK(caught([&] { (void)hdf5::File::open_to_write(directory / "no.h5"); }).code == ExitCode::cannot_write);
}

// Without the attributes: HDF5 1.10 itself crashes or never returns where the heap that holds h5py's strings is
// damaged.
TEST_CASE("any byte of a file may be wrong") {
    const TemporaryDirectory directory;
    const std::string whole = contents("goldens/20_loss_mask/tokens.h5");
    std::uint32_t state = 1;
    for (int round = 0; round < 1000; ++round) {
        std::string bytes = whole;
        for (int change = 0; change < 1 + round % 3; ++change) {
            state = state * 1664525u + 1013904223u;
            const std::size_t at = (state >> 8) % bytes.size();
            bytes[at] = static_cast<char>(state >> 24 ^ (round % 2 == 0 ? 0xff : 0));
        }
        write_file(directory / "bad.h5", bytes);
        // Either it is read or it is refused; that nothing else happens is what the sanitizers watch.
        const Caught error = caught([&] {
            const auto file = hdf5::File::open(directory / "bad.h5");
            for (const char* name : {"tokens", "offsets", "loss_mask"}) {
                const auto dataset = file.dataset(name);
                REQUIRE(dataset.size() * 4 <= static_cast<std::int64_t>(4 * bytes.size()));
                std::vector<std::int64_t> values(static_cast<std::size_t>(dataset.size()));
                dataset.read(0, dataset.size(), values.data());
            }
        });
        REQUIRE((error.code == ExitCode::ok || error.code == ExitCode::bad_data));
    }
}

TEST_CASE("datasets that are not what they should be are named") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.h5";
    write_tokens(directory / "other.h5", {.tokens = count_up(5)});
    const hid_t file = new_file(path);
    const hsize_t shape[2] = {3, 4};
    const hsize_t many = hsize_t{1} << 50;
    const auto make = [&](const char* name, hid_t type, int rank, const hsize_t* dims, hid_t properties) {
        const hid_t space = H5Screate_simple(rank, dims, nullptr);
        H5Dclose(H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT));
        H5Sclose(space);
    };
    make("matrix", H5T_STD_U32LE, 2, shape, H5P_DEFAULT);
    make("big_endian", H5T_STD_U32BE, 1, shape, H5P_DEFAULT);
    const hid_t half = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    make("half", half, 1, shape, H5P_DEFAULT);
    H5Tclose(half);
    make("unwritten", H5T_STD_U32LE, 1, &many, H5P_DEFAULT);
    const hsize_t chunk = 1024;
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 1, &chunk);
    make("unwritten_chunks", H5T_STD_U32LE, 1, &many, properties);
    H5Pset_deflate(properties, 1);
    make("unwritten_compressed", H5T_STD_U32LE, 1, &many, properties);
    const hsize_t huge_chunk = hsize_t{1} << 29;
    H5Pset_chunk(properties, 1, &huge_chunk);
    make("huge_chunks", H5T_STD_U32LE, 1, &huge_chunk, properties);
    H5Pclose(properties);
    properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(properties, "raw.bin", 0, 12);
    make("external", H5T_STD_U32LE, 1, shape, properties);
    H5Pclose(properties);
    properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t five = 5;
    const hid_t space = H5Screate_simple(1, &five, nullptr);
    H5Pset_virtual(properties, space, "other.h5", "tokens", space);
    H5Sclose(space);
    make("virtual", H5T_STD_U16LE, 1, &five, properties);
    H5Pclose(properties);
    H5Lcreate_external("other.h5", "tokens", file, "linked", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/linked", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);

    const auto opened = hdf5::File::open(path);
    const auto refusal = [&](const char* name) {
        const Caught error = caught([&] { (void)opened.dataset(name); });
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says(std::string("a.h5: /") + name));
        return error;
    };
    CHECK(refusal("nothing").says("is missing"));
    CHECK(refusal("matrix").says("2 dimensions"));
    CHECK(refusal("big_endian").says("integers of 4 bytes"));
    CHECK(refusal("half").says("floating-point numbers of 2 bytes"));
    CHECK(refusal("unwritten").says("incomplete"));
    CHECK(refusal("unwritten_chunks").says("incomplete"));
    CHECK(refusal("unwritten_compressed").says("only 0 were written"));
    CHECK(refusal("huge_chunks").says("chunks of 536870912 elements"));
    CHECK(refusal("external").says("other files"));
    CHECK(refusal("virtual").says("other files"));
    CHECK(refusal("linked").says("link"));
    CHECK(refusal("soft").says("link"));
    CHECK(refusal("group").says("not a readable dataset"));
}

TEST_CASE("attributes of another type are named") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.h5";
    const hid_t file = new_file(path);
    put_string(file, "text", "fixed length");
    put_integer(file, "number", 3);
    const hsize_t two = 2;
    const hid_t space = H5Screate_simple(1, &two, nullptr);
    H5Aclose(H5Acreate2(file, "pair", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
    H5Fclose(file);
    const auto opened = hdf5::File::open(path);
    CHECK(opened.string_attribute("text") == "fixed length");
    CHECK(caught([&] { (void)opened.integer_attribute("text"); }).says("attribute text is not one whole number"));
    CHECK(caught([&] { (void)opened.real_attribute("text"); }).says("attribute text is not one number"));
    CHECK(caught([&] { (void)opened.string_attribute("number"); }).says("attribute number is not one string"));
    CHECK(caught([&] { (void)opened.integer_attribute("pair"); }).says("attribute pair is not one whole number"));
    CHECK(caught([&] { opened.require_format("x", 1); }).says("attribute format is missing instead of \"x\""));
}
