#include "io/token_data.h"

#include <catch2/catch.hpp>

#include "test/io/token_files.h"

using namespace tessera;
using namespace tessera::test;

namespace {

std::vector<std::int32_t> read_all(TokenData& data) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(data.tokens()));
    data.read(0, data.tokens(), tokens.data());
    return tokens;
}

std::vector<std::uint8_t> mask_of(TokenData& data) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(data.tokens()));
    data.read_mask(0, data.tokens(), mask.data());
    return mask;
}

Caught refusal(const std::string& path, const std::string& format = "auto") {
    return caught([&] {
        TokenData data = TokenData::open({path}, format, 1000);
        data.check_all();
    });
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t promised, const std::string& tokens) {
    std::string bytes;
    for (const std::int32_t word : {magic, version, promised}) {
        put(bytes, word);
    }
    bytes.resize(1024);
    return bytes + tokens;
}

template <typename T>
std::string raw(const std::vector<std::int64_t>& values) {
    std::string bytes;
    for (const std::int64_t value : values) {
        put(bytes, static_cast<T>(value));
    }
    return bytes;
}

/// A Megatron index; each part can be made wrong.
struct Index {
    std::string magic = std::string("MMIDIDX\0\0", 9);
    std::uint64_t version = 1;
    std::uint8_t type = 8;
    std::vector<std::int64_t> lengths = {};
    std::vector<std::int64_t> pointers = {};
    std::vector<std::int64_t> documents = {};
    std::string modes = {};
    std::optional<std::uint64_t> sequences = std::nullopt;
    std::optional<std::uint64_t> entries = std::nullopt;

    [[nodiscard]] std::string bytes() const {
        std::string text = magic;
        put(text, version);
        put(text, type);
        put(text, sequences.value_or(lengths.size()));
        put(text, entries.value_or(documents.size()));
        return text + raw<std::int32_t>(lengths) + raw<std::int64_t>(pointers) + raw<std::int64_t>(documents) + modes;
    }
};

}  // namespace

TEST_CASE("token files made by h5py") {
    TokenData data = TokenData::open({"goldens/14_accumulation/tokens_*.h5"}, "auto", 97);
    CHECK(data.tokens() == 540);
    CHECK(data.documents() == 5);
    CHECK(data.has_mask());
    REQUIRE(data.files().size() == 2);
    CHECK(data.files()[0].path == "goldens/14_accumulation/tokens_a.h5");
    CHECK(data.files()[0].has_mask);
    CHECK_FALSE(data.files()[1].has_mask);
    const std::vector<std::int32_t> tokens = read_all(data);
    const std::vector<std::uint8_t> mask = mask_of(data);
    CHECK(std::count(mask.begin() + 130, mask.end(), 1) == 410);
    CHECK(std::count(mask.begin(), mask.begin() + 130, 0) > 0);
    std::vector<std::int32_t> some(200);
    data.read(100, 200, some.data());  // across the files
    CHECK(std::equal(some.begin(), some.end(), tokens.begin() + 100));
    CHECK(data.document_range(0).first == 0);
    CHECK(data.document_range(1).end == 130);
    CHECK(data.document_range(2).first == 130);
    CHECK(data.document_range(4).end == 540);
    CHECK(data.document_name(3) == "goldens/14_accumulation/tokens_b.h5, document 1");
    data.check_all();
}

TEST_CASE("contiguous, chunked and compressed token files hold the same") {
    const TemporaryDirectory directory;
    const std::int64_t size = 5000;
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> mask;
    for (std::int64_t i = 0; i < size; ++i) {
        tokens.push_back(i * 7919 % 65536);
        mask.push_back(i % 3 == 0 ? 1 : 0);
    }
    for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U32LE}) {
        for (const hsize_t chunk : {0, 1, 999, 5000}) {
            for (const bool compressed : {false, true}) {
                write_tokens(directory / "a.h5", {.tokens = tokens,
                                                  .offsets = {0, 0, 10, 10, 10, 4000, 5000},
                                                  .mask = mask,
                                                  .token_type = type,
                                                  .chunk = chunk,
                                                  .compressed = compressed && chunk > 0});
                TokenData data = TokenData::open({directory / "a.h5"}, "hdf5", 65536);
                REQUIRE(data.tokens() == size);
                const std::vector<std::int32_t> read = read_all(data);
                CHECK(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
                const std::vector<std::uint8_t> bits = mask_of(data);
                CHECK(std::equal(bits.begin(), bits.end(), mask.begin(), mask.end()));
                CHECK(data.documents() == 6);
                CHECK(data.longest_document() == 3990);
                CHECK(data.document_range(0).size() == 0);
                CHECK(data.document_range(1).end == 10);
                CHECK(data.document_at(9) == 1);
                CHECK(data.document_at(10) == 4);  // the empty ones before it hold no token
                CHECK(data.document_at(4999) == 5);
            }
        }
    }
}

