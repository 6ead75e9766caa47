// What the words that a warp does together do, once all lanes are there.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace tessera::simt::emulated {

class Block;
struct Thread;

/// Does `word` for the lanes of `mask` of the warp of `last`, the thread that came last.
void do_warp_word(Block& block, Thread& last, Word word, unsigned mask);

}  // namespace tessera::simt::emulated
