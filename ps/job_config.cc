#include "ps/job_config.h"

namespace muster {

ps::JobConfig MakeJobConfig(const ParameterLayout& layout, UpdateMode mode, int worker_count,
                            const OptimizerConfig& optimizer, uint64_t seed) {
  ps::JobConfig config;
  for (const LayoutTensor& tensor : layout.tensors()) {
    ps::Tensor* out = config.add_tensors();
    out->set_name(tensor.spec.name);
    for (const int64_t dimension : tensor.spec.shape) out->add_shape(dimension);
    out->set_initializer(static_cast<uint32_t>(tensor.spec.initializer));
    out->set_scale(tensor.spec.scale);
  }
  config.set_layout_hash(layout.Hash());
  config.set_mode(mode == UpdateMode::kSync ? ps::SYNC : ps::ASYNC);
  config.set_worker_count(static_cast<uint32_t>(worker_count));
  config.set_optimizer(static_cast<uint32_t>(optimizer.kind));
  config.set_learning_rate(optimizer.learning_rate);
  config.set_beta1(optimizer.beta1);
  config.set_beta2(optimizer.beta2);
  config.set_epsilon(optimizer.epsilon);
  config.set_seed(seed);
  return config;
}

absl::StatusOr<ParameterLayout> LayoutOf(const ps::JobConfig& config) {
  std::vector<TensorSpec> tensors;
  for (const ps::Tensor& tensor : config.tensors()) {
    if (tensor.initializer() > static_cast<uint32_t>(Initializer::kUniform)) {
      return InvalidArgument("tensor %s has initializer %d, which this version does not know", tensor.name(),
                             tensor.initializer());
    }
    tensors.push_back({.name = tensor.name(),
                       .shape = {tensor.shape().begin(), tensor.shape().end()},
                       .initializer = static_cast<Initializer>(tensor.initializer()),
                       .scale = tensor.scale()});
  }
  MUSTER_ASSIGN_OR_RETURN(ParameterLayout layout, ParameterLayout::Create(std::move(tensors)));
  if (layout.Hash() != config.layout_hash()) {
    return FailedPrecondition(
        "the same layout has hash %016x here and %016x at the worker: the builds differ", layout.Hash(),
        config.layout_hash());
  }
  return layout;
}

absl::StatusOr<OptimizerConfig> OptimizerOf(const ps::JobConfig& config) {
  if (config.optimizer() > static_cast<uint32_t>(OptimizerKind::kAdam)) {
    return InvalidArgument("optimizer %d is not one that this version knows", config.optimizer());
  }
  return OptimizerConfig{.kind = static_cast<OptimizerKind>(config.optimizer()),
                         .learning_rate = config.learning_rate(),
                         .beta1 = config.beta1(),
                         .beta2 = config.beta2(),
                         .epsilon = config.epsilon()};
}

absl::StatusOr<UpdateMode> UpdateModeOf(const ps::JobConfig& config) {
  switch (config.mode()) {
    case ps::ASYNC:
      return UpdateMode::kAsync;
    case ps::SYNC:
      return UpdateMode::kSync;
    default:
      return InvalidArgument("update mode %d is not one that this version knows", config.mode());
  }
}

}  // namespace muster