TEST_CASE("documents are found among many, over files") {
    const TemporaryDirectory directory;
    std::vector<std::int64_t> first_tokens;  // of every document, in the whole stream
    std::vector<std::string> paths;
    std::int64_t total = 0;
    std::uint32_t state = 7;
    for (int file = 0; file < 3; ++file) {
        std::vector<std::int64_t> offsets = {0};
        // Numbers of documents around the size of a block of the table in memory
        for (int d = 0; d < 1023 + file; ++d) {
            state = state * 1664525u + 1013904223u;
            first_tokens.push_back(total + offsets.back());
            offsets.push_back(offsets.back() + (state >> 24) % 4);
        }
        total += offsets.back();
        paths.push_back(directory / std::to_string(file) + ".h5");
        write_tokens(paths.back(), {.tokens = count_up(offsets.back()), .offsets = offsets});
    }
    first_tokens.push_back(total);
    TokenData data = TokenData::open(paths, "auto", 65536);
    REQUIRE(data.documents() == 3 * 1024);
    for (std::int64_t d = data.documents() - 1; d >= 0; --d) {
        const DocumentRange range = data.document_range(d);
        REQUIRE(range.first == first_tokens[static_cast<std::size_t>(d)]);
        REQUIRE(range.end == first_tokens[static_cast<std::size_t>(d) + 1]);
        for (std::int64_t position = range.first; position < range.end; ++position) {
            REQUIRE(data.document_at(position) == d);
        }
    }
}

TEST_CASE("more files than a process may open") {
    const TemporaryDirectory directory;
    std::vector<std::int64_t> expected;
    for (int file = 0; file < 250; ++file) {
        std::string name = std::to_string(file);
        name.insert(0, 3 - name.size(), '0');
        if (file % 2 == 0) {
            write_tokens(directory / (name + ".h5"), {.tokens = count_up(3, file)});
        } else {
            write_file(directory / (name + ".bin"), llmc(20240801, 7, 3, raw<std::uint32_t>(count_up(3, file))));
        }
        const std::vector<std::int64_t> tokens = count_up(3, file);
        expected.insert(expected.end(), tokens.begin(), tokens.end());
    }
    TokenData data = TokenData::open({directory / "*"}, "auto", 1000);
    for (int round = 0; round < 2; ++round) {
        const std::vector<std::int32_t> tokens = read_all(data);
        CHECK(std::equal(tokens.begin(), tokens.end(), expected.begin(), expected.end()));
    }
    std::int64_t open_files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        ++open_files;
    }
    CHECK(open_files < 130);
    // A file that changes between two uses is noticed when it is opened again.
    write_tokens(directory / "000.h5", {.tokens = count_up(4)});
    CHECK(caught([&] { (void)read_all(data); }).says("000.h5: the file changed"));
}

