// A planned model on a CUDA device whose batches come from the host's memory; parameters and gradients do,
// too, or stay with a replica.
#pragma once

#include <memory>

#include "trainer/models/device.h"
#include "trainer/models/model.h"

namespace muster {

/// On device `device_index`, which exists. Errors as Device::MakeModel.
absl::StatusOr<std::unique_ptr<Model>> MakeCudaModel(int device_index, ModelPlan plan,
                                                     const DeviceModelOptions& options);

}  // namespace muster
