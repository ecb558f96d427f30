// Layers on a CUDA device: what CpuLayer is on the CPU. Everything is enqueued, nothing waited for; pointers
// are into the device's memory.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/matrix_products.h"
#include "kernels/cuda/runtime.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// A second stream, for work that the first one does not wait for until a step's end.
class SideStream {
 public:
  static absl::StatusOr<std::unique_ptr<SideStream>> Create();

  /// The stream; what is enqueued there from now on comes after what is on `main` now.
  absl::StatusOr<cudaStream_t> Fork(cudaStream_t main);

  /// What is enqueued on `main` from now on comes after all that is here. After a Fork.
  absl::Status Join(cudaStream_t main);

 private:
  cuda::Stream stream_;
  cuda::Event forked_;
  cuda::Event done_;
};

/// The batch that passes through.
struct CudaPass {
  int64_t samples = 0;
  bool training = false;              // dropout drops only then
  const int64_t* position = nullptr;  // on the device: of the first sample in the training stream
  cudaStream_t stream = nullptr;
};

/// As CpuLayer; values of one pass stay until the next.
class CudaLayer {
 public:
  virtual ~CudaLayer() = default;

  virtual absl::Status Forward(const CudaPass& pass, const float* parameters, const float* input,
                               float* output) = 0;

  /// `gradient` is the flat buffer. input_gradient may be null: not wanted. Some of it may be enqueued on the
  /// side, which reads `input` and `output_gradient`.
  virtual absl::Status Backward(const CudaPass& pass, const float* parameters, const float* input,
                                const float* output, float* output_gradient, float* gradient,
                                float* input_gradient) = 0;
};

/// What the layers of a network share; outlives them.
struct CudaLayerContext {
  cuda::Math math = cuda::Math::kFloat32;
  cuda::MatrixProducts* products = nullptr;
  SideStream* side = nullptr;
  int64_t largest_batch = 0;           // of any pass
  int64_t largest_training_batch = 0;  // of those with a backward pass
};

absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaDense(const DenseSpec& spec, const LayerPlan& plan,
                                                         const CudaLayerContext& context);

/// `pool`: of the layer behind it, or null; both then run as one, with the tensors of `plan`, the
/// convolution's.
absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaConvolution(const ConvolutionSpec& spec,
                                                               const MaxPoolSpec* pool, const LayerPlan& plan,
                                                               const CudaLayerContext& context);

absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaMaxPool(const MaxPoolSpec& spec, const LayerPlan& plan,
                                                           const CudaLayerContext& context);

/// `seed`: of this layer's random numbers.
std::unique_ptr<CudaLayer> MakeCudaDropout(const DropoutSpec& spec, const LayerPlan& plan, uint64_t seed);

}  // namespace muster
