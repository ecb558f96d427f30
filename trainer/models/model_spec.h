// A model as data: what it is made of, said once for everything that runs, saves or checks it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kernels/convolution.h"
#include "kernels/dense.h"
#include "kernels/parameter_layout.h"
#include "kernels/parameter_table.h"

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

enum class LossKind : uint8_t {
  kSoftmaxCrossEntropy,  // of as many logits as there are classes
  kSigmoidCrossEntropy,  // of one logit, for two classes
};

using LayerSpec = std::variant<DenseSpec, ConvolutionSpec, MaxPoolSpec, DropoutSpec>;

/// An id with a weight for each class, added to the logits. Table: wide/NAME [buckets, outputs], zero at
/// first.
struct WideColumnSpec {
  std::string name;
  int64_t buckets = 0;
};

/// An id as a vector that is learned, an input of the first layer. Table: deep/NAME [buckets, width],
/// truncated normal.
struct EmbeddingColumnSpec {
  std::string name;
  int64_t buckets = 0;
  int64_t width = 0;
};

/// An id as zeros and a one, an input of the first layer. Nothing is learned.
struct OneHotColumnSpec {
  std::string name;
  int64_t buckets = 0;
};

using IdColumnSpec = std::variant<WideColumnSpec, EmbeddingColumnSpec, OneHotColumnSpec>;

/// Layers one after the other; the last one gives the logits that the loss takes. The first one's input is
/// the features and behind them what the id columns give, in their order. Wide columns, with one bias of
/// their own (wide/bias), add to the logits; with them there may be no layers at all.
struct ModelSpec {
  SampleShape input;                  // the features; channels are 0 where there are none
  std::vector<IdColumnSpec> columns;  // of Batch::ids
  std::vector<LayerSpec> layers;
  LossKind loss = LossKind::kSoftmaxCrossEntropy;
  int wide_optimizer_group = 0;  // everything else is of group 0
};

/// A layer in its place.
struct LayerPlan {
  LayerSpec spec;
  SampleShape input;
  SampleShape output;
  std::vector<LayoutTensor> tensors;  // in the order in which the spec names them
};

/// An id column in its place.
struct IdColumnPlan {
  IdColumnSpec spec;
  int table = -1;           // in ModelPlan::tables; -1: none
  int64_t input_begin = 0;  // in the first layer's input, unless it is wide
};

/// A spec with the sizes and places that follow from it.
struct ModelPlan {
  ModelSpec spec;
  ParameterLayout layout;
  std::vector<TableSpec> tables;
  std::vector<IdColumnPlan> columns;
  std::vector<LayerPlan> layers;
  std::optional<LayoutTensor> wide_bias;
  int64_t outputs = 0;  // logits of a sample

  /// For RowIndex: the id column of each table.
  std::vector<int> TableColumns() const;
  int64_t optimizer_group_count() const { return 1 + spec.wide_optimizer_group; }
};

/// InvalidArgument names the layer or column: a size below 1, a kernel or window larger than what it is laid
/// over, a rate outside [0, 1), two of one name, too many parameters.
absl::StatusOr<ModelPlan> PlanModel(ModelSpec spec);

}  // namespace muster
