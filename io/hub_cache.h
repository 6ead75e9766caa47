// Where a model lies on this machine: a directory, or an entry of the local Hugging Face cache.
#pragma once

#include <string>

namespace tessera {

/// The directory of `model_name`: a path, or a hub name (org/name[@revision]) that is in the local Hugging Face cache
/// (HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub). Throws missing_input that
/// says what was looked for and, for a hub name, the command that downloads it. Nothing is downloaded.
[[nodiscard]] std::string find_model_directory(const std::string& model_name);

}  // namespace tessera
