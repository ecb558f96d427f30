// A trained model for other programs: ONNX (onnx.ai), written with the messages of proto/onnx_subset.proto.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/status.h"
#include "trainer/models/model_spec.h"
#include "trainer/models/row_source.h"
#include "trainer/saved_model.h"

namespace muster {

/// The weights [image.size(), outputs] of a dense layer after an image, or of a convolution whose window is
/// the image, with rows in the order height, width, channels, as [outputs, image.size()] with the columns in
/// ONNX's order channels, height, width.
std::vector<float> WeightsByChannel(const SampleShape& image, int64_t outputs,
                                    std::span<const float> weights);

/// InvalidArgument: the model is more than the 2 GiB that such a file can hold.
absl::Status CheckOnnxSize(const ModelPlan& plan);

/// Writes the model atomically, as it is for inference, in operator set 13. N, the number of samples, is
/// open.
///
/// Input of a model of images: `input` [N, channels, height, width] f32, pixels in [0, 1].
///
/// Inputs of a model with id columns: each column by its name, once also where the model uses it twice. A
/// number [N] f32 as it stands in the table, since the standardization is part of the graph; an id [N] i64.
///
/// Output: `logits` [N, plan.outputs], without softmax or sigmoid. The largest is the answer; a single one
/// says class 1 where it is above zero.
///
/// parameters [plan.layout.size()]; tables: of plan.tables. metadata_props hold what ToMetadata says of
/// `info`, so also how ids are made. InvalidArgument: as CheckOnnxSize.
absl::Status SaveOnnx(const std::filesystem::path& path, const ModelPlan& plan,
                      std::span<const float> parameters, const TableValues& tables,
                      const SavedModelInfo& info);

}  // namespace muster
