// The updates of optimizers on a CUDA device: those of kernels/optimizer_loops.h, with the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/optimizer_loops.h"

namespace muster::cuda {

/// Where gradients that are not finite are reported. Arrays are on the device.
struct FiniteCheck {
  const int64_t* tensor_ends = nullptr;  // [tensor_count], ascending: offsets in the flat buffer
  int32_t tensor_count = 0;
  int64_t offset = 0;  // of the updated range in the flat buffer
  int32_t* first_bad =
      nullptr;  // becomes the least index of a tensor with such a gradient, if less than it was
};

/// One update of a range, in place; `factors` and all arrays are on the device, slots as those of the loop of
/// that name. Padding has to be zero in parameters and gradients, and stays zero.
cudaError_t SgdUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                      const FiniteCheck& check, cudaStream_t stream);
cudaError_t MomentumUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                           float momentum, bool nesterov, float* velocity, const FiniteCheck& check,
                           cudaStream_t stream);
cudaError_t AdagradUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                          float* accumulator, const FiniteCheck& check, cudaStream_t stream);
cudaError_t AdamUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                       float* first_moment, float* second_moment, const FiniteCheck& check,
                       cudaStream_t stream);
cudaError_t FtrlUpdate(UpdateArrays arrays, float scale, const StepFactors* factors, float l1, float twice_l2,
                       float* accumulator, float* linear, const FiniteCheck& check, cudaStream_t stream);

/// *word becomes odd if one of values [size] is not finite; otherwise it stays as it is. On the device.
cudaError_t MarkNotFinite(int64_t size, const float* values, int64_t* word, cudaStream_t stream);

}  // namespace muster::cuda
