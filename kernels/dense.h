// The operations of dense layers on the CPU, forward and backward. Matrices are row-major without gaps.
//
// Sums are over the samples of the batch, never means; an empty batch has sums of zero. What is not finite
// stays visible: a NaN in an input reaches the output. Matrix products go through oneDNN, which picks the
// instruction set when it runs, but for narrow ones (kernels/narrow_product.h). The same bits come out for
// the same inputs, build, instruction set and number of threads.
//
// Sizes that do not fit together are a bug and abort. Outputs overlap no input unless said otherwise. Any
// thread may call, with outputs of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace muster {

struct DenseShape {
  int64_t batch = 0;  // may be 0
  int64_t inputs = 0;
  int64_t outputs = 0;
};

enum class Activation : uint8_t { kNone, kRelu };

/// output [batch, outputs] = activation(input [batch, inputs] * weights [inputs, outputs] + bias [outputs]).
void DenseForward(const DenseShape& shape, std::span<const float> input, std::span<const float> weights,
                  std::span<const float> bias, Activation activation, std::span<float> output);

/// weights_gradient [inputs, outputs] = input^T [inputs, batch] * output_gradient [batch, outputs], and
/// bias_gradient [outputs] = the column sums of output_gradient, where output_gradient is that before the
/// activation.
void DenseBackwardParameters(const DenseShape& shape, std::span<const float> input,
                             std::span<const float> output_gradient, std::span<float> weights_gradient,
                             std::span<float> bias_gradient);

/// input_gradient [batch, inputs] = output_gradient [batch, outputs] * weights^T [outputs, inputs].
void DenseBackwardInput(const DenseShape& shape, std::span<const float> output_gradient,
                        std::span<const float> weights, std::span<float> input_gradient);

/// Zeroes each gradient whose `activated` value (what ReLU gave, same length) is zero.
void ReluBackward(std::span<const float> activated, std::span<float> gradient);

/// Threads that products called from this thread may use; OpenMP keeps the number per calling thread. At
/// least 1.
void SetKernelThreads(int threads);

/// What products run with on this CPU under the limit set: "sse41", "avx", "avx2", "avx512_core", ...
std::string InstructionSetName();

/// Makes this process use exactly the named instruction set for products, so that unlike hosts give the same
/// bits. Once, before the first product and InstructionSetName. InvalidArgument: no such name.
/// FailedPrecondition: this CPU lacks it, or too late.
absl::Status PinInstructionSet(const std::string& name);

}  // namespace muster
