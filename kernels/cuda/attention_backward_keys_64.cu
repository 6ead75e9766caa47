#include "kernels/cuda/attention_backward_keys.h"

namespace tessera::cuda {

template void launch_attention_backward_keys<bfloat16, 32>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<float16, 32>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<bfloat16, 64>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<float16, 64>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
