#include "kernels/optimizer_loops.h"

#include <cfloat>
#include <cmath>

#include "kernels/vectorize.h"

// In every loop each element is read before it is written and none depends on another, also when `updated` is
// `parameters`: hence ivdep, without which the compiler compares the arrays' addresses or gives up.

namespace muster {
namespace {

// Apart from the updates, since in each of them it would take a tenth of Adam's time in vectors of AVX2.
MUSTER_VECTORIZE void ClearSubnormals(int64_t size, float* moments) {
  for (int64_t i = 0; i < size; ++i) moments[i] = std::abs(moments[i]) < FLT_MIN ? 0.0f : moments[i];
}

}  // namespace

MUSTER_VECTORIZE void SgdLoop(UpdateArrays arrays, GradientFactors factors, float rate) {
  const auto [size, parameters, gradient_sum, updated] = arrays;
  const auto [scale, weight_decay] = factors;
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradient_sum[i] * scale + parameters[i] * weight_decay;
    updated[i] = parameters[i] - rate * gradient;
  }
}

MUSTER_VECTORIZE void MomentumLoop(UpdateArrays arrays, GradientFactors factors, float rate, float momentum,
                                   bool nesterov, bool clear_subnormals, float* velocity) {
  const auto [size, parameters, gradient_sum, updated] = arrays;
  const auto [scale, weight_decay] = factors;
  // Two products with 0 and 1 are exact; a choice in the loop would keep it from running in vectors.
  const float of_gradient = nesterov ? 1 : 0, of_velocity = nesterov ? momentum : 1;
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradient_sum[i] * scale + parameters[i] * weight_decay;
    const float v = momentum * velocity[i] + gradient;
    velocity[i] = v;
    updated[i] = parameters[i] - rate * (of_gradient * gradient + of_velocity * v);
  }
  if (clear_subnormals) ClearSubnormals(size, velocity);
}

MUSTER_VECTORIZE void AdagradLoop(UpdateArrays arrays, GradientFactors factors, float rate,
                                  float* accumulator) {
  const auto [size, parameters, gradient_sum, updated] = arrays;
  const auto [scale, weight_decay] = factors;
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradient_sum[i] * scale + parameters[i] * weight_decay;
    const float a = accumulator[i] + gradient * gradient;
    accumulator[i] = a;
    updated[i] = parameters[i] - rate * gradient / std::sqrt(a);
  }
}

MUSTER_VECTORIZE void AdamLoop(UpdateArrays arrays, GradientFactors factors, AdamFactors adam,
                               bool clear_subnormals, float* first_moment, float* second_moment) {
  const auto [size, parameters, gradient_sum, updated] = arrays;
  const auto [scale, weight_decay] = factors;
  const auto [rate, beta1, one_minus_beta1, beta2, one_minus_beta2, second_correction, epsilon] = adam;
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradient_sum[i] * scale + parameters[i] * weight_decay;
    const float m = beta1 * first_moment[i] + one_minus_beta1 * gradient;
    const float v = beta2 * second_moment[i] + one_minus_beta2 * (gradient * gradient);
    first_moment[i] = m;
    second_moment[i] = v;
    updated[i] = parameters[i] - rate * m / (std::sqrt(v * second_correction) + epsilon);
  }
  if (!clear_subnormals) return;
  ClearSubnormals(size, first_moment);
  ClearSubnormals(size, second_moment);
}

MUSTER_VECTORIZE void FtrlLoop(UpdateArrays arrays, FtrlFactors factors, float* accumulator, float* linear) {
  const auto [size, parameters, gradient_sum, updated] = arrays;
  const auto [scale, inverse_rate, l1, twice_l2] = factors;
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradient_sum[i] * scale;
    const float old_root = std::sqrt(accumulator[i]);
    const float a = accumulator[i] + gradient * gradient;
    const float root = std::sqrt(a);
    const float z = linear[i] + gradient - (root - old_root) * inverse_rate * parameters[i];
    accumulator[i] = a;
    linear[i] = z;
    const float value = (std::copysign(l1, z) - z) / (root * inverse_rate + twice_l2);
    // Not the other way round: what is NaN has to stay it.
    const float shrunk = std::abs(z) <= l1 ? 0.0f : value;
    updated[i] = gradient == 0 ? parameters[i] : shrunk;
  }
}

}  // namespace muster
