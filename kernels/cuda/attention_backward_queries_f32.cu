#include "kernels/cuda/attention_backward_queries.h"

namespace tessera::cuda {

template void launch_attention_backward_queries<float, 64>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<float, 128>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_queries<float, 256>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
