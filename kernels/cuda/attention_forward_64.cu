#include "kernels/cuda/attention_forward.h"

namespace tessera::cuda {

template void launch_attention_forward<bfloat16, 32>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float16, 32>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<bfloat16, 64>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float16, 64>(simt::Stream, const ForwardCall&);

}  // namespace tessera::cuda
