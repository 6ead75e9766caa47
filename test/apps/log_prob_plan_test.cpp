#include "apps/log_prob_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "core/base/error.h"
#include "test/io/temporary_directory.h"

using namespace tessera;

namespace {

/// Text files of the given lengths, each a document.
class Documents {
  public:
    explicit Documents(const std::vector<int>& lengths) {
        std::mt19937 random(1);
        std::vector<std::string> paths;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            std::string text;
            for (int n = 0; n < lengths[i]; ++n) {
                text += static_cast<char>('a' + random() % 26);
            }
            texts.push_back(text);
            paths.push_back(folder_.write("d" + std::to_string(100 + i) + ".txt", text));
        }
        data = std::make_unique<TokenData>(TokenData::open(paths, "bytes", 256));
    }

    std::vector<std::string> texts;
    std::unique_ptr<TokenData> data;

  private:
    TemporaryDirectory folder_;
};

}  // namespace

TEST_CASE("every token but a document's first is scored once, with as much context as its window has") {
    Documents documents({5, 0, 1, 40, 2, 17, 16, 33, 100});
    Job::LogProb options;
    options.window = GENERATE(0, 1, 7, 16);
    options.stride = GENERATE(0, 1, 5);
    options.max_token_len = GENERATE(0, 1, 20, 64);
    options.train_micro_batch_size_per_gpu = 3;
    if (options.stride > options.window) {
        return;
    }
    CAPTURE(options.window, options.stride, options.max_token_len);
    const LogProbPlan plan(options, 1000, *documents.data);
    const std::int64_t stride = options.stride > 0 ? options.stride : options.window;

    std::map<std::pair<std::int64_t, std::int64_t>, int> scored;
    for (std::int64_t b = 0; b < plan.batches(); ++b) {
        const MicroBatch batch = plan.fetch(b, *documents.data);
        CHECK(batch.token_count() <= plan.max_tokens());
        if (options.max_token_len > 0 && plan.end_piece(b) - plan.first_piece(b) > 1) {
            CHECK(batch.token_count() <= options.max_token_len);
        }
        if (options.max_token_len == 0) {
            CHECK(plan.end_piece(b) - plan.first_piece(b) <= 3);
        }
        std::size_t target = 0;
        for (std::int64_t p = plan.first_piece(b); p < plan.end_piece(b); ++p) {
            const ScoredPiece& piece = plan.pieces()[static_cast<std::size_t>(p)];
            const std::string& text = documents.texts[static_cast<std::size_t>(piece.sequence)];
            const auto segment = static_cast<std::size_t>(p - plan.first_piece(b));
            CHECK(batch.starts[segment + 1] - batch.starts[segment] == piece.inputs);
            CHECK((options.window == 0 || piece.inputs <= options.window));
            for (std::int64_t i = 0; i < piece.inputs; ++i) {
                const auto row = static_cast<std::size_t>(batch.starts[segment] + i);
                REQUIRE(batch.tokens[row] == text[static_cast<std::size_t>(piece.first_input + i)]);
                REQUIRE(batch.positions[row] == i);
            }
            for (std::int64_t v = 0; v < piece.values; ++v, ++target) {
                const std::int64_t value = piece.first_value + v;
                ++scored[{piece.sequence, value}];
                REQUIRE(batch.target_rows[target] == batch.starts[segment] + value - piece.first_input);
                REQUIRE(batch.target_tokens[target] == text[static_cast<std::size_t>(value + 1)]);
                // The context of a value is all of the document that a window and its stride leave.
                if (options.window > 0) {
                    CHECK(value - piece.first_input >= std::min(value, options.window - stride));
                } else {
                    CHECK(piece.first_input == 0);
                }
            }
        }
        CHECK(target == batch.target_rows.size());
    }
    std::size_t values = 0;
    for (std::size_t d = 0; d < documents.texts.size(); ++d) {
        const auto tokens = static_cast<std::int64_t>(documents.texts[d].size());
        CHECK(plan.offsets()[d + 1] - plan.offsets()[d] == std::max<std::int64_t>(tokens - 1, 0));
        values += static_cast<std::size_t>(std::max<std::int64_t>(tokens - 1, 0));
    }
    CHECK(scored.size() == values);
    CHECK(std::ranges::all_of(scored, [](const auto& one) { return one.second == 1; }));
}

TEST_CASE("a document beyond the model's positions is refused by number, and so is such a window") {
    Documents documents({5, 12, 40, 13});
    Job::LogProb options;
    CHECK_NOTHROW(LogProbPlan(options, 39, *documents.data));
    try {
        LogProbPlan(options, 11, *documents.data);
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::bad_data);
        CHECK_THAT(error.what(), Catch::Contains("40 tokens") && Catch::Contains("11 positions") &&
                                     Catch::Contains("2 such documents") && Catch::Contains("log_prob.window"));
    }
    options.window = 12;
    CHECK_THROWS_AS(LogProbPlan(options, 11, *documents.data), Error);
}

TEST_CASE("documents without values make no micro-batch") {
    Documents documents({1, 0, 1});
    const LogProbPlan plan(Job::LogProb{}, 100, *documents.data);
    CHECK(plan.batches() == 0);
    CHECK(plan.offsets() == std::vector<std::int64_t>{0, 0, 0, 0});
}