TEST_CASE("patterns: sorted globs, files in order, what is missing is named") {
    const TemporaryDirectory directory;
    for (const char* name : {"b.txt", "a.txt", "c[1].txt", "10.txt", "9.txt"}) {
        write_file(directory / name, name);
    }
    const auto text = [&](const std::vector<std::string>& patterns) {
        TokenData data = TokenData::open(patterns, "auto", 256);
        const std::vector<std::int32_t> tokens = read_all(data);
        return std::string(tokens.begin(), tokens.end());
    };
    CHECK(text({directory / "*.txt"}) == "10.txt9.txta.txtb.txtc[1].txt");
    CHECK(text({directory / "b.txt", directory / "a.txt", directory / "b.txt"}) == "b.txta.txtb.txt");
    CHECK(text({directory / "c[1].txt"}) == "c[1].txt");
    CHECK(text({directory / "[ab].txt"}) == "a.txtb.txt");
    for (const char* pattern : {"no.txt", "no*.txt"}) {
        const Caught error = refusal(directory / pattern);
        CHECK(error.code == ExitCode::missing_input);
        CHECK(error.says(pattern));
    }
    write_file(directory / "data.json", "{}");
    CHECK(refusal(directory / "data.json").says("data.json: the ending does not tell its format"));
    CHECK(refusal(directory / ".", "bytes").says("is a directory"));
    CHECK(refusal(directory / "a.txt", "parquet").code == ExitCode::usage);
    CHECK(caught([] { (void)TokenData::open({}, "auto", 10); }).says("no tokens"));
}

TEST_CASE("text is its bytes, a document a file") {
    TokenData data = TokenData::open({"goldens/26_bytes/a.txt", "goldens/26_bytes/b.txt"}, "auto", 256);
    CHECK(data.tokens() == 230 + 137);
    CHECK(data.documents() == 2);
    CHECK(data.document_range(1).first == 230);
    CHECK_FALSE(data.has_mask());
    const TemporaryDirectory directory;
    std::string all(256, ' ');
    for (int byte = 0; byte < 256; ++byte) {
        all[static_cast<std::size_t>(byte)] = static_cast<char>(byte);
    }
    write_file(directory / "all.bytes", all);
    TokenData bytes = TokenData::open({directory / "all.bytes"}, "bytes", 256);
    const std::vector<std::int32_t> tokens = read_all(bytes);
    for (int byte = 0; byte < 256; ++byte) {
        CHECK(tokens[static_cast<std::size_t>(byte)] == byte);
    }
}

TEST_CASE("files without tokens are legal, data without tokens is not") {
    const TemporaryDirectory directory;
    write_file(directory / "empty.txt", "");
    write_file(directory / "full.txt", "abc");
    write_tokens(directory / "empty.h5", {.offsets = {0}});
    write_tokens(directory / "blank.h5", {.offsets = {0, 0, 0}, .mask = std::vector<std::int64_t>()});
    write_file(directory / "empty.bin", llmc(20240520, 1, 0, ""));
    write_file(directory / "pair.idx", Index{.documents = {0}}.bytes());
    write_file(directory / "pair.bin", "");
    TokenData data = TokenData::open({directory / "empty.*", directory / "blank.h5", directory / "pair.bin",
                                      directory / "full.txt", directory / "empty.h5"},
                                     "auto", 256);
    CHECK(data.tokens() == 3);
    CHECK(data.documents() == 1 + 0 + 1 + 2 + 0 + 1 + 0);
    CHECK(read_all(data) == std::vector<std::int32_t>{'a', 'b', 'c'});
    CHECK(data.document_at(0) == 4);
    const Caught error = refusal(directory / "empty.h5");
    CHECK(error.code == ExitCode::bad_data);
    CHECK(error.says("the data has no tokens"));
    CHECK(error.says("empty.h5"));
}

TEST_CASE("ids beyond the vocabulary are named with their place") {
    const TemporaryDirectory directory;
    write_tokens(directory / "good.h5", {.tokens = count_up(10)});
    write_tokens(directory / "bad.h5", {.tokens = {0, 1, 2, 3, 4, 50, 6}, .offsets = {0, 3, 7}});
    TokenData data = TokenData::open({directory / "good.h5", directory / "bad.h5"}, "auto", 50);
    std::vector<std::int32_t> tokens(20);
    data.read(0, 15, tokens.data());
    const Caught error = caught([&] { data.read(12, 5, tokens.data()); });
    CHECK(error.code == ExitCode::bad_data);
    CHECK(error.says("bad.h5: token 5 (number 2 of document 1) is 50, but the model's vocabulary has 50 ids"));
    CHECK(caught([&] { data.check_all(); }).says("bad.h5: token 5"));
    TokenData large = TokenData::open({directory / "bad.h5"}, "auto", 51);
    large.check_all();
    // uint32 ids beyond int32
    write_tokens(directory / "big.h5", {.tokens = {1, 4294967295}, .token_type = H5T_STD_U32LE});
    CHECK(refusal(directory / "big.h5").says("is 4294967295"));
}

