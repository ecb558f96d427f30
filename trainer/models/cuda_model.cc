#include "trainer/models/cuda_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/embedding.h"
#include "trainer/models/cuda_network.h"
#include "trainer/models/cuda_replica.h"

namespace muster {
namespace {

template <typename T>
cudaError_t Copy(T* target, const T* source, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return cudaMemcpyAsync(target, source, count * sizeof(T), cudaMemcpyDefault, stream);
}

// What a step sends to the device and what comes back lies in pinned memory, so that a graph can hold the
// transfers too. The first step of a size runs as it is enqueued, which loads what it needs; then it is
// captured.
class CudaModel final : public Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(int device_index, ModelPlan plan,
                                                       const DeviceModelOptions& options);

  const ModelPlan& plan() const override { return plan_; }
  absl::Status status() const override { return status_; }

  using Model::ForwardBackward;
  BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                              std::span<float> gradient, GradientReady ready) override {
    MUSTER_CHECK(static_cast<int64_t>(gradient.size()) == plan_.layout.size() + RowFloats(batch));
    const BatchResult result = Run(parameters, batch, &ready);
    const std::span<float> passing = gradient.last(passing_floats_ + RowFloats(batch));
    std::copy_n(gradient_.data(), passing.size(), passing.begin());
    logits_count_ = 0;
    return result;
  }

  BatchResult Evaluate(std::span<const float> parameters, const Batch& batch) override {
    const BatchResult result = Run(parameters, batch, /*ready=*/nullptr);
    logits_count_ = batch.size() * plan_.outputs;
    return result;
  }

  // They stay on the device in training, where nobody asks for them.
  std::span<const float> logits() const override { return logits_.values().first(logits_count_); }

 private:
  CudaModel(int device_index, ModelPlan plan, CudaReplica* replica)
      : device_index_(device_index),
        plan_(std::move(plan)),
        replica_(replica),
        passing_floats_(replica == nullptr ? plan_.layout.size() : 0) {}

  static int64_t RowFloats(const Batch& batch) { return batch.rows == nullptr ? 0 : batch.rows->size(); }
  int64_t MostRowFloats(int64_t samples) const;
  void FillRows(const Batch& batch);
  // `ready`: of a training pass; null: an evaluation.
  BatchResult Run(std::span<const float> parameters, const Batch& batch, GradientReady* ready);
  absl::Status RunOnDevice(int64_t samples, GradientReady* ready);
  absl::Status Enqueue(int64_t samples, bool training);
  absl::Status EnqueueBackward(const CudaPass& pass);
  absl::Status EnqueueWord(LayoutRange part, size_t number, cudaStream_t stream);
  absl::Status TellOfParts(GradientReady ready);
  absl::Status AwaitWord(size_t part);
  cudaStream_t stream() const { return replica_ == nullptr ? own_stream_.get() : replica_->stream(); }

  const int device_index_;
  const ModelPlan plan_;
  CudaReplica* const replica_;    // null: parameters and gradients pass through the host
  const int64_t passing_floats_;  // of the layout, that do
  absl::Status status_;
  cuda::Stream own_stream_;               // without a replica
  cuda::DeviceArray<float> device_rows_;  // before the network, which reads them
  cuda::DeviceArray<float> device_rows_gradient_;
  std::unique_ptr<CudaNetwork> network_;
  cuda::DeviceArray<int64_t> device_position_;
  cuda::DeviceArray<cuda::LossSums> device_sums_;
  cuda::PinnedArray<float> parameters_;  // [passing_floats_]
  cuda::PinnedArray<float> gradient_;    // [passing_floats_ + MostRowFloats]
  cuda::PinnedArray<float> rows_;        // [MostRowFloats], packed as Batch::rows says
  cuda::PinnedArray<int32_t> indices_;   // [columns, samples]: offsets in them, or ids
  cuda::PinnedArray<float> logits_;
  cuda::PinnedArray<float> features_;
  cuda::PinnedArray<int32_t> labels_;
  cuda::PinnedArray<int64_t> position_;
  cuda::PinnedArray<cuda::LossSums> sums_;
  // How the host hears, from within a graph, what of a replica's gradient is final: each part that has ended
  // has its word here, which is that of the pass, or one more if the part is not finite.
  cuda::PinnedArray<int64_t> words_;
  cuda::DeviceArray<int64_t> device_words_;
  cuda::PinnedArray<int64_t> pass_word_;                    // even, and another for each pass
  std::vector<int64_t> part_begins_;                        // descending, to 0
  std::map<std::pair<int64_t, bool>, cuda::Graph> graphs_;  // by samples and training; null: ran once
  int64_t logits_count_ = 0;
};

