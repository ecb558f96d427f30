#include "trainer/models/cuda_training.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/batch.h"
#include "trainer/data/augment.h"
#include "trainer/data/sample_order.h"
#include "trainer/models/cuda_network.h"
#include "trainer/models/cuda_optimizer.h"
#include "trainer/models/cuda_tables.h"

namespace muster {
namespace {

// Steps of one graph. Enough that starting one costs nothing against running it, few enough that building
// graphs does not.
constexpr int64_t kMostGraphSteps = 50;

// Less than none: what no tensor's index reaches.
constexpr int32_t kAllFinite = 0x7f7f7f7f;  // of four equal bytes, for cudaMemsetAsync

// What the host computes for each step of a graph, and what it reads of them afterwards.
template <template <typename> typename Array>
struct StepInputs {
  static absl::StatusOr<StepInputs> Create(int64_t factor_count) {
    StepInputs inputs;
    MUSTER_ASSIGN_OR_RETURN(inputs.positions, Array<int64_t>::Create(kMostGraphSteps));
    MUSTER_ASSIGN_OR_RETURN(inputs.factors, Array<StepFactors>::Create(kMostGraphSteps * factor_count));
    return inputs;
  }
  Array<int64_t> positions;    // [steps], of each batch's first sample
  Array<StepFactors> factors;  // [steps, factor_count]
};

template <template <typename> typename Array>
struct StepOutputs {
  static absl::StatusOr<StepOutputs> Create() {
    StepOutputs outputs;
    MUSTER_ASSIGN_OR_RETURN(outputs.sums, Array<cuda::LossSums>::Create(kMostGraphSteps));
    MUSTER_ASSIGN_OR_RETURN(outputs.first_bad, Array<int32_t>::Create(kMostGraphSteps));
    return outputs;
  }
  Array<cuda::LossSums> sums;  // [steps]
  Array<int32_t> first_bad;    // [steps], FiniteCheck's
};

// A data set on the device: bytes, or numbers and ids.
class SamplesOnDevice {
 public:
  static absl::StatusOr<SamplesOnDevice> Create(const Dataset& dataset, const ModelPlan& plan);

  int64_t size() const { return labels_.size(); }

  /// As cuda::FillBatch, for the pass's samples.
  absl::Status Fill(const CudaPass& pass, const cuda::SampleSource* sources, int64_t source_count,
                    const CudaNetwork& network) const;

 private:
  bool is_bytes_ = false;
  SampleShape shape_;
  int64_t id_count_ = 0;
  cuda::DeviceArray<uint8_t> bytes_;
  cuda::DeviceArray<float> features_;
  cuda::DeviceArray<int32_t> ids_;
  cuda::DeviceArray<uint8_t> labels_;
};

// Kernels trust ids to be rows.
void CheckIds(const Dataset& dataset, const ModelPlan& plan) {
  const auto id_count = static_cast<int64_t>(plan.columns.size());
  MUSTER_CHECK(dataset.id_count == id_count);
  for (int64_t i = 0; i < static_cast<int64_t>(dataset.ids.size()); ++i) {
    const int64_t buckets =
        std::visit([](const auto& spec) { return spec.buckets; }, plan.columns[i % id_count].spec);
    MUSTER_CHECK(dataset.ids[i] >= 0 && dataset.ids[i] < buckets, "an id out of range");
  }
}

absl::StatusOr<SamplesOnDevice> SamplesOnDevice::Create(const Dataset& dataset, const ModelPlan& plan) {
  SamplesOnDevice samples;
  samples.is_bytes_ = !dataset.bytes.empty();
  samples.shape_ = plan.spec.input;
  samples.id_count_ = dataset.id_count;
  if (samples.is_bytes_ && dataset.id_count > 0) {
    return absl::UnimplementedError("ids beside features that are kept as bytes do not stay on the GPU yet");
  }
  MUSTER_CHECK(dataset.feature_count == samples.shape_.size());
  MUSTER_CHECK(dataset.size() <= std::numeric_limits<int32_t>::max());
  CheckIds(dataset, plan);
  MUSTER_ASSIGN_OR_RETURN(samples.bytes_, cuda::CopyToDevice<uint8_t>(dataset.bytes));
  MUSTER_ASSIGN_OR_RETURN(samples.features_, cuda::CopyToDevice<float>(dataset.features));
  MUSTER_ASSIGN_OR_RETURN(samples.ids_, cuda::CopyToDevice<int32_t>(dataset.ids));
  MUSTER_ASSIGN_OR_RETURN(samples.labels_, cuda::CopyToDevice<uint8_t>(dataset.labels));
  return samples;
}

absl::Status SamplesOnDevice::Fill(const CudaPass& pass, const cuda::SampleSource* sources,
                                   int64_t source_count, const CudaNetwork& network) const {
  if (is_bytes_) {
    const cuda::ByteSamples samples{.bytes = bytes_.data(),
                                    .labels = labels_.data(),
                                    .size = size(),
                                    .height = shape_.height,
                                    .width = shape_.width,
                                    .channels = shape_.channels};
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::FillBatch(samples, sources, source_count, pass.position, pass.samples,
                                                network.features(), network.labels(), pass.stream));
    return absl::OkStatus();
  }
  const cuda::TableSamples samples{.features = features_.data(),
                                   .ids = ids_.data(),
                                   .labels = labels_.data(),
                                   .size = size(),
                                   .feature_count = shape_.size(),
                                   .id_count = id_count_};
  MUSTER_CUDA_RETURN_IF_ERROR(cuda::FillBatch(samples, sources, source_count, pass.position, pass.samples,
                                              network.features(), network.columns().indices(),
                                              network.labels(), pass.stream));
  return absl::OkStatus();
}

// The order of the samples, for two epochs: that of epoch e lies in the half e modulo 2. Batches pass from
// the one to the other without noticing.
class OrderOnDevice {
 public:
  static absl::StatusOr<OrderOnDevice> Create(int64_t dataset_size, const SampleShape& shape,
                                              const DeviceTrainingOptions& options) {
    OrderOnDevice order(SampleOrder(options.seed, dataset_size), dataset_size);
    if (options.augment_shift) {
      order.augmentation_.emplace(options.seed, shape.height, shape.width, shape.channels);
    }
    MUSTER_ASSIGN_OR_RETURN(order.device_, cuda::DeviceArray<cuda::SampleSource>::Create(2 * dataset_size));
    MUSTER_ASSIGN_OR_RETURN(order.pinned_, cuda::PinnedArray<cuda::SampleSource>::Create(dataset_size));
    MUSTER_ASSIGN_OR_RETURN(order.copied_, cuda::MakeEvent(/*timed=*/false));
    return order;
  }

