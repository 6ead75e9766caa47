// The numbers of a step of Adam or AdamW as loops and kernels use them.
#pragma once

#include <cmath>

#include "kernels/ops.h"

namespace tessera {

/// Computed in double and rounded once. With g = joined_decay * w + gradient_scale * gradient:
///   m = beta1 m + rest1 g; v = beta2 v + rest2 g^2; w = shrink * w + rate * m / (root * sqrt(v) + eps).
struct AdamCoefficients {
    explicit AdamCoefficients(const AdamStep& step)
        : gradient_scale(static_cast<float>(step.gradient_scale)),
          joined_decay(static_cast<float>(step.decoupled ? 0 : step.weight_decay)),
          shrink(static_cast<float>(step.decoupled ? 1 - step.lr * step.weight_decay : 1)),
          beta1(static_cast<float>(step.beta1)),
          rest1(static_cast<float>(1 - step.beta1)),
          beta2(static_cast<float>(step.beta2)),
          rest2(static_cast<float>(1 - step.beta2)),
          root(static_cast<float>(1 / std::sqrt(step.bias_correction2))),
          eps(static_cast<float>(step.eps)),
          rate(static_cast<float>(-step.lr / step.bias_correction1)) {}

    float gradient_scale;
    float joined_decay;
    float shrink;
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    float root;
    float eps;
    float rate;
};

}  // namespace tessera