TEST_CASE("an attribute vocab_size is a hint only") {
    const TemporaryDirectory directory;
    write_tokens(directory / "a.h5", {.tokens = {1, 2, 3}});
    hid_t file = H5Fopen((directory / "a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    put_integer(file, "vocab_size", 200);
    H5Fclose(file);
    TokenData data = TokenData::open({directory / "a.h5"}, "auto", 100);
    data.check_all();
    CHECK(caught([&] { TokenData::open({directory / "a.h5"}, "auto", 3).check_all(); }).says("that of the file 200"));
    write_tokens(directory / "b.h5", {.tokens = {1, 2, 3}});
    file = H5Fopen((directory / "b.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    put_string(file, "vocab_size", "many");
    H5Fclose(file);
    CHECK(refusal(directory / "b.h5").says("attribute vocab_size is not one whole number"));
}

TEST_CASE("token files that are not what they should be") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.h5";
    const auto refused = [&](const TokenFile& content) {
        write_tokens(path, content);
        const Caught error = refusal(path);
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("a.h5"));
        return error;
    };
    const std::vector<std::int64_t> ten = count_up(10);
    CHECK(refused({.tokens = ten, .format = "tessera.rollouts"}).says("\"tessera.rollouts\" instead of"));
    CHECK(refused({.tokens = ten, .version = 2}).says("format_version is 2 instead of 1"));
    CHECK(refused({.tokens = ten, .token_type = H5T_STD_I32LE}).says("/tokens"));
    CHECK(refused({.tokens = ten, .token_type = H5T_STD_U8LE}).says("/tokens should hold uint16 or uint32"));
    CHECK(refused({.tokens = ten, .offset_type = H5T_STD_U32LE}).says("/offsets should hold int64"));
    CHECK(refused({.tokens = ten, .mask = ten, .mask_type = H5T_STD_U16LE}).says("/loss_mask"));
    CHECK(refused({.tokens = ten, .mask = count_up(9)}).says("/loss_mask: has 9 entries for 10 tokens"));
    CHECK(refused({.tokens = ten, .mask = ten}).says("the loss mask of token 2 is 2 instead of 0 or 1"));
    CHECK(refused({.tokens = ten, .offsets = {0, 11}}).says("documents end at token 11 but it holds 10"));
    CHECK(refused({.tokens = ten, .offsets = {0, 9}}).says("documents end at token 9 but it holds 10"));
    CHECK(refused({.tokens = ten, .offsets = {1, 10}}).says("first document begins at 1 instead of 0"));
    CHECK(refused({.tokens = ten, .offsets = {0, 6, 5, 10}}).says("document 1 begins at 6 and ends at 5"));
    CHECK(refused({.tokens = ten, .offsets = {0, -1, 10}}).says("document 0 begins at 0 and ends at -1"));
    CHECK(refused({.tokens = ten, .offsets = {0, INT64_MAX, 10}}).says("offsets must ascend"));
    std::vector<std::int64_t> many(3000, 5);
    many[0] = 0;
    many[2048] = 4;
    many.back() = 10;
    CHECK(refused({.tokens = ten, .offsets = many}).says("document 2047 begins at 5 and ends at 4"));
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    put_dataset(file, "tokens", H5T_STD_U16LE, ten);
    put_dataset(file, "offsets", H5T_STD_I64LE, {});
    put_string(file, "format", "tessera.tokens");
    put_integer(file, "format_version", 1);
    H5Fclose(file);
    CHECK(refusal(path).says("/offsets: is empty"));
    write_file(path, "not HDF5 at all");
    CHECK(refusal(path).says("not a readable HDF5 file"));
}

TEST_CASE("llm.c's files") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.bin";
    write_file(path, llmc(20240520, 1, 4, raw<std::uint16_t>({1, 2, 50256, 65535})));
    TokenData small = TokenData::open({path}, "auto", 65536);
    CHECK(read_all(small) == std::vector<std::int32_t>{1, 2, 50256, 65535});
    CHECK(small.documents() == 1);
    CHECK(small.files()[0].format == "llmc");
    write_file(path, llmc(20240801, 7, 3, raw<std::uint32_t>({1, 128000, 2})));
    TokenData large = TokenData::open({path}, "llmc", 128256);
    CHECK(read_all(large) == std::vector<std::int32_t>{1, 128000, 2});

    const std::string tokens = raw<std::uint16_t>({1, 2, 3});
    const auto refused = [&](const std::string& bytes) {
        write_file(path, bytes);
        const Caught error = refusal(path, "llmc");
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("a.bin"));
        return error;
    };
    CHECK(refused(llmc(20240520, 1, 4, tokens)).says("promises 4 tokens of 2 bytes but 6 bytes follow"));
    CHECK(refused(llmc(20240520, 1, 2, tokens)).says("promises 2 tokens"));
    CHECK(refused(llmc(20240520, 1, -3, tokens)).says("promises -3 tokens"));
    CHECK(refused(llmc(20240801, 7, 3, tokens)).says("promises 3 tokens of 4 bytes"));
    CHECK(refused(llmc(20240520, 7, 3, tokens)).says("version 7"));
    CHECK(refused(llmc(20240522, 1, 3, tokens)).says("evaluation set"));
    CHECK(refused(llmc(20240326, 3, 3, tokens)).says("a model of llm.c"));
    CHECK(refused(llmc(7, 1, 3, tokens)).says("begins with 7"));
    CHECK(refused(std::string(1023, '\0')).says("too few for the header"));
    CHECK(refused("").says("too few for the header"));
    write_file(path, std::string(2000, 'x'));
    CHECK(refusal(path).says("neither begins as a token file of llm.c nor has a Megatron index"));
}

