// Dense layers on the CPU, forward and backward. Matrices are row-major without gaps.
//
// Sums are over the samples of the batch, never means; an empty batch has sums of zero. What is not finite
// stays visible: a NaN in an input reaches the output. Matrix products go through oneDNN, which picks the
// instruction set when it runs, but for narrow ones (kernels/narrow_product.h). The same bits come out for
// the same inputs, build, instruction set and number of threads. Sizes that do not fit together are a bug and
// abort; std::bad_alloc is thrown where a product has no memory for copies of its matrices. Outputs overlap
// no input unless said otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/aligned_floats.h"

namespace muster {

struct DenseShape {
  int64_t batch = 0;  // may be 0
  int64_t inputs = 0;
  int64_t outputs = 0;
};

enum class Activation : uint8_t { kNone, kRelu };

/// One layer and its scratch memory. One thread at a time; the work is shared out among its kernel threads
/// (kernels/threads.h).
class Dense {
 public:
  /// `shape.batch`: of the largest batch.
  Dense(const DenseShape& shape, Activation activation);

  /// output [samples, outputs] = activation(input [samples, inputs] * weights [inputs, outputs] + bias
  /// [outputs]).
  void Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
               std::span<const float> bias, std::span<float> output);

  /// From output_gradient [samples, outputs], the gradient of what Forward gave as `output` for `input`,
  /// which may be overwritten. With g its gradient before the activation (ReLU: zero where the output is
  /// zero): weights_gradient [inputs, outputs] = input^T * g, bias_gradient [outputs] = the column sums of g,
  /// and input_gradient [samples, inputs] = g * weights^T, unless that is empty.
  void Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                std::span<const float> output, std::span<float> output_gradient,
                std::span<float> weights_gradient, std::span<float> bias_gradient,
                std::span<float> input_gradient);

 private:
  const DenseShape shape_;
  const Activation activation_;
  // Copies with rows a little further apart, where that pays (dense.cc); empty otherwise. The gaps are NaN.
  AlignedFloats padded_weights_, padded_input_, padded_gradient_;
};

/// What products run with on this CPU under the limit set: "sse41", "avx", "avx2", "avx512_core", ...
std::string InstructionSetName();

/// Makes this process use exactly the named instruction set for products, so that unlike hosts give the same
/// bits. Once, before the first product and InstructionSetName. InvalidArgument: no such name.
/// FailedPrecondition: this CPU lacks it, or too late.
absl::Status PinInstructionSet(const std::string& name);

}  // namespace muster
