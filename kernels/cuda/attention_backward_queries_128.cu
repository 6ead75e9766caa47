#include "kernels/cuda/attention_backward_queries.h"

namespace tessera::cuda {

template void launch_attention_backward_queries<bfloat16, 96>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<float16, 96>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<bfloat16, 128>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<float16, 128>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