TEST_CASE("Megatron's files, by either name, in any order of pointers") {
    const TemporaryDirectory directory;
    // Sequences 0 1 | 2 | (none) | 3 4 of lengths 2, 0, 3, 1, 2 lie in the file as 4, 3, 2, 0.
    const std::vector<std::int64_t> stored = {80, 81, 70, 60, 61, 62, 40, 41};
    const std::vector<std::int32_t> stream = {40, 41, 60, 61, 62, 70, 80, 81};
    const auto index_of = [](std::uint8_t type, std::int64_t size) {
        return Index{.type = type,
                     .lengths = {2, 0, 3, 1, 2},
                     .pointers = {6 * size, 0, 3 * size, 2 * size, 0},
                     .documents = {0, 2, 3, 3, 5}};
    };
    const auto check = [&](const std::string& path, const std::string& format) {
        TokenData data = TokenData::open({path}, format, 100);
        CHECK(read_all(data) == stream);
        REQUIRE(data.documents() == 4);
        const std::vector<std::int64_t> ends = {2, 5, 5, 8};
        for (std::int64_t d = 0; d < 4; ++d) {
            CHECK(data.document_range(d).end == ends[static_cast<std::size_t>(d)]);
        }
        std::vector<std::int32_t> some(4);
        data.read(3, 4, some.data());
        CHECK(some == std::vector<std::int32_t>{61, 62, 70, 80});
        CHECK(data.files()[0].format == "megatron");
    };
    const auto check_type = [&](std::uint8_t type, std::int64_t size, const std::string& bytes) {
        write_file(directory / "a.bin", bytes);
        write_file(directory / "a.idx", index_of(type, size).bytes());
        check(directory / "a.bin", "auto");
        check(directory / "a.idx", "auto");
        check(directory / "a.bin", "megatron");
        check(directory / "a.*", "auto");  // both names are one data set
    };
    check_type(1, 1, raw<std::uint8_t>(stored));
    check_type(2, 1, raw<std::int8_t>(stored));
    check_type(3, 2, raw<std::int16_t>(stored));
    check_type(4, 4, raw<std::int32_t>(stored));
    check_type(5, 8, raw<std::int64_t>(stored));
    check_type(8, 2, raw<std::uint16_t>(stored));
    Index with_modes = index_of(8, 2);
    with_modes.modes = std::string(5, '\0');
    write_file(directory / "a.idx", with_modes.bytes());
    check(directory / "a.bin", "auto");
    // Negative ids are no tokens
    write_file(directory / "n.bin", raw<std::int32_t>({3, -1}));
    write_file(directory / "n.idx", Index{.type = 4, .lengths = {2}, .pointers = {0}, .documents = {0, 1}}.bytes());
    CHECK(refusal(directory / "n.idx").says("token 1 (number 1 of document 0) is -1"));
}

