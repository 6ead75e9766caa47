#include "kernels/cuda/attention_backward_keys.h"

namespace tessera::cuda {

template void launch_attention_backward_keys<bfloat16, 256>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<float16, 256>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
