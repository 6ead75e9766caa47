#include "kernels/cuda/attention_forward.h"

namespace tessera::cuda {

template void launch_attention_forward<float, 64>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float, 128>(simt::Stream, const ForwardCall&);
template void launch_attention_forward<float, 256>(simt::Stream, const ForwardCall&);

}  // namespace tessera::cuda