  int64_t dataset_size() const { return dataset_size_; }
  const cuda::SampleSource* sources() const { return device_.data(); }
  int64_t source_count() const { return device_.size(); }

  /// Enqueues what steps need that end at position `end`. What they overwrite is of epochs that end at or
  /// before `begin`, the position of the next step, so everything that reads it was enqueued before.
  absl::Status Provide(int64_t begin, int64_t end, cudaStream_t stream) {
    MUSTER_CHECK(end - begin <= dataset_size_);
    while (epochs_ * dataset_size_ < end) MUSTER_RETURN_IF_ERROR(AddEpoch(stream));
    return absl::OkStatus();
  }

  /// Enqueues the epoch after the one of `position`, if it is not there yet: while the device is busy.
  absl::Status LookAhead(int64_t position, cudaStream_t stream) {
    if (epochs_ > position / dataset_size_ + 1) return absl::OkStatus();
    return AddEpoch(stream);
  }

 private:
  OrderOnDevice(const SampleOrder& order, int64_t dataset_size)
      : order_(order), dataset_size_(dataset_size) {}

  absl::Status AddEpoch(cudaStream_t stream) {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(copied_.get()));  // of the epoch before
    for (int64_t i = 0; i < dataset_size_; ++i) {
      const int64_t position = epochs_ * dataset_size_ + i;
      const ImageShift shift = augmentation_ ? augmentation_->ShiftAt(position) : ImageShift{};
      pinned_.data()[i] = {.index = static_cast<int32_t>(order_.SampleAt(position)),
                           .shift_x = static_cast<int16_t>(shift.x),
                           .shift_y = static_cast<int16_t>(shift.y)};
    }
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(device_.data() + epochs_ % 2 * dataset_size_, pinned_.data(),
                                                pinned_.bytes(), cudaMemcpyHostToDevice, stream));
    MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied_.get(), stream));
    ++epochs_;
    return absl::OkStatus();
  }

  SampleOrder order_;
  int64_t dataset_size_;
  std::optional<ShiftAugmentation> augmentation_;
  cuda::DeviceArray<cuda::SampleSource> device_;  // [2, dataset_size]
  cuda::PinnedArray<cuda::SampleSource> pinned_;  // [dataset_size]
  cuda::Event copied_;
  int64_t epochs_ = 0;  // that were enqueued
};

class CudaTraining final : public DeviceTraining {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceTraining>> Create(int device_index, ModelPlan plan,
                                                                const TrainTestData& data,
                                                                const DeviceTrainingOptions& options);

