// The module that the trainer loads: what a program without CUDA can ask of a device.
#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/runtime.h"
#include "trainer/models/cuda_model.h"
#include "trainer/models/cuda_replica.h"
#include "trainer/models/cuda_training.h"
#include "trainer/models/device.h"
#if defined(MUSTER_NCCL)
#include "collective/nccl.h"
#endif

namespace muster {
namespace {

// What CUDA 13 compiles for.
constexpr int kLeastMajor = 7, kLeastMinor = 5;

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  absl::StatusOr<std::unique_ptr<Model>> MakeModel(ModelPlan plan,
                                                   const DeviceModelOptions& options) override {
    return MakeCudaModel(index_, std::move(plan), options);
  }

  absl::StatusOr<std::unique_ptr<Replica>> MakeReplica(const ParameterLayout& layout,
                                                       std::span<const OptimizerConfig> optimizers) override {
    return CudaReplica::Create(index_, layout, optimizers);
  }

  absl::StatusOr<std::unique_ptr<DeviceTraining>> MakeTraining(
      ModelPlan plan, const TrainTestData& data, const DeviceTrainingOptions& options) override {
    return MakeCudaTraining(index_, std::move(plan), data, options);
  }

  absl::StatusOr<std::unique_ptr<GpuCollectives>> MakeCollectives() override {
#if defined(MUSTER_NCCL)
    return MakeNccl(index_);
#else
    return FailedPrecondition("this program was built without NCCL");
#endif
  }

 private:
  const int index_;
  const std::string name_;
};

absl::StatusOr<std::unique_ptr<Device>> Open(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);  // 0 if it fails too
    return FailedPrecondition(
        "the NVIDIA driver supports CUDA %d.%d and this program needs %d.%d: update the driver",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return FailedPrecondition("no GPU that the NVIDIA driver or CUDA_VISIBLE_DEVICES lets this process use");
  }
  if (error != cudaSuccess) {
    return FailedPrecondition("the NVIDIA driver does not start: %s", cudaGetErrorString(error));
  }
  if (index < 0 || index >= count) {
    return InvalidArgument("there is no GPU %d here: they are counted from 0 to %d", index, count - 1);
  }
  cudaDeviceProp properties{};
  MUSTER_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, index));
  if (std::pair(properties.major, properties.minor) < std::pair(kLeastMajor, kLeastMinor)) {
    return FailedPrecondition("the GPU %s has compute capability %d.%d: CUDA 13 needs %d.%d or newer",
                              properties.name, properties.major, properties.minor, kLeastMajor, kLeastMinor);
  }
  return std::make_unique<CudaDevice>(index, absl::StrFormat("cuda:%d (%s)", index, properties.name));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const CudaModule* muster_cuda_module() {
  static constexpr CudaModule kModule{.abi = kCudaModuleAbi, .version = MUSTER_VERSION, .open = Open};
  return &kModule;
}

}  // namespace muster
