#include "trainer/onnx.h"

#include <bit>
#include <limits>
#include <variant>

#include "base/file.h"
#include "proto/onnx_subset.pb.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "floats are written as they lie in memory");

constexpr int64_t kIrVersion = 7;  // the one that came with operator set 13
constexpr int64_t kOperatorSet = 13;
constexpr const char* kInputName = "input";
constexpr const char* kOutputName = "logits";
constexpr int64_t kMaxParameterBytes = std::numeric_limits<int32_t>::max() - (1 << 20);

// [N, shape...]
onnx::ValueInfo DescribeValue(const std::string& name, const std::vector<int64_t>& shape) {
  onnx::ValueInfo info;
  info.set_name(name);
  onnx::Type::TensorType& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx::Tensor::FLOAT);
  type.mutable_shape()->add_dim()->set_dim_param("N");
  for (const int64_t size : shape) type.mutable_shape()->add_dim()->set_dim_value(size);
  return info;
}

// Adds layers to a graph, each taking what the one before it gave. There, images are [N, C, H, W].
class GraphBuilder {
 public:
  GraphBuilder(std::span<const float> parameters, onnx::Graph& graph)
      : parameters_(parameters), graph_(graph) {}

  // One overload for each kind of layer.
  void Add(const DenseSpec& spec, const LayerPlan& layer) {
    if (is_image_) AddNode(spec.name, "Flatten", {});
    is_image_ = false;
    const TensorSpec& weights = layer.tensors[0].spec;
    const TensorSpec& bias = layer.tensors[1].spec;
    AddTensor(weights.name, {spec.outputs, layer.input.size()},
              WeightsByChannel(layer.input, spec.outputs, ValuesOf(layer.tensors[0])));
    AddTensor(bias.name, bias.shape, ValuesOf(layer.tensors[1]));
    // OpenCV 4.6 knows a Gemm only with its second matrix transposed, as PyTorch writes it.
    AddInteger(AddNode(spec.name, "Gemm", {weights.name, bias.name}), "transB", 1);
    AddActivation(spec.name, spec.activation);
  }

  void Add(const ConvolutionSpec& spec, const LayerPlan& layer) {
    const TensorSpec& weights = layer.tensors[0].spec;
    const TensorSpec& bias = layer.tensors[1].spec;
    const SampleShape window = {
        .height = spec.kernel, .width = spec.kernel, .channels = layer.input.channels};
    AddTensor(weights.name, {spec.outputs, window.channels, spec.kernel, spec.kernel},
              WeightsByChannel(window, spec.outputs, ValuesOf(layer.tensors[0])));
    AddTensor(bias.name, bias.shape, ValuesOf(layer.tensors[1]));
    onnx::Node& node = AddNode(spec.name, "Conv", {weights.name, bias.name});
    AddIntegers(node, "kernel_shape", {spec.kernel, spec.kernel});
    const int64_t zeros = spec.padding == Padding::kSame ? spec.kernel - 1 : 0;
    AddIntegers(node, "pads", {zeros / 2, zeros / 2, zeros - zeros / 2, zeros - zeros / 2});
    AddActivation(spec.name, spec.activation);
  }

  void Add(const MaxPoolSpec& spec, const LayerPlan&) {
    onnx::Node& node = AddNode(spec.name, "MaxPool", {});
    AddIntegers(node, "kernel_shape", {spec.window, spec.window});
    AddIntegers(node, "strides", {spec.window, spec.window});
  }

  void Add(const DropoutSpec&, const LayerPlan&) {}  // drops nothing outside of training

  // What the last layer gave is the output.
  void NameOutput(const std::string& name) {
    graph_.mutable_node(graph_.node_size() - 1)->set_output(0, name);
  }

 private:
  // A node that takes the value at hand and `tensors`, and gives the next one.
  onnx::Node& AddNode(const std::string& layer, const std::string& operation,
                      const std::vector<std::string>& tensors) {
    onnx::Node& node = *graph_.add_node();
    node.set_name(layer + "/" + operation);
    node.set_op_type(operation);
    node.add_input(value_);
    for (const std::string& tensor : tensors) node.add_input(tensor);
    value_ = node.name();
    node.add_output(value_);
    return node;
  }

  static void AddInteger(onnx::Node& node, const std::string& name, int64_t value) {
    onnx::Attribute& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::Attribute::INT);
    attribute.set_i(value);
  }

  static void AddIntegers(onnx::Node& node, const std::string& name, const std::vector<int64_t>& values) {
    onnx::Attribute& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::Attribute::INTS);
    for (const int64_t value : values) attribute.add_ints(value);
  }

  void AddActivation(const std::string& layer, Activation activation) {
    switch (activation) {
      case Activation::kNone:
        return;
      case Activation::kRelu:
        AddNode(layer, "Relu", {});
        return;
    }
    MUSTER_CHECK(false);
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values) {
    onnx::Tensor& tensor = *graph_.add_initializer();
    for (const int64_t size : shape) tensor.add_dims(size);
    tensor.set_data_type(onnx::Tensor::FLOAT);
    tensor.set_name(name);
    tensor.set_raw_data(values.data(), values.size_bytes());
  }

  std::span<const float> ValuesOf(const LayoutTensor& tensor) const {
    return parameters_.subspan(tensor.offset, tensor.size);
  }

  const std::span<const float> parameters_;
  onnx::Graph& graph_;
  std::string value_ = kInputName;
  bool is_image_ = true;  // [N, C, H, W], not [N, values]
};

}  // namespace

std::vector<float> WeightsByChannel(const SampleShape& image, int64_t outputs,
                                    std::span<const float> weights) {
  MUSTER_CHECK(static_cast<int64_t>(weights.size()) == image.size() * outputs);
  const int64_t pixels = image.height * image.width;
  std::vector<float> transposed(weights.size());
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t channel = 0; channel < image.channels; ++channel) {
      const float* const row = weights.data() + (pixel * image.channels + channel) * outputs;
      float* const column = transposed.data() + channel * pixels + pixel;
      for (int64_t output = 0; output < outputs; ++output) column[output * image.size()] = row[output];
    }
  }
  return transposed;
}

absl::Status SaveOnnx(const std::filesystem::path& path, const ModelPlan& plan,
                      std::span<const float> parameters, const std::map<std::string, std::string>& metadata) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan.layout.size());
  const int64_t bytes = plan.layout.parameter_count() * static_cast<int64_t>(sizeof(float));
  if (bytes > kMaxParameterBytes) {
    return InvalidArgument("%s: %d bytes of parameters are more than an ONNX file can hold", path.string(),
                           bytes);
  }
  onnx::Model model;
  model.set_ir_version(kIrVersion);
  model.set_producer_name("muster");
  model.set_producer_version(MUSTER_VERSION);
  model.add_opset_import()->set_version(kOperatorSet);
  for (const auto& [key, value] : metadata) {
    onnx::StringStringEntry& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::Graph& graph = *model.mutable_graph();
  graph.set_name("muster");
  const SampleShape& input = plan.spec.input;
  *graph.add_input() = DescribeValue(kInputName, {input.channels, input.height, input.width});
  *graph.add_output() = DescribeValue(kOutputName, {plan.layers.back().output.size()});
  GraphBuilder builder(parameters, graph);
  for (const LayerPlan& layer : plan.layers) {
    std::visit([&](const auto& spec) { builder.Add(spec, layer); }, layer.spec);
  }
  builder.NameOutput(kOutputName);
  return WriteFileAtomically(path, model.SerializeAsString());
}

}  // namespace muster