  absl::Status Start(std::span<const float> parameters) override;
  absl::StatusOr<std::vector<DeviceStep>> Run(int64_t steps) override;
  absl::StatusOr<Evaluation> EvaluateTestSet() override;
  absl::Status ReadParameters(std::span<float> parameters) override;
  absl::StatusOr<TableValues> ReadTables() override;
  double device_seconds() const override { return device_seconds_; }

 private:
  // Pinned memory of the graphs under way: while one runs, the next one's inputs are written.
  struct Slot {
    StepInputs<cuda::PinnedArray> inputs;
    StepOutputs<cuda::PinnedArray> outputs;
    cuda::Event begin;
    cuda::Event end;    // everything of it is done
    int64_t steps = 0;  // of the run under way; 0: none
  };

  CudaTraining(int device_index, ModelPlan plan, const DeviceTrainingOptions& options, OrderOnDevice order)
      : device_index_(device_index),
        plan_(std::move(plan)),
        batch_size_(options.batch_size),
        evaluation_batch_size_(options.evaluation_batch_size),
        most_steps_(std::min(kMostGraphSteps, order.dataset_size() / options.batch_size)),
        order_(std::move(order)) {}

  absl::Status Enqueue(Slot& slot, int64_t steps);
  absl::Status EnqueueSteps(int64_t steps);
  absl::Status Collect(Slot& slot, std::vector<DeviceStep>* results);

  const int device_index_;
  const ModelPlan plan_;
  const int64_t batch_size_;
  const int64_t evaluation_batch_size_;
  const int64_t most_steps_;  // of a graph: no more samples than an epoch has
  cuda::Stream stream_;
  SamplesOnDevice train_;
  SamplesOnDevice test_;
  OrderOnDevice order_;
  std::unique_ptr<CudaTables> tables_;  // before the network, which reads them
  std::unique_ptr<CudaNetwork> network_;
  std::unique_ptr<CudaOptimizer> optimizer_;
  StepInputs<cuda::DeviceArray> inputs_;
  StepOutputs<cuda::DeviceArray> outputs_;
  std::array<Slot, 2> slots_;
  std::map<int64_t, cuda::Graph> graphs_;      // by number of steps
  cuda::DeviceArray<int64_t> test_positions_;  // of the batches of an evaluation
  cuda::DeviceArray<cuda::LossSums> test_sums_;
  cuda::DeviceArray<float> test_scores_;  // [test set's size], of models with one logit
  std::vector<uint8_t> test_labels_;      // the same
  int64_t step_ = 0;                      // the next one
  double device_seconds_ = 0;
};

absl::StatusOr<std::unique_ptr<DeviceTraining>> CudaTraining::Create(int device_index, ModelPlan plan,
                                                                     const TrainTestData& data,
                                                                     const DeviceTrainingOptions& options) {
  MUSTER_CHECK(options.batch_size > 0 && options.evaluation_batch_size > 0 && data.train.size() > 0);
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index));
  const SampleShape shape = plan.spec.input;
  if (options.batch_size > data.train.size()) {
    return absl::UnimplementedError("a batch larger than the training set");
  }
  if (options.augment_shift && data.train.bytes.empty()) {
    return absl::UnimplementedError("images that are not kept as bytes are not shifted on the GPU yet");
  }
  MUSTER_ASSIGN_OR_RETURN(OrderOnDevice order, OrderOnDevice::Create(data.train.size(), shape, options));
  std::unique_ptr<CudaTraining> training(
      new CudaTraining(device_index, std::move(plan), options, std::move(order)));
  MUSTER_ASSIGN_OR_RETURN(training->stream_, cuda::MakeStream());
  MUSTER_ASSIGN_OR_RETURN(training->train_, SamplesOnDevice::Create(data.train, training->plan_));
  MUSTER_ASSIGN_OR_RETURN(training->test_, SamplesOnDevice::Create(data.test, training->plan_));
  const float gradient_scale = 1.0f / static_cast<float>(options.batch_size);
  const ParameterLayout& layout = training->plan_.layout;
  MUSTER_ASSIGN_OR_RETURN(training->optimizer_,
                          CudaOptimizer::Create(layout, options.optimizers, gradient_scale));
  MUSTER_ASSIGN_OR_RETURN(training->tables_,
                          CudaTables::Create(training->plan_.tables, options.optimizers, gradient_scale,
                                             options.seed, static_cast<int32_t>(layout.tensors().size())));
  MUSTER_ASSIGN_OR_RETURN(
      training->network_,
      CudaNetwork::Create(training->plan_,
                          {.largest_batch = std::max(options.batch_size, options.evaluation_batch_size),
                           .largest_training_batch = options.batch_size,
                           .seed = options.seed,
                           .math = options.math,
                           .tables = training->tables_->rows()}));
  const int64_t factor_count = training->optimizer_->factor_count();
  MUSTER_ASSIGN_OR_RETURN(training->inputs_, StepInputs<cuda::DeviceArray>::Create(factor_count));
  MUSTER_ASSIGN_OR_RETURN(training->outputs_, StepOutputs<cuda::DeviceArray>::Create());
  for (Slot& slot : training->slots_) {
    MUSTER_ASSIGN_OR_RETURN(slot.inputs, StepInputs<cuda::PinnedArray>::Create(factor_count));
    MUSTER_ASSIGN_OR_RETURN(slot.outputs, StepOutputs<cuda::PinnedArray>::Create());
    MUSTER_ASSIGN_OR_RETURN(slot.begin, cuda::MakeEvent(/*timed=*/true));
    MUSTER_ASSIGN_OR_RETURN(slot.end, cuda::MakeEvent(/*timed=*/true));
  }
  std::vector<int64_t> test_positions;
  for (int64_t begin = 0; begin < data.test.size(); begin += options.evaluation_batch_size) {
    test_positions.push_back(begin);
  }
  MUSTER_ASSIGN_OR_RETURN(training->test_positions_, cuda::CopyToDevice<int64_t>(test_positions));
  MUSTER_ASSIGN_OR_RETURN(training->test_sums_, cuda::DeviceArray<cuda::LossSums>::Create(1));
  if (training->plan_.outputs == 1) {
    training->test_labels_ = data.test.labels;
    MUSTER_ASSIGN_OR_RETURN(training->test_scores_, cuda::DeviceArray<float>::Create(data.test.size()));
  }
  return training;
}

