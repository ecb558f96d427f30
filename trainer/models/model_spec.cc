#include "trainer/models/model_spec.h"

#include <utility>

namespace muster {
namespace {

// What one kind of layer makes of the shape it is given.
struct Resolved {
  SampleShape output;
  std::vector<TensorSpec> tensors;
};

absl::StatusOr<Resolved> Resolve(const DenseSpec& spec, const SampleShape& input) {
  if (spec.outputs < 1) return InvalidArgument("%s: a layer of size %d; at least 1", spec.name, spec.outputs);
  return Resolved{.output = {.channels = spec.outputs},
                  .tensors = {{.name = spec.name + "/weights",
                               .shape = {input.size(), spec.outputs},
                               .initializer = spec.initializer,
                               .scale = spec.scale},
                              {.name = spec.name + "/bias", .shape = {spec.outputs}}}};
}

}  // namespace

absl::StatusOr<ModelPlan> PlanModel(ModelSpec spec) {
  MUSTER_CHECK(!spec.layers.empty());
  ModelPlan plan{.spec = std::move(spec)};
  std::vector<TensorSpec> tensors;
  std::vector<size_t> tensor_counts;
  SampleShape shape = plan.spec.input;
  for (const LayerSpec& layer : plan.spec.layers) {
    MUSTER_ASSIGN_OR_RETURN(Resolved resolved,
                            std::visit([&](const auto& kind) { return Resolve(kind, shape); }, layer));
    plan.layers.push_back({.spec = layer, .input = shape, .output = resolved.output});
    tensor_counts.push_back(resolved.tensors.size());
    for (TensorSpec& tensor : resolved.tensors) tensors.push_back(std::move(tensor));
    shape = resolved.output;
  }
  MUSTER_ASSIGN_OR_RETURN(plan.layout, ParameterLayout::Create(std::move(tensors)));
  auto next = plan.layout.tensors().begin();
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    plan.layers[i].tensors.assign(next, next + static_cast<int64_t>(tensor_counts[i]));
    next += static_cast<int64_t>(tensor_counts[i]);
  }
  return plan;
}

}  // namespace muster
