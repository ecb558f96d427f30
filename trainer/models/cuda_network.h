// A planned model on a CUDA device: parameters, one batch and its gradient. For cuda_model and cuda_training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/cross_entropy.h"
#include "trainer/models/cuda_columns.h"
#include "trainer/models/cuda_layer.h"

namespace muster {

struct CudaNetworkOptions {
  int64_t largest_batch = 0;           // of any pass
  int64_t largest_training_batch = 0;  // of those with a backward pass
  uint64_t seed = 0;                   // of dropout, as CpuModelOptions
  cuda::Math math = cuda::Math::kFloat32;
  std::vector<RowsOnDevice> tables;  // by table of the plan; their rows outlive the network
  // [layout.size()], zeros in the padding, on the device; they outlive the network. Null: it has its own.
  float* parameters = nullptr;
  float* gradient = nullptr;
};

/// All memory is planned at creation. Enqueues on one stream; pointers are into the device's memory. One
/// thread at a time.
class CudaNetwork {
 public:
  /// Unimplemented: a layer or loss without code for CUDA.
  static absl::StatusOr<std::unique_ptr<CudaNetwork>> Create(const ModelPlan& plan,
                                                             const CudaNetworkOptions& options);

  float* parameters() const { return parameters_; }         // [layout.size()]
  float* gradient() const { return gradient_; }             // [layout.size()], padding zero
  float* features() const { return features_.data(); }      // [largest_batch, feature count]
  int32_t* labels() const { return labels_.data(); }        // [largest_batch]
  const CudaColumns& columns() const { return *columns_; }  // indices() to be written like the features

  /// Of the pass before: [samples, outputs].
  const float* logits() const { return stages_.empty() ? logits_.data() : stages_.back().output.data(); }

  /// Is told of a part of the flat buffers when what is on `stream` so far makes its gradient and is the last
  /// to read its parameters. What it enqueues there runs beside the rest of the backward pass, if there is
  /// any.
  using PartDone = std::function<absl::Status(LayoutRange part, cudaStream_t stream)>;

  /// From parameters, rows, features, indices and labels: the gradient, summed over the samples, and *result.
  /// The gradient of the rows is where columns() says. part_done, which may be null, is told of all parts,
  /// from the last to the first.
  absl::Status ForwardBackward(const CudaPass& pass, cuda::LossSums* result,
                               const PartDone& part_done = nullptr);

  /// *result, or what it is more by if `add`.
  absl::Status Evaluate(const CudaPass& pass, bool add, cuda::LossSums* result);

 private:
  // One layer of the plan, or two that run as one.
  struct Stage {
    std::unique_ptr<CudaLayer> layer;
    cuda::DeviceArray<float> output;           // [largest_batch, output size]
    cuda::DeviceArray<float> output_gradient;  // [largest_training_batch, output size]
    int64_t begin = 0;                         // of its tensors, or of those behind it, in the flat buffers
  };

  CudaNetwork() = default;
  absl::Status AddFlatBuffers(int64_t size, const CudaNetworkOptions& options);
  absl::Status AddStages(const ModelPlan& plan, const CudaNetworkOptions& options);
  absl::Status AddColumns(const ModelPlan& plan, const CudaNetworkOptions& options);
  absl::Status Forward(const CudaPass& pass);
  absl::Status Loss(const CudaPass& pass, float* gradient, bool add, cuda::LossSums* result);
  const float* InputOf(size_t stage) const;
  float* LogitsGradient() const;

  LossKind loss_ = LossKind::kSoftmaxCrossEntropy;
  int64_t outputs_ = 0;
  std::optional<int64_t> wide_bias_;  // its offset in the flat buffers
  std::unique_ptr<cuda::MatrixProducts> products_;
  std::unique_ptr<SideStream> side_;
  std::vector<Stage> stages_;
  int64_t layout_size_ = 0;
  cuda::DeviceArray<float> own_parameters_;
  cuda::DeviceArray<float> own_gradient_;
  float* parameters_ = nullptr;
  float* gradient_ = nullptr;
  cuda::DeviceArray<float> features_;
  cuda::DeviceArray<int32_t> labels_;
  std::unique_ptr<CudaColumns> columns_;
  cuda::DeviceArray<float> input_;            // of the first stage, of models with id columns
  cuda::DeviceArray<float> input_gradient_;   // the same, where embeddings are in it
  cuda::DeviceArray<float> logits_;           // of models without stages
  cuda::DeviceArray<float> logits_gradient_;  // the same
  cuda::DeviceArray<cuda::LossScratch> loss_scratch_;
};

}  // namespace muster
