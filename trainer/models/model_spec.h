// A model as data: what it is made of, said once for everything that runs, saves or checks it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
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
/// NAME/bias [outputs], which starts at zero.
struct DenseSpec {
  std::string name;
  int64_t outputs = 0;
  Activation activation = Activation::kNone;
  Initializer initializer = Initializer::kZeros;  // of the weights
  float scale = 0;
};

enum class LossKind : uint8_t { kSoftmaxCrossEntropy };

using LayerSpec = std::variant<DenseSpec>;

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

/// InvalidArgument names the layer: a size below 1, two layers of one name, too many parameters.
absl::StatusOr<ModelPlan> PlanModel(ModelSpec spec);

}  // namespace muster
