#include "io/rows.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <random>
#include <sstream>

#include "io/row_order.h"
#include "test/io/token_files.h"

using namespace tessera;
using namespace tessera::test;

namespace {

struct Step {
    std::int64_t tokens = 0;
    std::int64_t targets = 0;
};

/// A number behind `"key": ` in a line of JSON.
std::int64_t number(const std::string& line, const std::string& key) {
    const std::size_t at = line.find('"' + key + "\": ");
    REQUIRE(at != std::string::npos);
    return std::stoll(line.substr(at + key.size() + 4));
}

/// What a case of the goldens says of the inputs so far and the targets of each step.
std::vector<Step> golden_steps(const std::string& name) {
    std::ifstream file("goldens/" + name + "/expected/metrics.jsonl");
    std::vector<Step> steps;
    for (std::string line; std::getline(file, line);) {
        steps.push_back({number(line, "tokens"), number(line, "targets")});
    }
    REQUIRE_FALSE(steps.empty());
    return steps;
}

TokenData golden_data(const std::string& name, const std::vector<std::string>& files) {
    std::vector<std::string> paths;
    for (const std::string& file : files) {
        paths.push_back("goldens/" + name + "/" + file);
    }
    return TokenData::open(paths, "auto", 256);
}

MicroBatch all_rows(Rows& rows) {
    MicroBatch batch;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
        rows.append(row, batch);
    }
    return batch;
}

struct Case {
    std::string name;
    std::vector<std::string> files;
    std::string packing;
    std::int64_t length;
    std::int64_t batch;
    std::string too_long = "error";
};

using Documents = std::vector<std::vector<std::int64_t>>;

/// One row of a packing, spelt out: per input its token, position and segment, and what it predicts (-1: nothing).
struct PlainRow {
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> segments;  // lengths
    std::vector<std::int64_t> targets;
    bool operator==(const PlainRow&) const = default;
};

PlainRow plain(Rows& rows, std::int64_t row) {
    MicroBatch batch;
    rows.append(row, batch);
    REQUIRE(batch.rows == 1);
    PlainRow out;
    out.tokens.assign(batch.tokens.begin(), batch.tokens.end());
    out.positions.assign(batch.positions.begin(), batch.positions.end());
    for (std::size_t s = 0; s + 1 < batch.starts.size(); ++s) {
        out.segments.push_back(batch.starts[s + 1] - batch.starts[s]);
    }
    out.targets.assign(batch.tokens.size(), -1);
    REQUIRE(batch.target_tokens.size() == batch.target_rows.size());
    REQUIRE(batch.target_weights == std::vector<float>(batch.target_rows.size(), 1.0F));
    for (std::size_t t = 0; t < batch.target_rows.size(); ++t) {
        REQUIRE((t == 0 || batch.target_rows[t] > batch.target_rows[t - 1]));
        out.targets.at(static_cast<std::size_t>(batch.target_rows[t])) = batch.target_tokens[t];
    }
    return out;
}

// The packings again, from their description alone and with no thought of speed. Tokens are all different, so a mask
// can be a set of tokens: here, tokens that divide by 5 are no targets.
std::int64_t target(std::int64_t token) {
    return token % 5 == 0 ? -1 : token;
}

std::vector<PlainRow> pack_stream(const Documents& documents, std::int64_t length, bool bounds) {
    std::vector<std::int64_t> stream;
    std::vector<std::int64_t> owner;
    for (std::size_t d = 0; d < documents.size(); ++d) {
        for (const std::int64_t token : documents[d]) {
            stream.push_back(token);
            owner.push_back(bounds ? static_cast<std::int64_t>(d) : 0);
        }
    }
    std::vector<PlainRow> rows;
    for (std::size_t first = 0; first + static_cast<std::size_t>(length) < stream.size();
         first += static_cast<std::size_t>(length)) {
        PlainRow row;
        for (std::size_t i = first; i < first + static_cast<std::size_t>(length); ++i) {
            const bool begins = i == first || owner[i] != owner[i - 1];
            if (begins) {
                row.segments.push_back(0);
            }
            ++row.segments.back();
            row.tokens.push_back(stream[i]);
            row.positions.push_back(begins ? 0 : row.positions.back() + 1);
            row.targets.push_back(owner[i + 1] == owner[i] ? target(stream[i + 1]) : -1);
        }
        rows.push_back(row);
    }
    return rows;
}

