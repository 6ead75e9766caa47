// A checkpoint as a Hugging Face directory.
#pragma once

#include <string>

#include "core/base/dtype.h"
#include "zero/sharded_checkpoint.h"

namespace tessera {

/// "fp32", "bf16" or "fp16" as a dtype.
[[nodiscard]] DType export_dtype(const std::string& name);

/// Writes the weights of a checkpoint, one tensor at a time, with what the model's directory has besides them.
void export_checkpoint(ShardedCheckpoint& checkpoint, const std::string& out_directory, DType dtype);

}  // namespace tessera
