// Finds and loads the CUDA module when the program runs, so that one trainer starts on hosts with a GPU and
// without.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "trainer/models/device.h"

namespace muster {

/// Device `index` of this host. `folder`: where the module lies. FailedPrecondition names what is missing:
/// the driver, the module, cuBLAS, a GPU, or one that is new enough. InvalidArgument: there are not so many
/// GPUs.
///
/// What has been loaded stays so until the process ends.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::filesystem::path& folder, int index);

/// ../lib beside the running program: where builds, bundles and installations have it.
std::filesystem::path CudaModuleFolder();

}  // namespace muster