void place(PlainRow& row, const std::vector<std::int64_t>& document) {
    row.segments.push_back(static_cast<std::int64_t>(document.size()) - 1);
    for (std::size_t i = 0; i + 1 < document.size(); ++i) {
        row.tokens.push_back(document[i]);
        row.positions.push_back(static_cast<std::int64_t>(i));
        row.targets.push_back(target(document[i + 1]));
    }
}

std::vector<PlainRow> pack_whole(Documents documents, std::int64_t length, bool fit, bool cut) {
    const auto limit = static_cast<std::size_t>(length) + 1;
    Documents kept;
    for (std::vector<std::int64_t>& document : documents) {
        if (document.size() > limit && cut) {
            document.resize(limit);
        }
        if (document.size() >= 2 && document.size() <= limit) {
            kept.push_back(document);
        }
    }
    std::vector<PlainRow> rows;
    if (fit) {
        std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    }
    for (const std::vector<std::int64_t>& document : kept) {
        PlainRow* best = nullptr;
        for (PlainRow& row : rows) {
            const bool takes = row.tokens.size() + document.size() <= limit;
            if (fit && takes && (best == nullptr || row.tokens.size() > best->tokens.size())) {
                best = &row;
            }
        }
        place(best != nullptr ? *best : rows.emplace_back(), document);
    }
    return rows;
}

}  // namespace

TEST_CASE("inputs and targets of each step are those of the golden cases") {
    const auto c = GENERATE(values<Case>({
        {"14_accumulation", {"tokens_a.h5", "tokens_b.h5"}, "concat", 16, 4},
        {"18_packing_documents", {"tokens.h5"}, "documents", 16, 4},
        {"19_packing_pad", {"tokens.h5"}, "pad", 12, 2, "cut"},
        {"20_loss_mask", {"tokens.h5"}, "concat", 12, 2},
        {"22_epochs", {"tokens.h5"}, "concat", 20, 3},
        {"26_bytes", {"a.txt", "b.txt"}, "concat", 48, 2},
        {"27_packing_best_fit", {"tokens.h5"}, "best_fit", 20, 2, "cut"},
    }));
    INFO(c.name);
    TokenData data = golden_data(c.name, c.files);
    Rows rows(data, c.packing, c.length, c.too_long);
    const RowOrder order(rows.count(), 42, false);
    std::int64_t tokens = 0;
    std::int64_t step = 0;
    for (const Step& expected : golden_steps(c.name)) {
        MicroBatch batch;
        for (std::int64_t i = 0; i < c.batch; ++i) {
            rows.append(order.row_at(step * c.batch + i), batch);
        }
        tokens += batch.token_count();
        INFO("step " << step + 1);
        CHECK(tokens == expected.tokens);
        CHECK(batch.target_count() == expected.targets);
        CHECK(batch.rows == c.batch);
        ++step;
    }
    if (c.name == "22_epochs") {  // two epochs; the last batch reaches into a third
        CHECK(step == steps_of_epochs(rows.count(), 2, c.batch));
        CHECK(step * c.batch > 2 * rows.count());
    }
}

TEST_CASE("all rows of an evaluation set, with its mask") {
    TokenData data = golden_data("23_eval", {"eval.h5"});
    Rows rows(data, "concat", 20, "error");
    CHECK(all_rows(rows).target_count() == 54);  // eval_targets of the case
}

