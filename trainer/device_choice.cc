#include "trainer/device_choice.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <optional>

#include "base/logging.h"
#include "trainer/cuda_module.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/waiting_model.h"

namespace muster {
namespace {

using Kind = DeviceChoice::Kind;

// Beyond every host's.
constexpr int kMaxIndex = 1023;
constexpr int kMaxWaitMs = 999'999;

struct MathName {
  const char* name;
  cuda::Math math;
};

constexpr MathName kMathNames[] = {
    {"fp32", cuda::Math::kFloat32}, {"tf32", cuda::Math::kTf32}, {"bf16", cuda::Math::kBfloat16}};

std::optional<int> NumberBehind(const std::string& prefix, const std::string& text, int most) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const std::string digits = text.substr(prefix.size());
  int number = 0;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &number) ||
      number > most) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDevice(const std::string& text) {
  if (text == "auto") return DeviceChoice{};
  if (text == "cpu") return DeviceChoice{.kind = Kind::kCpu};
  if (text == "cuda") return DeviceChoice{.kind = Kind::kCuda};
  if (const auto index = NumberBehind("cuda:", text, kMaxIndex)) {
    return DeviceChoice{.kind = Kind::kCuda, .index = *index};
  }
  if (const auto wait_ms = NumberBehind("wait:", text, kMaxWaitMs)) {
    return DeviceChoice{.kind = Kind::kWait, .wait_ms = *wait_ms};
  }
  return InvalidArgument(
      "--device=%s: expected auto, cpu, cuda:N with the number of a GPU from 0, or wait:N with milliseconds "
      "that "
      "each step waits instead of computing",
      text);
}

absl::StatusOr<cuda::Math> ParseCudaMath(const std::string& text) {
  for (const auto& [name, math] : kMathNames) {
    if (text == name) return math;
  }
  return InvalidArgument("--cuda_math=%s: there are: fp32, tf32, bf16", text);
}

std::string ToString(const DeviceChoice& choice) {
  switch (choice.kind) {
    case Kind::kAuto:
      return "auto";
    case Kind::kCpu:
      return "cpu";
    case Kind::kCuda:
      return absl::StrFormat("cuda:%d", choice.index);
    case Kind::kWait:
      return absl::StrFormat("wait:%d", choice.wait_ms);
  }
  MUSTER_CHECK(false, "a kind of device without a case");
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceChoice& choice) {
  if (choice.kind == Kind::kCpu || choice.kind == Kind::kWait) return nullptr;
  auto device = OpenCudaDevice(CudaModuleFolder(), choice.index);
  if (device.ok()) {
    spdlog::info("computing on {}", (*device)->name());
    return device;
  }
  std::unique_ptr<Device> none;
  MUSTER_RETURN_IF_ERROR(FallBackToCpu(choice, device.status(), &none));
  return none;
}

absl::Status FallBackToCpu(const DeviceChoice& choice, const absl::Status& status,
                           std::unique_ptr<Device>* device) {
  if (choice.kind != Kind::kAuto || absl::IsInternal(status)) {
    return Annotate(status, "--device=" + ToString(choice));
  }
  spdlog::info("computing on the CPU: {}", std::string(status.message()));
  device->reset();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelPlan& plan, const DeviceChoice& choice,
                                                 const DeviceModelOptions& options,
                                                 std::unique_ptr<Device>* device) {
  if (*device != nullptr) {
    auto model = (*device)->MakeModel(plan, options);
    if (model.ok()) return model;
    MUSTER_RETURN_IF_ERROR(FallBackToCpu(choice, model.status(), device));
  }
  if (choice.kind == Kind::kWait) {
    return MakeWaitingModel(plan, options.largest_batch, std::chrono::milliseconds(choice.wait_ms));
  }
  return MakeCpuModel(plan, {.largest_batch = options.largest_batch, .seed = options.seed});
}

std::string DeviceName(const DeviceChoice& choice, const Device* device) {
  if (choice.kind == Kind::kWait) return ToString(choice);
  return device == nullptr ? "cpu" : device->name();
}

}  // namespace muster
