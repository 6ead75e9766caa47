#include "io/log_prob_file.h"

#include <hdf5.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/io/crash.h"

using namespace tessera;
using namespace tessera::test;

namespace {

const LogProbAttributes kAttributes{"some/model", "0123", "a.h5, b.h5", 0.75, "float32", "job_type = \"log_prob\"\n"};

/// The values that these tests write: a function of the place, exact in float.
float value_of(std::int64_t place) {
    return -static_cast<float>(place % 4093) / 16.0F;
}

float entropy_of(std::int64_t place) {
    return static_cast<float>(place % 1021) / 8.0F;
}

double sum_of(const std::vector<std::int64_t>& offsets, std::int64_t sequence) {
    double sum = 0;
    for (std::int64_t i = offsets[sequence]; i < offsets[sequence + 1]; ++i) {
        sum += value_of(i);
    }
    return sum;
}

void write_one(LogProbWriter& writer, const std::vector<std::int64_t>& offsets, bool entropy, std::int64_t sequence) {
    std::vector<float> values;
    std::vector<float> entropies;
    for (std::int64_t i = offsets[sequence]; i < offsets[sequence + 1]; ++i) {
        values.push_back(value_of(i));
        if (entropy) {
            entropies.push_back(entropy_of(i));
        }
    }
    // In two windows, the later one first.
    const std::size_t cut = values.size() / 3;
    const std::size_t entropy_cut = entropy ? cut : 0;
    writer.write(sequence, static_cast<std::int64_t>(cut), std::span(values).subspan(cut),
                 std::span(entropies).subspan(entropy_cut));
    writer.write(sequence, 0, std::span(values).first(cut), std::span(entropies).first(entropy_cut));
    writer.mark_done(sequence, sum_of(offsets, sequence));
}

std::vector<std::int64_t> random_offsets(std::int64_t sequences, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t n = 0; n < sequences; ++n) {
        offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 400));
    }
    return offsets;
}

/// Reads with the C library alone, so that the format is judged by another code than the writer's.
template <typename T>
std::vector<T> read_set(hid_t file, const char* name, hid_t stored, hid_t memory) {
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    REQUIRE(set >= 0);
    const hid_t type = H5Dget_type(set);
    CHECK(H5Tequal(type, stored) > 0);
    const hid_t space = H5Dget_space(set);
    hsize_t length = 0;
    REQUIRE(H5Sget_simple_extent_ndims(space) == 1);
    H5Sget_simple_extent_dims(space, &length, nullptr);
    std::vector<T> values(length);
    if (length > 0) {
        REQUIRE(H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(set);
    return values;
}

std::set<std::string> attribute_names(hid_t file) {
    std::set<std::string> names;
    hsize_t at = 0;
    H5Aiterate2(
        file, H5_INDEX_NAME, H5_ITER_NATIVE, &at,
        [](hid_t, const char* name, const H5A_info_t*, void* to) -> herr_t {
            static_cast<std::set<std::string>*>(to)->insert(name);
            return 0;
        },
        &names);
    return names;
}

std::string text_attribute(hid_t file, const char* name) {
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute);
    CHECK(H5Tis_variable_str(type) > 0);
    CHECK(H5Tget_cset(type) == H5T_CSET_UTF8);
    char* value = nullptr;
    REQUIRE(H5Aread(attribute, type, &value) >= 0);
    std::string text = value;
    H5free_memory(value);
    H5Tclose(type);
    H5Aclose(attribute);
    return text;
}

template <typename T>
T number_attribute(hid_t file, const char* name, hid_t stored, hid_t memory) {
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute);
    CHECK(H5Tequal(type, stored) > 0);
    T value{};
    REQUIRE(H5Aread(attribute, memory, &value) >= 0);
    H5Tclose(type);
    H5Aclose(attribute);
    return value;
}