TEST_CASE("packings of random documents are those of their description") {
    const TemporaryDirectory directory;
    std::mt19937 random(3);
    for (int round = 0; round < 60; ++round) {
        const std::int64_t length = 1 + static_cast<std::int64_t>(random() % 24);
        const bool masked = round % 2 == 0;
        Documents documents(1 + random() % 60);
        std::vector<std::int64_t> split = {0};
        std::int64_t token = 1;
        for (std::vector<std::int64_t>& document : documents) {
            const std::size_t size = random() % 4 == 0 ? random() % 3 : random() % 40;
            for (std::size_t i = 0; i < size; ++i, ++token) {
                token += !masked && token % 5 == 0 ? 1 : 0;  // without a mask every token must be a target
                document.push_back(token);
            }
        }
        // Two files, so that rows cross from one to the other
        const std::size_t half = random() % (documents.size() + 1);
        for (int f = 0; f < 2; ++f) {
            TokenFile file{.token_type = H5T_STD_U32LE};
            file.offsets = {0};
            std::vector<std::int64_t> mask;
            for (std::size_t d = f == 0 ? 0 : half; d < (f == 0 ? half : documents.size()); ++d) {
                for (const std::int64_t value : documents[d]) {
                    file.tokens.push_back(value);
                    mask.push_back(value % 5 == 0 ? 0 : 1);
                }
                file.offsets.push_back(static_cast<std::int64_t>(file.tokens.size()));
            }
            if (masked) {
                file.mask = mask;
            }
            write_tokens(directory / (f == 0 ? "a.h5" : "b.h5"), file);
        }
        if (token == 1) {
            continue;
        }
        TokenData data = TokenData::open({directory / "a.h5", directory / "b.h5"}, "auto", 100000);
        const auto check = [&](const std::string& packing, const std::string& too_long,
                               const std::vector<PlainRow>& expected) {
            INFO("round " << round << " " << packing << " " << too_long << ", rows of " << length);
            if (expected.empty()) {
                CHECK(caught([&] { Rows rows(data, packing, length, too_long); }).code == ExitCode::bad_data);
                return;
            }
            Rows rows(data, packing, length, too_long);
            REQUIRE(rows.count() == static_cast<std::int64_t>(expected.size()));
            std::int64_t most = 0;
            std::int64_t longest = 0;
            for (std::int64_t row = rows.count() - 1; row >= 0; --row) {
                const PlainRow& want = expected[static_cast<std::size_t>(row)];
                REQUIRE(plain(rows, row) == want);
                most = std::max(most, static_cast<std::int64_t>(want.tokens.size()));
                longest = std::max(longest, *std::max_element(want.segments.begin(), want.segments.end()));
            }
            CHECK(rows.max_tokens_per_row() == most);
            CHECK(rows.longest_segment() >= longest);
            CHECK(rows.longest_segment() <= length);
        };
        check("concat", "error", pack_stream(documents, length, false));
        check("documents", "error", pack_stream(documents, length, true));
        for (const bool cut : {false, true}) {
            check("pad", cut ? "cut" : "drop", pack_whole(documents, length, false, cut));
            check("best_fit", cut ? "cut" : "drop", pack_whole(documents, length, true, cut));
        }
    }
}

TEST_CASE("rows of a batch are beside each other") {
    TokenData data = golden_data("18_packing_documents", {"tokens.h5"});
    Rows rows(data, "documents", 16, "error");
    const MicroBatch batch = all_rows(rows);
    CHECK(batch.rows == rows.count());
    CHECK(batch.token_count() == 16 * rows.count());
    CHECK(batch.starts.back() == batch.token_count());
    CHECK(std::is_sorted(batch.target_rows.begin(), batch.target_rows.end()));
    for (std::size_t t = 0; t < batch.target_rows.size(); ++t) {
        const auto row = static_cast<std::size_t>(batch.target_rows[t]);
        if (row % 16 != 15) {  // within a row the target is the next input
            CHECK(batch.tokens[row + 1] == batch.target_tokens[t]);
        }
    }
}

TEST_CASE("what auto means depends on the mask") {
    TokenData masked = golden_data("20_loss_mask", {"tokens.h5"});
    TokenData one_masked = golden_data("14_accumulation", {"tokens_b.h5", "tokens_a.h5"});
    TokenData plain_data = golden_data("13_adamw", {"tokens.h5"});
    CHECK(resolve_packing("auto", masked) == "best_fit");
    CHECK(resolve_packing("auto", one_masked) == "best_fit");
    CHECK(resolve_packing("auto", plain_data) == "concat");
    CHECK(resolve_packing("pad", masked) == "pad");
}

