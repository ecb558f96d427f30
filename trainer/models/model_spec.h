// A model as data: what it is made of, said once for everything that runs, saves or checks it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kernels/convolution.h"
#include "kernels/dense.h"
#include "kernels/parameter_layout.h"

namespace muster {

/// One sample between two layers: [height, width, channels], row-major. What is no image is 1 x 1 x channels.
struct SampleShape {
  int64_t height = 1;
  int64_t width = 1;
  int64_t channels = 1;
  int64_t size() const { return height * width * channels; }
  friend bool operator==(const SampleShape&, const SampleShape&) = default;
};

/// activation(input * weights + bias), over the whole sample. Tensors: NAME/weights [inputs, outputs],
/// NAME/bias [outputs].
struct DenseSpec {
  std::string name;
  int64_t outputs = 0;
  Activation activation = Activation::kNone;
  Initializer initializer = Initializer::kZeros;  // of the weights
  float scale = 0;
  float initial_bias = 0;
};

/// activation(convolution(input, weights) + bias) with stride 1. Tensors: NAME/weights [kernel, kernel, input
/// channels, outputs], NAME/bias [outputs].
struct ConvolutionSpec {
  std::string name;
  int64_t outputs = 0;  // channels
  int64_t kernel = 0;   // height and width
  Padding padding = Padding::kValid;
  Activation activation = Activation::kNone;
  Initializer initializer = Initializer::kZeros;  // of the weights
  float scale = 0;
  float initial_bias = 0;
};

/// The largest value of each window of window x window, side by side; rows and columns that fill none are
/// left out. No tensors.
struct MaxPoolSpec {
  std::string name;
  int64_t window = 2;
};

/// In training drops a share of the values and scales up the others (dropout.h). No tensors.
struct DropoutSpec {
  std::string name;
  float rate = 0;  // the share that is dropped
};

enum class LossKind : uint8_t { kSoftmaxCrossEntropy };

using LayerSpec = std::variant<DenseSpec, ConvolutionSpec, MaxPoolSpec, DropoutSpec>;

/// Layers one after the other; the last one gives the logits that the loss takes.
struct ModelSpec {
  SampleShape input;
  std::vector<LayerSpec> layers;
  LossKind loss = LossKind::kSoftmaxCrossEntropy;
};

/// A layer in its place.
struct LayerPlan {
  LayerSpec spec;
  SampleShape input;
  SampleShape output;
  std::vector<LayoutTensor> tensors;  // in the order in which the spec names them
};

/// A spec with the sizes and places that follow from it.
struct ModelPlan {
  ModelSpec spec;
  ParameterLayout layout;
  std::vector<LayerPlan> layers;
};

/// InvalidArgument names the layer: a size below 1, a kernel or window larger than what it is laid over, a
/// rate outside [0, 1), two layers of one name, too many parameters.
absl::StatusOr<ModelPlan> PlanModel(ModelSpec spec);

}  // namespace muster
