// A trained model for other programs: ONNX (onnx.ai), written with the messages of proto/onnx_subset.proto.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// The weights [image.size(), outputs] of a dense layer after an image, or of a convolution whose window is
/// the image, with rows in the order height, width, channels, as [outputs, image.size()] with the columns in
/// ONNX's order channels, height, width.
std::vector<float> WeightsByChannel(const SampleShape& image, int64_t outputs,
                                    std::span<const float> weights);

/// Writes the model atomically, as it is for inference: `input` [N, channels, height, width] f32 with N open
/// and pixels in [0, 1], to `logits` [N, classes], whose largest is the answer (there is no softmax in it).
/// Operator set 13. parameters [plan.layout.size()]; `metadata` goes into metadata_props. InvalidArgument:
/// more than the 2 GiB that such a file can hold.
absl::Status SaveOnnx(const std::filesystem::path& path, const ModelPlan& plan,
                      std::span<const float> parameters, const std::map<std::string, std::string>& metadata);

}  // namespace muster
