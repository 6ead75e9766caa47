#include "kernels/cuda/attention_forward.h"

namespace tessera::cuda {

template void launch_attention_forward<bfloat16, 256>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float16, 256>(simt::Stream, const ForwardCall&);

}  // namespace tessera::cuda
