// Parameters as a model reads them, when each rank updates its own pieces only.
#pragma once

#include "core/unit_memory.h"

namespace tessera {

class PublishedParameters : public ParameterSource {
  public:
    /// The own pieces have new values: all ranks exchange what each of them keeps whole. Returns while that is under
    /// way; acquire() waits for what it gives.
    virtual void publish() = 0;
};

}  // namespace tessera
