// What an update of an optimizer makes of one parameter: the bodies of the loops of optimizer_loops.h. For
// the .cu files of this folder that are compiled without contraction (-fmad=false).
#pragma once

#include <cuda_runtime.h>

#include <cfloat>

#include "kernels/optimizer_loops.h"

namespace muster::cuda {

__device__ inline float WithoutSubnormal(float moment) { return fabsf(moment) < FLT_MIN ? 0.0f : moment; }

/// Each returns the new parameter, from the old one and the sum of its gradient, and writes its slots.
__device__ inline float SgdElement(float parameter, float sum, GradientFactors by, float rate) {
  const float gradient = sum * by.scale + parameter * by.weight_decay;
  return parameter - rate * gradient;
}

__device__ inline float MomentumElement(float parameter, float sum, GradientFactors by, float rate,
                                        float momentum, bool nesterov, bool clear_subnormals,
                                        float* velocity) {
  const float of_gradient = nesterov ? 1 : 0, of_velocity = nesterov ? momentum : 1;
  const float gradient = sum * by.scale + parameter * by.weight_decay;
  const float v = momentum * *velocity + gradient;
  *velocity = clear_subnormals ? WithoutSubnormal(v) : v;
  return parameter - rate * (of_gradient * gradient + of_velocity * v);
}

__device__ inline float AdagradElement(float parameter, float sum, GradientFactors by, float rate,
                                       float* accumulator) {
  const float gradient = sum * by.scale + parameter * by.weight_decay;
  const float a = *accumulator + gradient * gradient;
  *accumulator = a;
  return parameter - rate * gradient / sqrtf(a);
}

__device__ inline float AdamElement(float parameter, float sum, GradientFactors by, const AdamFactors& adam,
                                    bool clear_subnormals, float* first_moment, float* second_moment) {
  const float gradient = sum * by.scale + parameter * by.weight_decay;
  const float m = adam.beta1 * *first_moment + adam.one_minus_beta1 * gradient;
  const float v = adam.beta2 * *second_moment + adam.one_minus_beta2 * (gradient * gradient);
  *first_moment = clear_subnormals ? WithoutSubnormal(m) : m;
  *second_moment = clear_subnormals ? WithoutSubnormal(v) : v;
  return parameter - adam.rate * m / (sqrtf(v * adam.second_correction) + adam.epsilon);
}

__device__ inline float FtrlElement(float parameter, float sum, const FtrlFactors& by, float* accumulator,
                                    float* linear) {
  const float gradient = sum * by.scale;
  const float old_root = sqrtf(*accumulator);
  const float a = *accumulator + gradient * gradient;
  const float root = sqrtf(a);
  const float z = *linear + gradient - (root - old_root) * by.inverse_rate * parameter;
  *accumulator = a;
  *linear = z;
  const float value = (copysignf(by.l1, z) - z) / (root * by.inverse_rate + by.twice_l2);
  const float shrunk = fabsf(z) <= by.l1 ? 0.0f : value;
  return gradient == 0 ? parameter : shrunk;
}

}  // namespace muster::cuda
