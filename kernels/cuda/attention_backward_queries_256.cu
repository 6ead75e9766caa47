#include "kernels/cuda/attention_backward_queries.h"

namespace tessera::cuda {

template void launch_attention_backward_queries<bfloat16, 256>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<float16, 256>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
