#include "kernels/cuda/embedding.h"

#include "kernels/cuda/elementwise.h"

namespace tessera::cuda {

void embedding_forward(simt::Stream stream, Matrix out, ConstMatrix table, const std::int32_t* ids) {
    gather_rows(stream, out, table, ids);
}

void embedding_backward(simt::Stream stream, Matrix dtable, ConstMatrix dout, const std::int32_t* order,
                        const std::int32_t* sorted_ids) {
    scatter_add_rows(stream, dtable, dout, order, sorted_ids);
}

}  // namespace tessera::cuda