void check_whole(const std::string& path, const std::vector<std::int64_t>& offsets, bool entropy) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(file >= 0);
    CHECK(attribute_names(file) == std::set<std::string>{"format", "format_version", "alignment", "model", "model_hash",
                                                         "data", "temperature", "compute_dtype", "job", "complete"});
    CHECK(text_attribute(file, "format") == "tessera.log_probs");
    CHECK(text_attribute(file, "alignment") == "value t scores token t+1");
    CHECK(text_attribute(file, "job") == kAttributes.job);
    CHECK(number_attribute<std::int64_t>(file, "format_version", H5T_STD_I64LE, H5T_NATIVE_INT64) == 1);
    CHECK(number_attribute<std::int64_t>(file, "complete", H5T_STD_I64LE, H5T_NATIVE_INT64) == 1);
    CHECK(number_attribute<double>(file, "temperature", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE) == 0.75);
    H5G_info_t group;
    H5Gget_info(file, &group);
    CHECK(group.nlinks == (entropy ? 4 : 3));
    CHECK(read_set<std::int64_t>(file, "offsets", H5T_STD_I64LE, H5T_NATIVE_INT64) == offsets);
    std::vector<float> values(static_cast<std::size_t>(offsets.back()));
    std::vector<float> entropies(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = value_of(static_cast<std::int64_t>(i));
        entropies[i] = entropy_of(static_cast<std::int64_t>(i));
    }
    CHECK(read_set<float>(file, "log_probs", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT) == values);
    if (entropy) {
        CHECK(read_set<float>(file, "entropy", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT) == entropies);
    }
    const auto sums = read_set<double>(file, "sum_log_prob", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE);
    REQUIRE(sums.size() + 1 == offsets.size());
    for (std::size_t n = 0; n < sums.size(); ++n) {
        CHECK(sums[n] == sum_of(offsets, static_cast<std::int64_t>(n)));
    }
    H5Fclose(file);
}

}  // namespace

TEST_CASE("files that h5py made are read") {
    LogProbFile file("data/log_probs/plain.h5");
    CHECK(file.offsets() == std::vector<std::int64_t>{0, 3, 3, 5});
    CHECK(file.complete());
    CHECK(file.attributes().model == "model é");
    CHECK(file.attributes().temperature == 0.5);
    CHECK(file.attributes().job == std::string(100000, 'x'));
    std::vector<float> values(3);
    file.read_log_probs(1, values);
    CHECK(values == std::vector<float>{-0.25F, -3, -0.125F});
    file.read_entropy(2, values);
    CHECK(values == std::vector<float>{1.5F, 2, 2.5F});
    std::vector<double> sums(3);
    file.read_sums(0, sums);
    CHECK(sums == std::vector<double>{-4.75, 0, -7.125});
    CHECK(file.done() == std::vector<bool>(3, true));
    CHECK_THROWS_AS(file.read_log_probs(3, values), Error);

    file = LogProbFile("data/log_probs/packed.h5");
    CHECK_FALSE(file.has_entropy());
    file.read_log_probs(2, values);
    CHECK(values == std::vector<float>{-3, -0.125F, -7});
    CHECK_THROWS_AS(file.read_entropy(0, values), Error);
}

TEST_CASE("files that are not what they should be are refused in words") {
    const auto [name, words] = GENERATE(table<std::string, std::string>({
        {"claims_much", "/offsets claims 1000000000000 values"},
        {"linked", "/offsets is a link"},
        {"elsewhere", "/log_probs keeps its values in other files"},
        {"bad_format", "\"tessera.tokens\""},
        {"bad_version", "format_version 2"},
        {"bad_offsets_fall", "falls from 4 to 3 at entry 2"},
        {"bad_offsets_start", "begin with 0"},
        {"bad_no_offsets", "begin with 0"},
        {"bad_length", "/log_probs has 4 values, /offsets asks for 5"},
        {"bad_sums", "/sum_log_prob has 2 values, /offsets asks for 3"},
        {"bad_type", "/log_probs should hold float32"},
        {"bad_unsigned", "/offsets should hold int64"},
        {"bad_missing", "/sum_log_prob is missing"},
        {"bad_shape", "one dimension"},
    }));
    try {
        const LogProbFile file("data/log_probs/" + name + ".h5");
        FAIL(name << " was taken");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::bad_data);
        CHECK_THAT(error.what(), Catch::Contains(words) && Catch::Contains(name));
    }
}

TEST_CASE("a truncated file is refused") {
    // Only truncated: HDF5 1.10 itself does not survive every scrambled byte (its heap of strings reads beyond its
    // end).
    const TemporaryDirectory directory;
    const auto name = GENERATE("plain", "packed");
    const std::string whole = contents(fmt::format("data/log_probs/{}.h5", name));
    const std::string path = directory / "a.h5";
    for (std::size_t size = 0; size < whole.size(); size += 97) {
        write_file(path, whole.substr(0, size));
        CHECK_THROWS_AS(LogProbFile(path), Error);
    }
}

