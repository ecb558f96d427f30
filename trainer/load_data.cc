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

absl::StatusOr<LoadedData> EncodeCensus(const WideDeepColumns& columns, const Census& census,
                                        const std::vector<NumericFeature>& numeric) {
  FeatureColumns features = AllFeatures(columns);
  if (!numeric.empty()) {
    features.numeric = numeric;
  } else {
    MUSTER_RETURN_IF_ERROR(FitStandardization(census.train.table, &features.numeric));
  }
  LoadedData data;
  MUSTER_ASSIGN_OR_RETURN(data.sets.train, EncodeCensus(features, census.train));
  MUSTER_ASSIGN_OR_RETURN(data.sets.test, EncodeCensus(features, census.test));
  data.numeric = std::move(features.numeric);
  return data;
}

// A file that is not there is wrong input like one that is damaged.
absl::Status NameTheFlag(const absl::Status& status) {
  return absl::IsNotFound(status) ? InvalidArgument("--data_dir: %s", std::string(status.message())) : status;
}

}  // namespace

std::string DataSetName(const ModelRecipe& recipe, const std::string& folder) {
  if (recipe.columns) return folder.empty() ? kSyntheticCensusName : kCensusName;
  return folder.empty() ? kSyntheticDigitsName : kMnistName;
}

std::string DataSetTitle(const ModelRecipe& recipe) { return recipe.columns ? "Census" : "MNIST"; }

absl::StatusOr<LoadedData> LoadData(const ModelRecipe& recipe, const std::string& folder,
                                    const std::vector<NumericFeature>& numeric) {
  if (recipe.columns) {
    if (folder.empty())
      return EncodeCensus(*recipe.columns, MakeSyntheticCensus(kSyntheticDataSeed), numeric);
    const auto census = LoadCensus(folder);
    if (!census.ok()) return NameTheFlag(census.status());
    return EncodeCensus(*recipe.columns, *census, numeric);
  }
  if (folder.empty()) return LoadedData{.sets = MakeSyntheticMnist(kSyntheticDataSeed)};
  auto mnist = LoadMnist(folder);
  if (!mnist.ok()) return NameTheFlag(mnist.status());
  return LoadedData{.sets = *std::move(mnist)};
}

uint32_t DatasetCrc32c(const Dataset& dataset) {
  uint32_t crc = Crc32c(dataset.bytes.data(), dataset.bytes.size());
  crc = Crc32c(dataset.features.data(), dataset.features.size() * sizeof(float), crc);
  crc = Crc32c(dataset.ids.data(), dataset.ids.size() * sizeof(int32_t), crc);
  return Crc32c(dataset.labels.data(), dataset.labels.size(), crc);
}

}  // namespace muster
