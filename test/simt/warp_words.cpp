#include "test/simt/warp_words.h"

#include <bit>

#include "test/simt/block.h"
#include "test/simt/matrix.h"
#include "test/simt/races.h"

namespace tessera::simt::emulated {

namespace {

template <typename Body>
void for_lanes(unsigned mask, Body&& body) {
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        body(std::countr_zero(rest));
    }
}

template <typename Operands>
Operands& operands_of(Block& block, const Thread& last, int lane) {
    return *static_cast<Operands*>(block.thread(last.warp(), lane).operands);
}

/// The lane that `lane` reads from (PTX, shfl.sync, of the whole warp): numbers wrap, but what goes past the last lane
/// with shuffle_down gives the lane's own value.
int source_lane(Word word, int lane, int argument) {
    switch (word) {
        case Word::shuffle:
            return argument & (kWarp - 1);
        case Word::shuffle_xor:
            return lane ^ (argument & (kWarp - 1));
        default:
            return lane + (argument & (kWarp - 1)) < kWarp ? lane + (argument & (kWarp - 1)) : lane;
    }
}

void do_shuffle(Block& block, Thread& last, Word word, unsigned mask) {
    for_lanes(mask, [&](int lane) {
        auto& own = operands_of<ShuffleOperands>(block, last, lane);
        const int from = source_lane(word, lane, own.argument);
        if ((mask & (1U << from)) == 0) {
            const Thread& thread = block.thread(last.warp(), lane);
            block.fail(
                thread, thread.place,
                fmt::format("{} reads from lane {}, which is not in the mask {:#010x}", name_of(word), from, mask));
        }
        own.result = operands_of<ShuffleOperands>(block, last, from).value;
    });
}

void do_vote(Block& block, Thread& last, Word word, unsigned mask) {
    unsigned yes = 0;
    for_lanes(mask, [&](int lane) { yes |= operands_of<VoteOperands>(block, last, lane).predicate ? 1U << lane : 0U; });
    const unsigned result = word == Word::ballot ? yes : word == Word::any ? yes != 0 : yes == mask;
    for_lanes(mask, [&](int lane) { operands_of<VoteOperands>(block, last, lane).result = result; });
}

}  // namespace

void do_warp_word(Block& block, Thread& last, Word word, unsigned mask) {
    switch (word) {
        case Word::sync_warp:
            races().order_lanes(last.warp(), mask);
            break;
        case Word::shuffle:
        case Word::shuffle_xor:
        case Word::shuffle_down:
            do_shuffle(block, last, word, mask);
            break;
        case Word::any:
        case Word::all:
        case Word::ballot:
            do_vote(block, last, word, mask);
            break;
        case Word::load_matrix_x4:
        case Word::load_matrix_x4_transposed:
            do_matrix_load(block, last.warp(), word);
            break;
        case Word::mma_bfloat16:
        case Word::mma_float16:
            do_mma(block, last.warp(), word);
            break;
        case Word::none:
        case Word::sync_block:
        case Word::sync_named:
            break;  // no words of a warp
    }
}

}  // namespace tessera::simt::emulated