absl::StatusOr<std::unique_ptr<Model>> CudaModel::Create(int device_index, ModelPlan plan,
                                                         const DeviceModelOptions& options) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index));
  auto* const replica = static_cast<CudaReplica*>(options.replica);
  std::unique_ptr<CudaModel> model(new CudaModel(device_index, std::move(plan), replica));
  const int64_t passing = model->passing_floats_, batch = options.largest_batch;
  if (replica == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(model->own_stream_, cuda::MakeStream());
  }
  const int64_t row_floats = model->MostRowFloats(batch);
  MUSTER_ASSIGN_OR_RETURN(model->device_rows_, cuda::ZerosOnDevice<float>(row_floats));
  MUSTER_ASSIGN_OR_RETURN(model->device_rows_gradient_, cuda::ZerosOnDevice<float>(row_floats));
  // An index is an offset in the packed rows.
  const std::vector<RowsOnDevice> packed(model->plan_.tables.size(),
                                         {.rows = model->device_rows_.data(), .step = 1});
  CudaNetworkOptions network{.largest_batch = batch,
                             .largest_training_batch = batch,
                             .seed = options.seed,
                             .math = options.math,
                             .tables = packed};
  if (replica != nullptr) {
    network.parameters = replica->parameters();
    network.gradient = replica->gradient().data();
  }
  MUSTER_ASSIGN_OR_RETURN(model->network_, CudaNetwork::Create(model->plan_, network));
  MUSTER_ASSIGN_OR_RETURN(model->device_position_, cuda::DeviceArray<int64_t>::Create(1));
  MUSTER_ASSIGN_OR_RETURN(model->device_sums_, cuda::DeviceArray<cuda::LossSums>::Create(1));
  MUSTER_ASSIGN_OR_RETURN(model->parameters_, cuda::PinnedArray<float>::Create(passing));
  MUSTER_ASSIGN_OR_RETURN(model->gradient_, cuda::PinnedArray<float>::Create(passing + row_floats));
  MUSTER_ASSIGN_OR_RETURN(model->rows_, cuda::PinnedArray<float>::Create(row_floats));
  const auto column_count = static_cast<int64_t>(model->plan_.columns.size());
  MUSTER_ASSIGN_OR_RETURN(model->indices_, cuda::PinnedArray<int32_t>::Create(column_count * batch));
  MUSTER_ASSIGN_OR_RETURN(model->logits_, cuda::PinnedArray<float>::Create(batch * model->plan_.outputs));
  MUSTER_ASSIGN_OR_RETURN(model->features_,
                          cuda::PinnedArray<float>::Create(batch * model->plan_.spec.input.size()));
  MUSTER_ASSIGN_OR_RETURN(model->labels_, cuda::PinnedArray<int32_t>::Create(batch));
  MUSTER_ASSIGN_OR_RETURN(model->position_, cuda::PinnedArray<int64_t>::Create(1));
  MUSTER_ASSIGN_OR_RETURN(model->sums_, cuda::PinnedArray<cuda::LossSums>::Create(1));
  const auto most_parts = static_cast<int64_t>(model->plan_.layers.size()) + 1;
  MUSTER_ASSIGN_OR_RETURN(model->words_, cuda::PinnedArray<int64_t>::Create(most_parts));
  MUSTER_ASSIGN_OR_RETURN(model->device_words_, cuda::DeviceArray<int64_t>::Create(most_parts));
  MUSTER_ASSIGN_OR_RETURN(model->pass_word_, cuda::PinnedArray<int64_t>::Create(1));
  std::fill_n(model->words_.data(), most_parts, 0);
  model->pass_word_.data()[0] = 0;
  return model;
}

