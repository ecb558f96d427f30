// --device: what a process computes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "trainer/models/device.h"
#include "trainer/models/model.h"

namespace muster {

struct DeviceChoice {
  enum class Kind : uint8_t {
    kAuto,  // the first GPU if there is one that can be used, else the CPU
    kCpu,
    kCuda,  // GPU `index` or nothing
    kWait,  // none: each step waits for `wait_ms` instead
  };
  Kind kind = Kind::kAuto;
  int index = 0;
  int wait_ms = 0;
  cuda::Math math = cuda::Math::kFloat32;  // on a GPU
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

/// "auto", "cpu", "cuda" (the first), "cuda:N" or "wait:MILLISECONDS". InvalidArgument: anything else.
absl::StatusOr<DeviceChoice> ParseDevice(const std::string& text);

/// "fp32", "tf32" or "bf16". InvalidArgument: anything else.
absl::StatusOr<cuda::Math> ParseCudaMath(const std::string& text);

/// As the flag is written.
std::string ToString(const DeviceChoice& choice);

/// The device, or null for the CPU. kAuto logs one line that says why it is the CPU. FailedPrecondition or
/// InvalidArgument, with the flag: the device asked for cannot be used.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceChoice& choice);

/// With kAuto, what the device has no code or no memory for is computed on the CPU: logs why and resets
/// `device`. Otherwise returns `status` with the flag. For a `status` that is not OK.
absl::Status FallBackToCpu(const DeviceChoice& choice, const absl::Status& status,
                           std::unique_ptr<Device>* device);

/// The plan's model on `device`, or on the CPU if that is null or FallBackToCpu says so.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelPlan& plan, const DeviceChoice& choice,
                                                 const DeviceModelOptions& options,
                                                 std::unique_ptr<Device>* device);

/// "cpu", the device's name, or the wait: for result records.
std::string DeviceName(const DeviceChoice& choice, const Device* device);

}  // namespace muster