TEST_CASE("documents that are too long are named") {
    const TemporaryDirectory directory;
    write_tokens(directory / "a.h5", {.tokens = count_up(20), .offsets = {0, 5, 11, 11, 20}});
    write_tokens(directory / "b.h5", {.tokens = count_up(3)});
    TokenData data = TokenData::open({directory / "b.h5", directory / "a.h5"}, "auto", 100);
    for (const char* packing : {"pad", "best_fit"}) {
        const Caught error = caught([&] { Rows rows(data, packing, 4, "error"); });
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("a.h5, document 1 has 6 tokens, more than the 5 that fit"));
        CHECK(error.says("2 of 5 documents are too long (the longest has 9)"));
        CHECK(Rows(data, packing, 4, "cut").count() == 4);
        CHECK(Rows(data, packing, 8, "error").max_tokens_per_row() == 8);
    }
    CHECK(Rows(data, "pad", 4, "drop").count() == 2);
    CHECK(caught([&] { Rows rows(data, "best_fit", 1, "drop"); }).says("does not fill one row"));
    CHECK(caught([&] { Rows rows(data, "best_fit", 4, "keep"); }).code == ExitCode::usage);
    CHECK(caught([&] { Rows rows(data, "boxes", 4, "cut"); }).code == ExitCode::usage);
    CHECK(caught([&] { Rows rows(data, "concat", 0, "cut"); }).code == ExitCode::usage);
}

TEST_CASE("data shorter than a row says what is needed") {
    const TemporaryDirectory directory;
    write_tokens(directory / "a.h5", {.tokens = count_up(16)});
    TokenData data = TokenData::open({directory / "a.h5"}, "auto", 100);
    for (const char* packing : {"concat", "documents"}) {
        const Caught error = caught([&] { Rows rows(data, packing, 16, "error"); });
        CHECK(error.code == ExitCode::bad_data);
        CHECK(error.says("the data has 16 tokens"));
        CHECK(error.says("needs 17"));
        CHECK(Rows(data, packing, 15, "error").count() == 1);
    }
    CHECK(Rows(data, "pad", std::int64_t{1} << 40, "error").count() == 1);
}

TEST_CASE("bad ids are found when their row is read") {
    const TemporaryDirectory directory;
    write_tokens(directory / "a.h5", {.tokens = {1, 2, 3, 4, 5, 6, 7, 999, 9}});
    TokenData data = TokenData::open({directory / "a.h5"}, "auto", 100);
    Rows rows(data, "concat", 4, "error");
    MicroBatch batch;
    rows.append(0, batch);
    CHECK(caught([&] { rows.append(1, batch); }).says("a.h5: token 7"));
}

TEST_CASE("many documents are packed quickly") {
    const TemporaryDirectory directory;
    std::mt19937 random(4);
    std::vector<std::int64_t> offsets = {0};
    for (int d = 0; d < 1'000'000; ++d) {
        offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % 2000));
    }
    // Only the lengths matter: text that is a hole
    const auto tokens = static_cast<hsize_t>(offsets.back());
    const hid_t file = H5Fcreate((directory / "a.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    const hid_t space = H5Screate_simple(1, &tokens, nullptr);
    H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(properties);
    put_dataset(file, "offsets", H5T_STD_I64LE, offsets);
    put_string(file, "format", "tessera.tokens");
    put_integer(file, "format_version", 1);
    H5Fclose(file);

    TokenData data = TokenData::open({directory / "a.h5"}, "auto", 100);
    const auto begin = std::chrono::steady_clock::now();
    Rows rows(data, "best_fit", 2048, "error");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    WARN("best_fit of a million documents: " << seconds.count() << " s");
    // Inputs per row: best fit leaves little empty with so many short documents.
    std::int64_t inputs = 0;
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
        inputs += std::max<std::int64_t>(offsets[d + 1] - offsets[d] - 1, 0);
    }
    CHECK(static_cast<double>(inputs) > 0.99 * 2048.0 * static_cast<double>(rows.count()));
    CHECK(static_cast<double>(inputs) <= 2048.0 * static_cast<double>(rows.count()));
    CHECK(seconds.count() < 30);
}