// Of the rows of any batch of so many samples. Graphs copy that many, since their sizes are fixed.
int64_t CudaModel::MostRowFloats(int64_t samples) const {
  int64_t floats = 0;
  for (const TableSpec& table : plan_.tables) floats += std::min(table.rows, samples) * table.width;
  return floats;
}

void CudaModel::FillRows(const Batch& batch) {
  const auto column_count = static_cast<int64_t>(plan_.columns.size());
  MUSTER_CHECK((batch.rows == nullptr ? 0 : batch.rows->table_count()) ==
                   static_cast<int>(plan_.tables.size()) &&
               static_cast<int64_t>(batch.row_values.size()) == RowFloats(batch));
  MUSTER_CHECK(static_cast<int64_t>(batch.ids.size()) == batch.size() * column_count);
  std::copy(batch.row_values.begin(), batch.row_values.end(), rows_.data());
  int32_t* to = indices_.data();
  for (int64_t i = 0; i < column_count; ++i) {
    const int table = plan_.columns[i].table;
    if (table >= 0) {
      to = std::copy_n(batch.rows->offsets(table).begin(), batch.size(), to);
      continue;
    }
    for (int64_t s = 0; s < batch.size(); ++s) *to++ = batch.ids[s * column_count + i];
  }
}

BatchResult CudaModel::Run(std::span<const float> parameters, const Batch& batch, GradientReady* ready) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan_.layout.size());
  MUSTER_CHECK(batch.size() <= labels_.size());
  MUSTER_CHECK(static_cast<int64_t>(batch.features.size()) == batch.size() * plan_.spec.input.size());
  const BatchResult none{.loss_sum = NAN, .samples = batch.size()};
  if (!status_.ok()) return none;  // the device may still read what is below
  std::copy_n(parameters.begin(), passing_floats_, parameters_.data());
  std::copy(batch.features.begin(), batch.features.end(), features_.data());
  std::copy(batch.labels.begin(), batch.labels.end(), labels_.data());
  FillRows(batch);
  position_.data()[0] = batch.position;
  pass_word_.data()[0] += 2;
  status_ = RunOnDevice(batch.size(), ready);
  if (!status_.ok()) return none;
  const cuda::LossSums& sums = sums_.data()[0];
  return {.loss_sum = sums.loss_sum, .correct = sums.correct, .samples = batch.size()};
}

absl::Status CudaModel::RunOnDevice(int64_t samples, GradientReady* ready) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  const bool training = ready != nullptr;
  const auto [entry, is_first] = graphs_.try_emplace({samples, training});
  cuda::Graph& graph = entry->second;
  if (is_first) {
    MUSTER_RETURN_IF_ERROR(Enqueue(samples, training));
  } else {
    if (graph == nullptr) {
      MUSTER_ASSIGN_OR_RETURN(graph, cuda::Capture(stream(), [&] { return Enqueue(samples, training); }));
    }
    MUSTER_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(graph.get(), stream()));
  }
  if (training && replica_ != nullptr) MUSTER_RETURN_IF_ERROR(TellOfParts(*ready));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()));
  return absl::OkStatus();
}

// Of all but the last, with which the pass ends.
absl::Status CudaModel::TellOfParts(GradientReady ready) {
  bool is_finite = true;
  for (size_t i = 0; i < part_begins_.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(AwaitWord(i));
    is_finite = is_finite && words_.data()[i] == pass_word_.data()[0];
    replica_->set_is_finite(is_finite);
    if (part_begins_[i] > 0) ready(part_begins_[i]);
  }
  return absl::OkStatus();
}

