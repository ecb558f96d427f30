// Layers: what a Sequential model is made of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/parameter_layout.h"

namespace muster {

/// One layer: its tensors, its sizes, and how values and gradients pass through it. Holds no parameters and
/// no activations: both are passed in, as slices of the flat buffers. `tensors` are the layer's own, as
/// placed in the layout; `parameters` and `gradient` are whole flat buffers. Immutable; any thread may use
/// it.
class Layer {
 public:
  virtual ~Layer() = default;

  /// The layer's tensors, in the order in which they are passed back. A layer without parameters has none.
  virtual std::vector<TensorSpec> TensorSpecs() const = 0;

  /// Floats per sample.
  virtual int64_t input_size() const = 0;
  virtual int64_t output_size() const = 0;

  /// output [samples, output_size] from input [samples, input_size].
  virtual void Forward(int64_t samples, std::span<const LayoutTensor> tensors,
                       std::span<const float> parameters, std::span<const float> input,
                       std::span<float> output) const = 0;

  /// From the gradient of the loss with respect to `output` (as Forward left it), which may be overwritten:
  /// the gradient of the layer's tensors, written to their places in `gradient`, and `input_gradient`
  /// [samples, input_size], unless that is empty.
  virtual void Backward(int64_t samples, std::span<const LayoutTensor> tensors,
                        std::span<const float> parameters, std::span<const float> input,
                        std::span<const float> output, std::span<float> output_gradient,
                        std::span<float> gradient, std::span<float> input_gradient) const = 0;
};

}  // namespace muster