TEST_CASE("Megatron's files with many sequences") {
    const TemporaryDirectory directory;
    Index index;
    std::vector<std::int64_t> tokens;
    index.documents = {0};
    for (int s = 0; s < 5000; ++s) {
        index.pointers.push_back(2 * static_cast<std::int64_t>(tokens.size()));
        index.lengths.push_back(s % 5);
        for (int i = 0; i < s % 5; ++i) {
            tokens.push_back(static_cast<std::int64_t>(tokens.size()) % 60000);
        }
        if (s % 3 == 2 || s == 4999) {
            index.documents.push_back(s + 1);
        }
    }
    write_file(directory / "a.bin", raw<std::uint16_t>(tokens));
    write_file(directory / "a.idx", index.bytes());
    TokenData data = TokenData::open({directory / "a.bin"}, "auto", 60000);
    const std::vector<std::int32_t> read = read_all(data);
    CHECK(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
    for (std::int64_t d = 0; d < data.documents(); ++d) {
        const auto sequence = static_cast<std::size_t>(index.documents[static_cast<std::size_t>(d)]);
        REQUIRE(data.document_range(d).first == index.pointers[sequence] / 2);
    }
}

TEST_CASE("Megatron's files that are not what they should be") {
    const TemporaryDirectory directory;
    const std::string path = directory / "a.bin";
    const Index good{.lengths = {2, 2}, .pointers = {0, 4}, .documents = {0, 1, 2}};
    write_file(path, raw<std::uint16_t>({1, 2, 3, 4}));
    write_file(directory / "a.idx", good.bytes());
    CHECK(refusal(path).code == ExitCode::ok);
    const auto refused_bytes = [&](const std::string& bytes) {
        write_file(directory / "a.idx", bytes);
        const Caught error = refusal(path, "megatron");
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("a.idx"));
        return error;
    };
    const auto refused = [&](auto change) {
        Index index = good;
        change(index);
        return refused_bytes(index.bytes());
    };
    CHECK(refused([](Index& i) { i.magic[0] = 'X'; }).says("MMIDIDX"));
    CHECK(refused([](Index& i) { i.version = 2; }).says("version 2"));
    CHECK(refused([](Index& i) { i.type = 7; }).says("floating-point"));
    CHECK(refused([](Index& i) { i.type = 9; }).says("type code 9"));
    CHECK(refused([](Index& i) { i.type = 4; }).says("of " + path));  // the sequences leave the .bin
    for (const std::uint64_t lie : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0},
                                    (std::uint64_t{1} << 63) + 2, ~std::uint64_t{0} / 12 + 1}) {
        CHECK(refused([&](Index& i) { i.sequences = lie; }).says("truncated or damaged"));
        CHECK(refused([&](Index& i) { i.entries = lie == 3 ? 0 : lie; }).says("truncated or damaged"));
    }
    CHECK(refused([](Index& i) { i.lengths[1] = -2; }).says("sequence 1 has -2 tokens"));
    CHECK(refused([](Index& i) { i.lengths[1] = 3; }).says("sequence 1 is bytes 4 to 4 + 6"));
    CHECK(refused([](Index& i) { i.lengths[1] = 1; }).says("do not belong together"));
    CHECK(refused([](Index& i) { i.pointers[0] = -2; }).says("sequence 0 is bytes -2"));
    CHECK(refused([](Index& i) { i.pointers[1] = INT64_MAX; }).says("sequence 1 is bytes"));
    CHECK(refused([](Index& i) { i.documents = {0, 1}; }).says("documents are sequences 0 to 1"));
    CHECK(refused([](Index& i) { i.documents = {1, 2}; }).says("documents are sequences 1 to 2"));
    CHECK(refused([](Index& i) { i.documents = {0, 7, 2}; }).says("document 1 begins at sequence 7 of 2"));
    CHECK(refused([](Index& i) { i.documents = {0, -1, 2}; }).says("begins at sequence -1"));
    CHECK(refused([](Index& i) { i.modes = std::string("\0\1", 2); }).says("sequence 1 has mode 1"));
    for (std::size_t size = 0; size < good.bytes().size(); ++size) {
        refused_bytes(good.bytes().substr(0, size));
    }
    refused_bytes(good.bytes() + "x");
    std::filesystem::remove(directory / "a.idx");
    CHECK(refusal(path, "megatron").code == ExitCode::missing_input);
    write_file(directory / "b.idx", good.bytes());
    CHECK(refusal(directory / "b.idx").says("b.bin"));
}

