#include "trainer/load_data.h"

#include <bit>

#include "base/crc32c.h"
#include "trainer/data/census.h"
#include "trainer/data/make_data.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_census.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {

static_assert(std::endian::native == std::endian::little, "the checksum is of numbers as they lie in memory");

namespace {

// Ids and numbers as the model's columns make them.
absl::StatusOr<Dataset> EncodeCensus(const FeatureColumns& columns, const CensusDataset& census) {
  MUSTER_ASSIGN_OR_RETURN(EncodedFeatures encoded, Encode(columns, census.table));
  return Dataset{.feature_count = encoded.numeric_count,
                 .id_count = encoded.id_count,
                 .features = std::move(encoded.numeric),
                 .ids = std::move(encoded.ids),
                 .labels = census.labels};
}

// A file that is not there, is a folder or may not be read is wrong input like one that is damaged.
absl::Status NameTheFlag(const absl::Status& status) {
  const bool cannot_be_read =
      absl::IsNotFound(status) || absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status);
  return cannot_be_read ? InvalidArgument("--data_dir: %s", std::string(status.message())) : status;
}

}  // namespace

std::string RealDataSetName(const ModelRecipe& recipe) { return recipe.columns ? kCensusName : kMnistName; }

std::string DataSetName(const ModelRecipe& recipe, const std::string& folder) {
  if (!folder.empty()) return RealDataSetName(recipe);
  return recipe.columns ? kSyntheticCensusName : kSyntheticDigitsName;
}

std::string DataSetTitle(const ModelRecipe& recipe) { return recipe.columns ? "Census" : "MNIST"; }

absl::StatusOr<LoadedData> LoadData(const ModelRecipe& recipe, const std::string& folder) {
  LoadedData data;
  if (!recipe.columns) {
    auto mnist = folder.empty() ? MakeSyntheticMnist(kSyntheticDataSeed) : LoadMnist(folder);
    if (!mnist.ok()) return NameTheFlag(mnist.status());
    data.sets = *std::move(mnist);
    return data;
  }
  const auto census = folder.empty() ? MakeSyntheticCensus(kSyntheticDataSeed) : LoadCensus(folder);
  if (!census.ok()) return NameTheFlag(census.status());
  data.features = AllFeatures(*recipe.columns);
  MUSTER_RETURN_IF_ERROR(FitStandardization(census->train.table, &data.features.numeric));
  MUSTER_ASSIGN_OR_RETURN(data.sets.train, EncodeCensus(data.features, census->train));
  MUSTER_ASSIGN_OR_RETURN(data.sets.test, EncodeCensus(data.features, census->test));
  return data;
}

absl::StatusOr<Dataset> LoadTestSet(const ModelRecipe& recipe, const std::string& folder,
                                    const FeatureColumns& features) {
  if (!recipe.columns) {
    if (folder.empty()) return MakeSyntheticMnist(kSyntheticDataSeed).test;
    auto mnist = LoadMnistTestSet(folder);
    if (!mnist.ok()) return NameTheFlag(mnist.status());
    return mnist;
  }
  if (folder.empty()) return EncodeCensus(features, MakeSyntheticCensus(kSyntheticDataSeed).test);
  const auto census = LoadCensusTestSet(folder);
  if (!census.ok()) return NameTheFlag(census.status());
  return EncodeCensus(features, *census);
}

uint32_t DatasetCrc32c(const Dataset& dataset) {
  uint32_t crc = Crc32c(dataset.bytes.data(), dataset.bytes.size());
  crc = Crc32c(dataset.features.data(), dataset.features.size() * sizeof(float), crc);
  crc = Crc32c(dataset.ids.data(), dataset.ids.size() * sizeof(int32_t), crc);
  return Crc32c(dataset.labels.data(), dataset.labels.size(), crc);
}

}  // namespace muster
