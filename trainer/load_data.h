// The data set that the flags name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/data/dataset.h"
#include "trainer/data/feature_columns.h"
#include "trainer/models/model.h"

namespace muster {

/// The kinds, as saved models name what they were trained with.
inline constexpr const char* kMnistName = "mnist";
inline constexpr const char* kCensusName = "census";
inline constexpr const char* kSyntheticDigitsName = "synthetic_digits";
inline constexpr const char* kSyntheticCensusName = "synthetic_census";

/// "mnist" or "census": the real set that the model of `recipe` takes, and the folder that holds it.
std::string RealDataSetName(const ModelRecipe& recipe);

/// Of what LoadData gives.
std::string DataSetName(const ModelRecipe& recipe, const std::string& folder);

/// "MNIST", "Census": for people.
std::string DataSetTitle(const ModelRecipe& recipe);

struct LoadedData {
  TrainTestData sets;
  FeatureColumns features;  // of models that take a table, with the standardization that was applied
};

/// The set from `folder`/mnist or `folder`/census or, if it is empty, the synthetic one, which is the same
/// for everybody, as the model takes it. InvalidArgument: files that are missing or damaged.
absl::StatusOr<LoadedData> LoadData(const ModelRecipe& recipe, const std::string& folder);

/// The test set alone. `features`: as LoadData gave them for the training.
absl::StatusOr<Dataset> LoadTestSet(const ModelRecipe& recipe, const std::string& folder,
                                    const FeatureColumns& features);

/// Tells data sets apart that have the same name: CRC-32C over bytes, features, ids (both little-endian) and
/// labels.
uint32_t DatasetCrc32c(const Dataset& dataset);

}  // namespace muster
