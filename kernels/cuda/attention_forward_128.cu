#include "kernels/cuda/attention_forward.h"

namespace tessera::cuda {

template void launch_attention_forward<bfloat16, 96>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float16, 96>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<bfloat16, 128>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float16, 128>(simt::Stream, const ForwardCall&);

}  // namespace tessera::cuda
