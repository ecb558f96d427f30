#include "trainer/models/cuda_optimizer.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

// Where an optimizer has slots, and what the first begins with; the second begins with zeros.
struct SlotKinds {
  bool first, second;
  float first_value;
};

SlotKinds SlotsOf(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return {false, false, 0};
    case OptimizerKind::kMomentum:
      return {true, false, 0};
    case OptimizerKind::kAdagrad:
      return {true, false, config.initial_accumulator};
    case OptimizerKind::kAdam:
      return {true, true, 0};
    case OptimizerKind::kFtrl:
      return {true, true, config.initial_accumulator};
  }
  MUSTER_CHECK(false, "an optimizer without a case");
}

float* Behind(const cuda::DeviceArray<float>& slots, int64_t count) {
  return slots.size() == 0 ? nullptr : slots.data() + count;
}

}  // namespace

absl::StatusOr<SlotsOnDevice> SlotsOnDevice::Create(const OptimizerConfig& config, int64_t size) {
  SlotsOnDevice slots;
  const SlotKinds kinds = SlotsOf(config);
  if (kinds.first) {
    const std::vector<float> values(size, kinds.first_value);
    MUSTER_ASSIGN_OR_RETURN(slots.first, cuda::CopyToDevice<float>(values));
  }
  if (kinds.second) {
    MUSTER_ASSIGN_OR_RETURN(slots.second, cuda::ZerosOnDevice<float>(size));
  }
  return slots;
}

absl::StatusOr<std::unique_ptr<CudaOptimizer>> CudaOptimizer::Create(
    const ParameterLayout& layout, std::span<const OptimizerConfig> by_group, float gradient_scale) {
  std::unique_ptr<CudaOptimizer> optimizer(new CudaOptimizer());
  optimizer->gradient_scale_ = gradient_scale;
  for (const OptimizerConfig& config : by_group) {
    MUSTER_RETURN_IF_ERROR(Validate(config));
    optimizer->configs_.push_back(config);
    optimizer->sequences_.emplace_back(config);
  }
  std::vector<int64_t> ends;
  LayoutRange stretch;
  int group = -1;
  for (const LayoutTensor& tensor : layout.tensors()) {
    if (tensor.spec.optimizer_group >= static_cast<int>(by_group.size())) {
      return InvalidArgument("tensor '%s' is of optimizer group %d, for which there is no optimizer",
                             tensor.spec.name, tensor.spec.optimizer_group);
    }
    if (tensor.spec.optimizer_group != group) {
      if (group >= 0) {
        MUSTER_RETURN_IF_ERROR(optimizer->AddStretch({stretch.begin, tensor.offset}, group));
      }
      group = tensor.spec.optimizer_group;
      stretch.begin = tensor.offset;
    }
    ends.push_back(tensor.offset + tensor.size);
  }
  MUSTER_RETURN_IF_ERROR(optimizer->AddStretch({stretch.begin, layout.size()}, group));
  MUSTER_ASSIGN_OR_RETURN(optimizer->tensor_ends_, cuda::CopyToDevice<int64_t>(ends));
  return optimizer;
}

absl::Status CudaOptimizer::AddStretch(LayoutRange range, int group) {
  Stretch stretch{.range = range, .group = group};
  MUSTER_ASSIGN_OR_RETURN(stretch.slots, SlotsOnDevice::Create(configs_[group], range.size()));
  stretches_.push_back(std::move(stretch));
  return absl::OkStatus();
}

void CudaOptimizer::NextFactors(std::span<StepFactors> factors) {
  MUSTER_CHECK(factors.size() == sequences_.size());
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = sequences_[i].Next();
}

int CudaOptimizer::slot_count() const {
  int count = 0;
  for (const Stretch& stretch : stretches_) count = std::max(count, SlotCount(configs_[stretch.group].kind));
  return count;
}

absl::Status CudaOptimizer::CopySlot(int slot, std::span<float> values, cudaStream_t stream) const {
  std::fill(values.begin(), values.end(), 0.0f);
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  for (const Stretch& stretch : stretches_) {
    const float* const from = SlotOf(stretch, slot);
    if (from == nullptr) continue;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpy(values.data() + stretch.range.begin, from,
                                           stretch.range.size() * sizeof(float), cudaMemcpyDeviceToHost));
  }
  return absl::OkStatus();
}

absl::Status CudaOptimizer::SetSlot(int slot, std::span<const float> values, cudaStream_t stream) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  for (const Stretch& stretch : stretches_) {
    float* const to = SlotOf(stretch, slot);
    if (to == nullptr) continue;
    MUSTER_RETURN_IF_ERROR(
        cuda::WriteToDevice(to, values.subspan(stretch.range.begin, stretch.range.size())));
  }
  return absl::OkStatus();
}

void CudaOptimizer::SkipTo(uint64_t updates) {
  for (StepFactorSequence& sequence : sequences_) sequence.SkipTo(updates);
}

absl::Status CudaOptimizer::Update(LayoutRange part, const StepFactors* factors, float* parameters,
                                   const float* gradient, int32_t* first_bad, cudaStream_t stream) {
  for (const Stretch& stretch : stretches_) {
    const LayoutRange range{std::max(stretch.range.begin, part.begin), std::min(stretch.range.end, part.end)};
    if (range.begin >= range.end) continue;
    const OptimizerConfig& config = configs_[stretch.group];
    float* const values = parameters + range.begin;
    const UpdateArrays arrays{range.size(), values, gradient + range.begin, values};
    const GradientFactors by{gradient_scale_, config.weight_decay};
    const int64_t before = range.begin - stretch.range.begin;
    float* const first = Behind(stretch.slots.first, before);
    float* const second = Behind(stretch.slots.second, before);
    const StepFactors* const of_group = factors + stretch.group;
    const cuda::FiniteCheck check{.tensor_ends = tensor_ends_.data(),
                                  .tensor_count = static_cast<int32_t>(tensor_ends_.size()),
                                  .offset = range.begin,
                                  .first_bad = first_bad};
    switch (config.kind) {
      case OptimizerKind::kSgd:
        MUSTER_CUDA_RETURN_IF_ERROR(cuda::SgdUpdate(arrays, by, of_group, check, stream));
        break;
      case OptimizerKind::kMomentum:
        MUSTER_CUDA_RETURN_IF_ERROR(cuda::MomentumUpdate(arrays, by, of_group, config.momentum,
                                                         config.nesterov, first, check, stream));
        break;
      case OptimizerKind::kAdagrad:
        MUSTER_CUDA_RETURN_IF_ERROR(cuda::AdagradUpdate(arrays, by, of_group, first, check, stream));
        break;
      case OptimizerKind::kAdam:
        MUSTER_CUDA_RETURN_IF_ERROR(cuda::AdamUpdate(arrays, by, of_group, first, second, check, stream));
        break;
      case OptimizerKind::kFtrl:
        MUSTER_CUDA_RETURN_IF_ERROR(cuda::FtrlUpdate(arrays, gradient_scale_, of_group, config.l1,
                                                     2 * config.l2, first, second, check, stream));
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace muster