absl::Status CudaTraining::Start(std::span<const float> parameters) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan_.layout.size() && step_ == 0);
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(network_->parameters(), parameters.data(),
                                              parameters.size_bytes(), cudaMemcpyHostToDevice,
                                              stream_.get()));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceStep>> CudaTraining::Run(int64_t steps) {
  MUSTER_CHECK(steps >= 1);
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  std::vector<DeviceStep> results;
  size_t next = 0;  // slot
  while (steps > 0) {
    // The first step runs as it is enqueued, which loads what it needs.
    const int64_t count = step_ == 0 ? 1 : std::min(steps, most_steps_);
    Slot& slot = slots_[next];
    if (slot.steps > 0) MUSTER_RETURN_IF_ERROR(Collect(slot, &results));
    MUSTER_RETURN_IF_ERROR(Enqueue(slot, count));
    steps -= count;
    next = 1 - next;
  }
  MUSTER_RETURN_IF_ERROR(order_.LookAhead(step_ * batch_size_, stream_.get()));
  // `next` is the older one now.
  for (Slot* const slot : {&slots_[next], &slots_[1 - next]}) {
    if (slot->steps > 0) MUSTER_RETURN_IF_ERROR(Collect(*slot, &results));
  }
  return results;
}

// Enqueues the next `steps` steps with their inputs and outputs.
absl::Status CudaTraining::Enqueue(Slot& slot, int64_t steps) {
  const cudaStream_t stream = stream_.get();
  const int64_t begin = step_ * batch_size_, factor_count = optimizer_->factor_count();
  MUSTER_RETURN_IF_ERROR(order_.Provide(begin, begin + steps * batch_size_, stream));
  for (int64_t i = 0; i < steps; ++i) {
    slot.inputs.positions.data()[i] = begin + i * batch_size_;
    optimizer_->NextFactors(slot.inputs.factors.values().subspan(i * factor_count, factor_count));
  }
  const auto copy = [&](const auto& target, const auto& source, int64_t count) {
    return cudaMemcpyAsync(target.data(), source.data(), count * sizeof *source.data(), cudaMemcpyDefault,
                           stream);
  };
  MUSTER_CUDA_RETURN_IF_ERROR(copy(inputs_.positions, slot.inputs.positions, steps));
  MUSTER_CUDA_RETURN_IF_ERROR(copy(inputs_.factors, slot.inputs.factors, steps * factor_count));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.begin.get(), stream));
  if (step_ == 0) {
    MUSTER_RETURN_IF_ERROR(EnqueueSteps(steps));
  } else {
    cuda::Graph& graph = graphs_[steps];
    if (graph == nullptr) {
      MUSTER_ASSIGN_OR_RETURN(graph, cuda::Capture(stream, [&] { return EnqueueSteps(steps); }));
    }
    MUSTER_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(graph.get(), stream));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(copy(slot.outputs.sums, outputs_.sums, steps));
  MUSTER_CUDA_RETURN_IF_ERROR(copy(slot.outputs.first_bad, outputs_.first_bad, steps));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.end.get(), stream));
  slot.steps = steps;
  step_ += steps;
  return absl::OkStatus();
}

