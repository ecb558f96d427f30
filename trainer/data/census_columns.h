// The columns that the wide & deep models make of the census, one description per variant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/data/feature_columns.h"

namespace muster {

/// An input of the deep part.
struct DeepColumn {
  IdColumn column;
  int64_t width;  // of the embedding; 0: none, the id itself as a vector of BucketCount zeros with a one
};

struct WideDeepColumns {
  std::vector<IdColumn> wide;
  std::vector<DeepColumn> deep;
  std::vector<NumericFeature> numeric;  // of the deep part; FitStandardization is the caller's to call
};

/// The variants:
///   tutorial   tensorflow/tensorflow, tensorflow/examples/learn/wide_n_deep_tutorial.py
///   dist_test  tensorflow/tensorflow, tensorflow/tools/dist_test/python/census_widendeep.py
///   minibatch  tensorflow/models, official/wide_deep/census_dataset.py
///   wide_only  the wide columns of tutorial and nothing else
/// with two differences: the words for gender are "Female" and "Male" as in the files, where the first two
/// sources have them in lower case and so never meet them; and a word that no list has gets an id of its own.
/// InvalidArgument: another name.
absl::StatusOr<WideDeepColumns> CensusColumns(const std::string& variant);

/// All inputs in one table: `numeric`, and as ids the wide columns, then the deep ones.
FeatureColumns AllFeatures(const WideDeepColumns& columns);

}  // namespace muster
