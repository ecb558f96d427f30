// Training that stays on a CUDA device.
#pragma once

#include <memory>

#include "trainer/models/device.h"

namespace muster {

/// On device `device_index`, which exists. Errors as Device::MakeTraining.
absl::StatusOr<std::unique_ptr<DeviceTraining>> MakeCudaTraining(int device_index, ModelPlan plan,
                                                                 const TrainTestData& data,
                                                                 const DeviceTrainingOptions& options);

}  // namespace muster
