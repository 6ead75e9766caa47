// A checkpoint as a Hugging Face directory.
#pragma once

#include <string>

#include "core/base/dtype.h"
#include "core/job.h"
#include "zero/sharded_checkpoint.h"

namespace tessera {

/// Whether a training job writes Hugging Face directories: at its end, and where export_interval says.
[[nodiscard]] bool makes_exports(const Job& job);

/// "fp32", "bf16" or "fp16" as a dtype.
[[nodiscard]] DType export_dtype(const std::string& name);

/// Writes the weights of a checkpoint, one tensor at a time, with what the model's directory has besides them.
void export_checkpoint(ShardedCheckpoint& checkpoint, const std::string& out_directory, DType dtype);

}  // namespace tessera