// What a graph holds: it depends on the number of steps alone.
absl::Status CudaTraining::EnqueueSteps(int64_t steps) {
  const cudaStream_t stream = stream_.get();
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(outputs_.first_bad.data(), kAllFinite & 0xff, steps * sizeof(int32_t), stream));
  for (int64_t i = 0; i < steps; ++i) {
    const CudaPass pass{
        .samples = batch_size_, .training = true, .position = inputs_.positions.data() + i, .stream = stream};
    MUSTER_RETURN_IF_ERROR(train_.Fill(pass, order_.sources(), order_.source_count(), *network_));
    const StepFactors* const factors = inputs_.factors.data() + i * optimizer_->factor_count();
    int32_t* const first_bad = outputs_.first_bad.data() + i;
    MUSTER_RETURN_IF_ERROR(network_->ForwardBackward(
        pass, outputs_.sums.data() + i, [&](LayoutRange part, cudaStream_t part_stream) {
          return optimizer_->Update(part, factors, network_->parameters(), network_->gradient(), first_bad,
                                    part_stream);
        }));
    MUSTER_RETURN_IF_ERROR(tables_->Update(network_->columns(), batch_size_, factors, first_bad, stream));
  }
  return absl::OkStatus();
}

// Waits for the slot's steps and appends what they gave.
absl::Status CudaTraining::Collect(Slot& slot, std::vector<DeviceStep>* results) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(slot.end.get()));
  float milliseconds = 0;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, slot.begin.get(), slot.end.get()));
  device_seconds_ += double{milliseconds} / 1000;
  for (int64_t i = 0; i < slot.steps; ++i) {
    const int32_t bad = slot.outputs.first_bad.data()[i];
    results->push_back({.loss_sum = slot.outputs.sums.data()[i].loss_sum,
                        .tensor_not_finite = bad == kAllFinite ? -1 : bad});
  }
  slot.steps = 0;
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> CudaTraining::EvaluateTestSet() {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  const cudaStream_t stream = stream_.get();
  cuda::LossSums sums{};
  const int64_t size = test_.size();
  std::vector<float> scores(test_scores_.size());
  for (int64_t i = 0; i < test_positions_.size(); ++i) {
    const int64_t begin = i * evaluation_batch_size_;
    const CudaPass pass{.samples = std::min(evaluation_batch_size_, size - begin),
                        .training = false,
                        .position = test_positions_.data() + i,
                        .stream = stream};
    MUSTER_RETURN_IF_ERROR(test_.Fill(pass, /*sources=*/nullptr, /*source_count=*/0, *network_));
    MUSTER_RETURN_IF_ERROR(network_->Evaluate(pass, /*add=*/i > 0, test_sums_.data()));
    if (scores.empty()) continue;
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(test_scores_.data() + begin, network_->logits(),
                                                pass.samples * sizeof(float), cudaMemcpyDeviceToDevice,
                                                stream));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  if (size > 0) {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpy(&sums, test_sums_.data(), sizeof sums, cudaMemcpyDeviceToHost));
  }
  if (!scores.empty()) {
    MUSTER_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(scores.data(), test_scores_.data(), test_scores_.bytes(), cudaMemcpyDeviceToHost));
  }
  Evaluation evaluation{.result = {.loss_sum = sums.loss_sum, .correct = sums.correct, .samples = size}};
  if (!scores.empty() && std::isfinite(sums.loss_sum)) evaluation.auc = AreaUnderCurve(scores, test_labels_);
  return evaluation;
}

absl::Status CudaTraining::ReadParameters(std::span<float> parameters) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan_.layout.size());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(parameters.data(), network_->parameters(),
                                              parameters.size_bytes(), cudaMemcpyDeviceToHost,
                                              stream_.get()));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()));
  return absl::OkStatus();
}

absl::StatusOr<TableValues> CudaTraining::ReadTables() {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  return tables_->Read(stream_.get());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTraining>> MakeCudaTraining(int device_index, ModelPlan plan,
                                                                 const TrainTestData& data,
                                                                 const DeviceTrainingOptions& options) {
  return CudaTraining::Create(device_index, std::move(plan), data, options);
}

}  // namespace muster
