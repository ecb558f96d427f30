// A trained model in a file that says by itself what it holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/flat_buffer.h"
#include "trainer/models/model.h"
#include "trainer/models/row_source.h"
#include "trainer/safetensors.h"

namespace muster {

/// `config` with the sizes of hidden layers that the model has by default, which may be others in a later
/// version. `plan`: of `config`.
ModelConfig WithHiddenSizes(const ModelConfig& config, const ModelPlan& plan);

/// What a file says of its model besides the parameters.
struct SavedModelInfo {
  ModelConfig config;
  std::string data_set;          // that it was trained with, as load_data.h names them
  uint32_t test_set_crc32c = 0;  // DatasetCrc32c of its test set
  uint64_t steps = 0;
  double test_accuracy = 0;
  FeatureColumns features;  // of models that take a table, with the standardization of the training
};

struct SavedModel {
  SavedModelInfo info;
  ModelRecipe recipe;
  ModelPlan plan;
  FlatBuffer parameters;
  TableValues tables;
};

/// The entries of safetensors' __metadata__: muster_model_version, model, variant, hidden ("512,256"),
/// data_set, test_set_crc32c ("0badcafe"), steps, test_accuracy, standardization ("age:38.5:13.6,...":
/// column, mean, deviation), id_columns, id_hash (how strings and crosses are hashed, in a sentence). What is
/// empty is the model's default.
///
/// id_columns is a JSON object: for each name of a column of ids, what trainer/data/feature_columns.h makes
/// them of, as one of
///   {"number": COLUMN, "boundaries": [18, ...]}
///   {"string": COLUMN, "buckets": 1000}
///   {"string": COLUMN, "words": [WORD, ...]}
///   {"cross": [COLUMN or {"number": ...}, ...], "buckets": 10000}
SafetensorsMetadata ToMetadata(const SavedModelInfo& info);

/// Writes the parameters and the tables as a file that LoadModel reads.
absl::Status SaveModel(const std::filesystem::path& path, const ModelPlan& plan,
                       std::span<const float> parameters, const TableValues& tables,
                       const SavedModelInfo& info);

/// InvalidArgument names the path and the tensor or entry: a file that is damaged, of another version or not
/// of this program, a model that is not known, id columns or tensors that are not the model's, values that
/// are not finite.
absl::StatusOr<SavedModel> LoadModel(const std::filesystem::path& path);

}  // namespace muster
