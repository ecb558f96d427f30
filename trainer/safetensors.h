// The saved model: safetensors (huggingface/safetensors, format 0.x): 8 bytes little-endian length, a JSON
// header, raw tensors.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/parameter_layout.h"

namespace muster {

/// Writes every tensor of the layout, without padding, atomically. `metadata` goes into the header.
absl::Status SaveSafetensors(const std::filesystem::path& path, const ParameterLayout& layout,
                             std::span<const float> parameters,
                             const std::map<std::string, std::string>& metadata);

}  // namespace muster