TEST_CASE("what is written in any order is whole at the end") {
    const bool entropy = GENERATE(false, true);
    const TemporaryDirectory directory;
    const std::string path = directory / "out.h5";
    const auto offsets = random_offsets(200, 7);
    LogProbWriter writer(path, offsets, entropy, kAttributes);
    CHECK(writer.discarded().empty());
    std::vector<std::int64_t> order(200);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    for (const std::int64_t sequence : order) {
        if (!writer.done()[static_cast<std::size_t>(sequence)]) {
            write_one(writer, offsets, entropy, sequence);
        }
    }
    CHECK_FALSE(std::filesystem::exists(path));
    writer.finish();
    CHECK_FALSE(std::filesystem::exists(path + ".partial"));
    check_whole(path, offsets, entropy);
    CHECK(std::filesystem::file_size(path) < 80 * 1024 * 8);
}

TEST_CASE("data sets without sequences or without values") {
    const TemporaryDirectory directory;
    const auto offsets = GENERATE(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{0, 0, 0});
    LogProbWriter writer(directory / "out.h5", offsets, true, kAttributes);
    CHECK(writer.done_count() == writer.sequences());
    writer.finish();
    check_whole(directory / "out.h5", offsets, true);
    CHECK(LogProbFile(directory / "out.h5").complete());
}

TEST_CASE("a stopped run is taken up where it was flushed") {
    const TemporaryDirectory directory;
    const std::string path = directory / "out.h5";
    const std::vector<std::int64_t> offsets{0, 2, 5, 5, 9, 10};
    {
        LogProbWriter writer(path, offsets, true, kAttributes);
        write_one(writer, offsets, true, 1);
        writer.flush();
        write_one(writer, offsets, true, 4);  // not flushed
    }
    CHECK_FALSE(LogProbFile(path + ".partial").complete());
    {
        LogProbWriter writer(path, offsets, true, kAttributes);
        CHECK(writer.discarded().empty());
        CHECK(writer.done() == std::vector<bool>{false, true, true, false, false});
        CHECK(writer.done_count() == 2);
        CHECK_THROWS_AS(write_one(writer, offsets, true, 1), Error);
        CHECK_THROWS_AS(writer.finish(), Error);
        for (const std::int64_t sequence : {0, 3, 4}) {
            write_one(writer, offsets, true, sequence);
        }
        writer.finish();
    }
    check_whole(path, offsets, true);
}

TEST_CASE("a partial file of another computation is started over") {
    const TemporaryDirectory directory;
    const std::string path = directory / "out.h5";
    const std::vector<std::int64_t> offsets{0, 2, 5};
    {
        LogProbWriter writer(path, offsets, false, kAttributes);
        write_one(writer, offsets, false, 0);
        writer.flush();
    }
    LogProbAttributes attributes = kAttributes;
    auto other_offsets = offsets;
    bool entropy = false;
    std::string word;
    SECTION("model") {
        attributes.model_hash = "4", word = "model";
    }
    SECTION("data") {
        attributes.data = "c.h5", word = "data";
    }
    SECTION("temperature") {
        attributes.temperature = 1, word = "temperature";
    }
    SECTION("precision") {
        attributes.compute_dtype = "bfloat16", word = "precision";
    }
    SECTION("job") {
        attributes.job = "seed = 1", word = "job";
    }
    SECTION("entropy") {
        entropy = true, word = "entropy";
    }
    SECTION("offsets") {
        other_offsets = {0, 3, 5}, word = "sequences";
    }
    SECTION("not HDF5") {
        write_file(path + ".partial", "x"), word = "HDF5";
    }
    SECTION("truncated") {
        std::filesystem::resize_file(path + ".partial", std::filesystem::file_size(path + ".partial") / 2);
        word = "truncated";
    }
    LogProbWriter writer(path, other_offsets, entropy, attributes);
    CHECK_THAT(writer.discarded(), Catch::Contains("started over") && Catch::Contains(word));
    CHECK(writer.done_count() == 0);
}

