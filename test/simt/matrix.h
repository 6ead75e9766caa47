// load_matrix_x4 and mma_16x8x16 of a whole warp (PTX: ldmatrix.m8n8.x4, mma.sync.m16n8k16).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/simt.h"

namespace tessera::simt::emulated {

class Block;

void do_matrix_load(Block& block, int warp, Word word);
void do_mma(Block& block, int warp, Word word);

/// One element of d + a b as tensor cores of a compute capability sum it: products and d are aligned to the largest
/// exponent among them, cut to a number of fractional bits, summed exactly and rounded to fp32 toward zero. Ampere and
/// Ada add 8 products at a time and keep 24 bits, Hopper 16 and 25. (Fasi, Higham, Mikaitis and Pranesh, Numerical
/// behavior of NVIDIA tensor cores, 2021; MMA-Sim, 2025.)
[[nodiscard]] float truncated_sum(float d, const std::array<float, 16>& a, const std::array<float, 16>& b,
                                  int capability);

}  // namespace tessera::simt::emulated
