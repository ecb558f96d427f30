// The loops of the optimizers, over plain arrays of one length. For optimizer.cc and benchmarks.
//
// The updates are those of OptimizerKind (kernels/optimizer.h). Slots are read and written in place.
//
// A moment that decays, as those of units that are never active do, ends as a subnormal number, which
// rounding keeps above 0 and with which processors compute up to a hundred times slower. `clear_subnormals`:
// what is such a number after the update becomes 0; a NaN stays.
#pragma once

#include <cstdint>

namespace muster {

/// What one update reads and writes: arrays of `size` floats.
struct UpdateArrays {
  int64_t size = 0;
  const float* parameters = nullptr;
  const float* gradient_sum = nullptr;
  float* updated = nullptr;  // overlaps nothing else, but may be `parameters`
};

/// gradient = gradient_sum * scale + parameter * weight_decay
struct GradientFactors {
  float scale = 1;
  float weight_decay = 0;
};

void SgdLoop(UpdateArrays arrays, GradientFactors factors, float rate);

void MomentumLoop(UpdateArrays arrays, GradientFactors factors, float rate, float momentum, bool nesterov,
                  bool clear_subnormals, float* velocity);

void AdagradLoop(UpdateArrays arrays, GradientFactors factors, float rate, float* accumulator);

struct AdamFactors {
  float rate = 0;  // with the correction of the first moment
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float second_correction = 0;
  float epsilon = 0;
};
void AdamLoop(UpdateArrays arrays, GradientFactors factors, AdamFactors adam, bool clear_subnormals,
              float* first_moment, float* second_moment);

struct FtrlFactors {
  float scale = 1;  // of the gradient sum
  float inverse_rate = 0;
  float l1 = 0;
  float twice_l2 = 0;
};
void FtrlLoop(UpdateArrays arrays, FtrlFactors factors, float* accumulator, float* linear);

/// The numbers that change from one update to the next, for any of the loops.
struct StepFactors {
  float rate = 0;          // sgd, momentum, adagrad
  float inverse_rate = 0;  // ftrl
  AdamFactors adam;
  bool clear_subnormals = false;  // momentum, adam
};

}  // namespace muster
