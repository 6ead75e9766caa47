// Token ids as text, by the tokenizer that belongs to a model: scripts/decode_tokens.py in a process of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Neighbouring tokens whose text is wanted apart from that of the others.
using Span = std::vector<std::int32_t>;

struct DecodedTokens {
    std::vector<std::vector<std::string>> texts;  // [sequence][span]
    std::string failure;                          // why there are none; empty where there are
};

/// The text of every span of every sequence. Python, its package tokenizers or the script may not be there: that is
/// no error but a `failure`.
[[nodiscard]] DecodedTokens decode_tokens(const std::string& tokenizer_path,
                                          const std::vector<std::vector<Span>>& sequences);

}  // namespace tessera
