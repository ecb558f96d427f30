// Layers on the CPU: how values and gradients pass through one layer of a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "trainer/models/model_spec.h"

namespace muster {

/// The batch that passes through.
struct LayerPass {
  int64_t samples = 0;
  bool training = false;  // dropout drops only then
  int64_t position = 0;   // of the first sample in the training stream
};

/// Holds scratch memory planned for the largest batch, no parameters and no activations: those are slices of
/// the flat buffers and of the model's own. One thread at a time.
class CpuLayer {
 public:
  virtual ~CpuLayer() = default;

  /// output [samples, output size] from input [samples, input size]; parameters [layout.size()].
  virtual void Forward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
                       std::span<float> output) = 0;

  /// After the Forward of the same batch, with its input and output unchanged. From the gradient of the loss
  /// with respect to `output`, which may be overwritten: the gradient of the layer's tensors, written to
  /// their places in `gradient` ([layout.size()]), and `input_gradient` [samples, input size], unless that is
  /// empty.
  virtual void Backward(const LayerPass& pass, std::span<const float> parameters,
                        std::span<const float> input, std::span<const float> output,
                        std::span<float> output_gradient, std::span<float> gradient,
                        std::span<float> input_gradient) = 0;
};

/// The part of a flat buffer that a tensor takes.
template <typename T>
std::span<T> SliceOf(std::span<T> buffer, const LayoutTensor& tensor) {
  return buffer.subspan(tensor.offset, tensor.size);
}

struct CpuLayerOptions {
  int64_t largest_batch = 0;
  uint64_t seed = 0;  // of this layer's random numbers
};

/// One overload for each kind of layer; `plan.spec` holds `spec`.
std::unique_ptr<CpuLayer> MakeCpuLayer(const DenseSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options);
std::unique_ptr<CpuLayer> MakeCpuLayer(const ConvolutionSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options);
std::unique_ptr<CpuLayer> MakeCpuLayer(const MaxPoolSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options);
std::unique_ptr<CpuLayer> MakeCpuLayer(const DropoutSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options);

/// A convolution and the pooling behind it as one layer, which is faster than two: from the input of the one
/// to the output of the other, with the tensors of `plan`, the convolution's.
std::unique_ptr<CpuLayer> MakeCpuPooledConvolution(const ConvolutionSpec& spec, const MaxPoolSpec& pool,
                                                   const LayerPlan& plan, const CpuLayerOptions& options);

}  // namespace muster