// No longer than the device works, as whoever waits for the pass.
absl::Status CudaModel::AwaitWord(size_t part) {
  const std::atomic_ref word(words_.data()[part]);
  for (int turn = 1; (word.load(std::memory_order_acquire) & ~int64_t{1}) != pass_word_.data()[0]; ++turn) {
    std::this_thread::yield();
    // Now and then only, since another thread may want CUDA to enqueue something.
    if (turn % 64 != 0) continue;
    const cudaError_t state = cudaStreamQuery(stream());
    if (state == cudaSuccess) return absl::OkStatus();
    if (state != cudaErrorNotReady) return cuda::ToStatus(state, "a pass");
    (void)cudaGetLastError();  // not ready would be the next call's error
  }
  return absl::OkStatus();
}

absl::Status CudaModel::Enqueue(int64_t samples, bool training) {
  const auto copy = [this](auto* target, const auto* source, int64_t count) {
    return Copy(target, source, count, stream());
  };
  MUSTER_CUDA_RETURN_IF_ERROR(copy(network_->parameters(), parameters_.data(), passing_floats_));
  MUSTER_CUDA_RETURN_IF_ERROR(
      copy(network_->features(), features_.data(), samples * plan_.spec.input.size()));
  MUSTER_CUDA_RETURN_IF_ERROR(copy(network_->labels(), labels_.data(), samples));
  const int64_t row_floats = MostRowFloats(samples);
  const CudaColumns& columns = network_->columns();
  MUSTER_CUDA_RETURN_IF_ERROR(copy(device_rows_.data(), rows_.data(), row_floats));
  MUSTER_CUDA_RETURN_IF_ERROR(
      copy(columns.indices(), indices_.data(), samples * static_cast<int64_t>(plan_.columns.size())));
  MUSTER_CUDA_RETURN_IF_ERROR(copy(device_position_.data(), position_.data(), 1));
  const CudaPass pass{
      .samples = samples, .training = training, .position = device_position_.data(), .stream = stream()};
  if (training) {
    MUSTER_RETURN_IF_ERROR(EnqueueBackward(pass));
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::SumRowGradients(columns.row_gradients(), columns.table_count(),
                                                      columns.indices(), samples,
                                                      device_rows_gradient_.data(), stream()));
    MUSTER_CUDA_RETURN_IF_ERROR(copy(gradient_.data(), network_->gradient(), passing_floats_));
    MUSTER_CUDA_RETURN_IF_ERROR(
        copy(gradient_.data() + passing_floats_, device_rows_gradient_.data(), row_floats));
  } else {
    MUSTER_RETURN_IF_ERROR(network_->Evaluate(pass, /*add=*/false, device_sums_.data()));
    MUSTER_CUDA_RETURN_IF_ERROR(copy(logits_.data(), network_->logits(), samples * plan_.outputs));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(copy(sums_.data(), device_sums_.data(), 1));
  return absl::OkStatus();
}

absl::Status CudaModel::EnqueueBackward(const CudaPass& pass) {
  if (replica_ == nullptr) return network_->ForwardBackward(pass, device_sums_.data());
  // A sum that was given up may have left anything in the padding, which no layer writes.
  const std::span<float> gradient = replica_->gradient();
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(gradient.data(), 0, gradient.size_bytes(), pass.stream));
  part_begins_.clear();
  return network_->ForwardBackward(pass, device_sums_.data(),
                                   [&](LayoutRange part, cudaStream_t part_stream) {
                                     part_begins_.push_back(part.begin);
                                     return EnqueueWord(part, part_begins_.size() - 1, part_stream);
                                   });
}

// Behind what makes this part of the gradient.
absl::Status CudaModel::EnqueueWord(LayoutRange part, size_t number, cudaStream_t stream) {
  int64_t* const word = device_words_.data() + number;
  MUSTER_CUDA_RETURN_IF_ERROR(Copy(word, pass_word_.data(), 1, stream));
  MUSTER_CUDA_RETURN_IF_ERROR(
      cuda::MarkNotFinite(part.size(), replica_->gradient().data() + part.begin, word, stream));
  MUSTER_CUDA_RETURN_IF_ERROR(Copy(words_.data() + number, word, 1, stream));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeCudaModel(int device_index, ModelPlan plan,
                                                     const DeviceModelOptions& options) {
  return CudaModel::Create(device_index, std::move(plan), options);
}

}  // namespace muster