TEST_CASE("misuse is refused") {
    const TemporaryDirectory directory;
    const std::vector<std::int64_t> offsets{0, 4, 6};
    LogProbWriter writer(directory / "out.h5", offsets, false, kAttributes);
    const std::vector<float> values(4, -1.0F);
    CHECK_THROWS_AS(writer.write(2, 0, values, {}), Error);
    CHECK_THROWS_AS(writer.write(-1, 0, values, {}), Error);
    CHECK_THROWS_AS(writer.write(1, 0, values, {}), Error);
    CHECK_THROWS_AS(writer.write(0, 1, values, {}), Error);
    CHECK_THROWS_AS(writer.write(0, 0, values, values), Error);
    CHECK_THROWS_AS(writer.mark_done(0, 0.0), Error);
    writer.write_sequence(0, values, {}, std::numeric_limits<double>::quiet_NaN());
    CHECK_THROWS_AS(writer.mark_done(0, 0.0), Error);
    writer.write_sequence(1, std::span(values).first(2), {}, -2.0);
    writer.finish();
    // A sum that is not a number is a result like any other.
    CHECK(LogProbFile(directory / "out.h5").done() == std::vector<bool>{true, true});
}

TEST_CASE("a writer that is killed again and again ends with every value") {
    const TemporaryDirectory directory;
    const std::string path = directory / "out.h5";
    const auto offsets = random_offsets(150, 11);
    std::mt19937 random(5);
    std::int64_t flushed = 0;
    int kills = 0;
    for (int round = 0; !std::filesystem::exists(path); ++round) {
        REQUIRE(round < 2000);
        // Longer and longer, so that it ends; sometimes very short, to hit the start and the end.
        const auto delay = std::chrono::microseconds(random() % static_cast<unsigned>(1500 + 250 * round));
        const Killed killed = run_and_kill(delay, [&](const auto& report) {
            LogProbWriter writer(path, offsets, true, kAttributes);
            if (!writer.discarded().empty() || writer.done_count() < flushed) {
                throw std::runtime_error("work was lost: " + writer.discarded());
            }
            std::mt19937 order(static_cast<unsigned>(round));
            int since_flush = 0;
            for (std::int64_t n = 0; n < writer.sequences(); ++n) {
                const auto sequence = static_cast<std::int64_t>(order() % 150);
                if (!writer.done()[static_cast<std::size_t>(sequence)]) {
                    write_one(writer, offsets, true, sequence);
                    if (++since_flush % 4 == 0) {
                        writer.flush();
                        report(writer.done_count());
                    }
                }
            }
            for (std::int64_t n = 0; writer.done_count() * 10 > writer.sequences() * 9 && n < writer.sequences(); ++n) {
                if (!writer.done()[static_cast<std::size_t>(n)]) {
                    write_one(writer, offsets, true, n);
                }
            }
            writer.flush();
            report(writer.done_count());
            if (writer.done_count() == writer.sequences()) {
                writer.finish();
            }
        });
        CHECK((!killed.finished || killed.exit_code == 0));
        kills += killed.finished ? 0 : 1;
        flushed = std::max(flushed, killed.last_reported);
        if (std::filesystem::exists(path + ".partial")) {
            const LogProbFile partial(path + ".partial");
            const auto done = partial.done();
            CHECK(std::count(done.begin(), done.end(), true) >= flushed);
            std::vector<float> values(static_cast<std::size_t>(partial.values()));
            partial.read_log_probs(0, values);
            bool right = true;
            for (std::size_t n = 0; n < done.size(); ++n) {
                for (std::int64_t i = offsets[n]; done[n] && i < offsets[n + 1]; ++i) {
                    right &= values[static_cast<std::size_t>(i)] == value_of(i);
                }
            }
            CHECK(right);
        }
    }
    CHECK(kills >= 5);
    check_whole(path, offsets, true);
}

TEST_CASE("a disk that is too small is found before the work") {
    const SmallDisk disk(1 << 20);
    if (!disk.mounted()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    try {
        const LogProbWriter writer(disk.path() + "/out.h5", {0, 1 << 20}, false, kAttributes);
        FAIL("4 MiB were written to 1 MiB");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        CHECK_THAT(error.what(), Catch::Contains("No space left") && Catch::Contains("out.h5"));
    }
    CHECK(std::filesystem::is_empty(disk.path()));
    REQUIRE(disk.make_read_only());
    try {
        const LogProbWriter writer(disk.path() + "/out.h5", {0, 1}, false, kAttributes);
        FAIL("a read-only file system was written to");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        CHECK_THAT(error.what(), Catch::Contains("Read-only"));
    }
}
