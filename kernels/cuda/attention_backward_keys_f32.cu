#include "kernels/cuda/attention_backward_keys.h"

namespace tessera::cuda {

template void launch_attention_backward_keys<float, 64>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<float, 128>(simt::Stream, const BackwardCall&);
template void launch_attention_backward_keys<float, 256>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