TEST_CASE("data of more than 2^31 tokens and bytes") {
    const TemporaryDirectory directory;
    // A hole of 5 GiB that takes no space
    const std::int64_t bytes = (std::int64_t{5} << 30) + 3;
    write_file(directory / "a.txt", "x");
    std::filesystem::resize_file(directory / "a.txt", static_cast<std::uintmax_t>(bytes));
    {
        std::fstream file(directory / "a.txt", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(bytes - 2);
        file << "yz";
    }
    write_file(directory / "b.txt", "end");
    TokenData data = TokenData::open({directory / "a.txt", directory / "b.txt"}, "auto", 256);
    CHECK(data.tokens() == bytes + 3);
    std::vector<std::int32_t> tokens(6);
    data.read(bytes - 3, 6, tokens.data());
    CHECK(tokens == std::vector<std::int32_t>{0, 'y', 'z', 'e', 'n', 'd'});
    CHECK(data.document_at(bytes - 1) == 0);
    CHECK(data.document_at(bytes) == 1);
    CHECK(data.longest_document() == bytes);

    // HDF5: early allocation without writing makes the same hole
    const hsize_t many = (hsize_t{1} << 31) + 5;
    const hid_t file = H5Fcreate((directory / "a.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    const hid_t space = H5Screate_simple(1, &many, nullptr);
    const hid_t dataset = H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    const hsize_t place = many - 1;
    H5Sselect_elements(space, H5S_SELECT_SET, 1, &place);
    const hid_t one = H5Screate(H5S_SCALAR);
    const std::uint16_t id = 9;
    H5Dwrite(dataset, H5T_NATIVE_UINT16, one, space, H5P_DEFAULT, &id);
    H5Sclose(one);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(properties);
    put_dataset(file, "offsets", H5T_STD_I64LE, {0, 7, static_cast<std::int64_t>(many)});
    put_string(file, "format", "tessera.tokens");
    put_integer(file, "format_version", 1);
    H5Fclose(file);
    TokenData large = TokenData::open({directory / "a.h5"}, "auto", 256);
    CHECK(large.tokens() == static_cast<std::int64_t>(many));
    large.read(large.tokens() - 6, 6, tokens.data());
    CHECK(tokens == std::vector<std::int32_t>{0, 0, 0, 0, 0, 9});
    CHECK(large.document_at(large.tokens() - 1) == 1);

    // Megatron: sequences of 2^30 tokens, the pointer of the last beyond 2^32
    const Index index{.lengths = {1 << 30, 1 << 30, (1 << 30) + 2},
                      .pointers = {0, std::int64_t{1} << 31, std::int64_t{1} << 32},
                      .documents = {0, 3}};
    write_file(directory / "m.idx", index.bytes());
    write_file(directory / "m.bin", "");
    std::filesystem::resize_file(directory / "m.bin", (std::uintmax_t{3} << 31) + 4);
    TokenData pair = TokenData::open({directory / "m.bin"}, "auto", 256);
    CHECK(pair.tokens() == (std::int64_t{3} << 30) + 2);
    pair.read(pair.tokens() - 6, 6, tokens.data());
    CHECK(tokens == std::vector<std::int32_t>(6, 0));
}
