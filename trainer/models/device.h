// A device beside the CPU that trains models, as a module that is loaded when the program runs makes it.
//
// This header knows nothing of CUDA: the trainer is built with it wherever it is built.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/gpu_collectives.h"
#include "kernels/cuda/math.h"
#include "kernels/optimizer.h"
#include "trainer/data/dataset.h"
#include "trainer/models/evaluate.h"
#include "trainer/models/model.h"
#include "trainer/models/model_spec.h"
#include "trainer/models/replica.h"
#include "trainer/models/row_source.h"

namespace muster {

struct DeviceModelOptions {
  int64_t largest_batch = 0;
  uint64_t seed = 0;  // of dropout, as CpuModelOptions
  cuda::Math math = cuda::Math::kFloat32;
  // Null: parameters and gradients pass through the host. Else passes take its parameters instead of those
  // that they are given, and leave the dense gradient there and nowhere else; it outlives the model, and is
  // of the same device and layout.
  Replica* replica = nullptr;
};

struct DeviceTrainingOptions {
  std::vector<OptimizerConfig> optimizers;  // by TensorSpec::optimizer_group
  int64_t batch_size = 0;
  int64_t evaluation_batch_size = 0;
  uint64_t seed = 0;           // of the tables, the order of samples, dropout and the augmentation
  bool augment_shift = false;  // ShiftAugmentation
  cuda::Math math = cuda::Math::kFloat32;
};

/// What one step gave.
struct DeviceStep {
  double loss_sum = 0;
  // The first tensor of the layout or, counted on behind them, table whose gradient has NaN or infinity; or
  // -1.
  int32_t tensor_not_finite = -1;
};

/// Training in one process that stays on the device: data, parameters, whole tables and the optimizers'
/// state. Step t takes the batch that BatchSlice(t, batch_size, 0, 1) names, and updates as LayoutOptimizer
/// and ParameterTable do. Whatever fails once ends the training: results after an error mean nothing. One
/// thread at a time.
class DeviceTraining {
 public:
  virtual ~DeviceTraining() = default;

  /// parameters [layout.size()], to begin with; once, before the first Run.
  virtual absl::Status Start(std::span<const float> parameters) = 0;

  /// The next `steps` steps, one after the other without the host; `steps` at least 1. Those after one that
  /// is not finite mean nothing.
  virtual absl::StatusOr<std::vector<DeviceStep>> Run(int64_t steps) = 0;

  /// Over all samples of the test set. No AUC where the loss is not finite.
  virtual absl::StatusOr<Evaluation> EvaluateTestSet() = 0;

  /// Copies the parameters as they are now to `parameters` ([layout.size()]).
  virtual absl::Status ReadParameters(std::span<float> parameters) = 0;

  /// The tables as they are now.
  virtual absl::StatusOr<TableValues> ReadTables() = 0;

  /// How long the device has worked on steps so far.
  virtual double device_seconds() const = 0;
};

/// Any thread; what it makes is independent of it.
class Device {
 public:
  virtual ~Device() = default;

  /// "cuda:0 (NVIDIA H200)".
  virtual std::string name() const = 0;

  /// Unimplemented: a layer or loss that this device has no code for. ResourceExhausted: its memory is full.
  /// Internal: it failed.
  virtual absl::StatusOr<std::unique_ptr<Model>> MakeModel(ModelPlan plan,
                                                           const DeviceModelOptions& options) = 0;

  /// Of a worker whose parameters stay on the device, all zeros. `optimizers`: by
  /// TensorSpec::optimizer_group. Fails as LayoutOptimizer::Create and MakeModel do.
  virtual absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(
      const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers) = 0;

  /// `data` is copied. As MakeModel; Unimplemented also for what does not stay on the device step by step: a
  /// batch larger than the training set, shifted images that are not kept as bytes.
  virtual absl::StatusOr<std::unique_ptr<DeviceTraining>> MakeTraining(
      ModelPlan plan, const TrainTestData& data, const DeviceTrainingOptions& options) = 0;

  /// How this device takes part in sums of several. FailedPrecondition: it cannot, or what it needs for that
  /// is missing on this host; the text says what.
  virtual absl::StatusOr<std::unique_ptr<GpuCollectives>> MakeCollectives() = 0;
};

/// What the module exports. It shares C++ types with the program, so both must come from one build: the first
/// two fields, whose places are fixed, say whether they do.
struct CudaModule {
  uint32_t abi = 0;               // kCudaModuleAbi
  const char* version = nullptr;  // of the project

  /// Device `index` of those that CUDA_VISIBLE_DEVICES leaves. InvalidArgument: there are not so many.
  /// FailedPrecondition: none, an old driver, or one that CUDA does not support.
  absl::StatusOr<std::unique_ptr<Device>> (*open)(int index) = nullptr;
};

/// To be increased whenever anything here or in what it includes changes.
inline constexpr uint32_t kCudaModuleAbi = 4;

inline constexpr const char* kCudaModuleFile = "libmuster_cuda.so";
inline constexpr const char* kCudaModuleSymbol = "muster_cuda_module";
using CudaModuleFunction = const CudaModule* (*)();

}  // namespace muster
