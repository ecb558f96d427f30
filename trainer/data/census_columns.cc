#include "trainer/data/census_columns.h"

namespace muster {
namespace {

constexpr int64_t kEmbeddingWidth = 8;

std::vector<NumericFeature> NumericColumns() {
  return {{.column = "age"},
          {.column = "education_num"},
          {.column = "capital_gain"},
          {.column = "capital_loss"},
          {.column = "hours_per_week"}};
}

BucketizedColumn AgeBuckets() {
  return {.column = "age", .boundaries = {18, 25, 30, 35, 40, 45, 50, 55, 60, 65}};
}

std::vector<DeepColumn> Embeddings(const std::vector<IdColumn>& columns) {
  std::vector<DeepColumn> deep;
  for (const IdColumn& column : columns) deep.push_back({.column = column, .width = kEmbeddingWidth});
  return deep;
}

// The columns that `tutorial` and `dist_test` share.
struct HashedCensus {
  const IdColumn gender = VocabularyColumn{"gender", {"Female", "Male"}};
  const IdColumn race =
      VocabularyColumn{"race", {"Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"}};
  const IdColumn education = HashedColumn{"education", 1000};
  const IdColumn marital_status = HashedColumn{"marital_status", 100};
  const IdColumn relationship = HashedColumn{"relationship", 100};
  const IdColumn workclass = HashedColumn{"workclass", 100};
  const IdColumn occupation = HashedColumn{"occupation", 1000};
  const IdColumn native_country = HashedColumn{"native_country", 1000};
  const IdColumn education_occupation = CrossedColumn{{"education", "occupation"}, 10'000};
  const IdColumn country_occupation = CrossedColumn{{"native_country", "occupation"}, 10'000};
};

WideDeepColumns Tutorial() {
  const HashedCensus c;
  return {.wide = {c.gender, c.native_country, c.education, c.occupation, c.workclass, c.relationship,
                   AgeBuckets(), c.education_occupation,
                   CrossedColumn{{AgeBuckets(), "education", "occupation"}, 1'000'000}, c.country_occupation},
          .deep = Embeddings(
              {c.workclass, c.education, c.gender, c.relationship, c.native_country, c.occupation}),
          .numeric = NumericColumns()};
}

WideDeepColumns DistTest() {
  const HashedCensus c;
  return {.wide = {c.gender, c.native_country, c.education, c.occupation, c.workclass, c.marital_status,
                   c.relationship, AgeBuckets(), c.education_occupation, c.country_occupation,
                   CrossedColumn{{AgeBuckets(), "race", "occupation"}, 1'000'000}},
          .deep = Embeddings({c.workclass, c.education, c.marital_status, c.gender, c.relationship, c.race,
                              c.native_country, c.occupation}),
          .numeric = NumericColumns()};
}

WideDeepColumns Minibatch() {
  const IdColumn education = VocabularyColumn{
      "education",
      {"Bachelors", "HS-grad", "11th", "Masters", "9th", "Some-college", "Assoc-acdm", "Assoc-voc", "7th-8th",
       "Doctorate", "Prof-school", "5th-6th", "10th", "1st-4th", "Preschool", "12th"}};
  const IdColumn marital_status =
      VocabularyColumn{"marital_status",
                       {"Married-civ-spouse", "Divorced", "Married-spouse-absent", "Never-married",
                        "Separated", "Married-AF-spouse", "Widowed"}};
  const IdColumn relationship = VocabularyColumn{
      "relationship", {"Husband", "Not-in-family", "Wife", "Own-child", "Unmarried", "Other-relative"}};
  const IdColumn workclass =
      VocabularyColumn{"workclass",
                       {"Self-emp-not-inc", "Private", "State-gov", "Federal-gov", "Local-gov", "?",
                        "Self-emp-inc", "Without-pay", "Never-worked"}};
  const IdColumn occupation = HashedColumn{"occupation", 1000};
  return {.wide = {education, marital_status, relationship, workclass, occupation, AgeBuckets(),
                   CrossedColumn{{"education", "occupation"}, 1000},
                   CrossedColumn{{AgeBuckets(), "education", "occupation"}, 1000}},
          .deep = {{.column = workclass, .width = 0},
                   {.column = education, .width = 0},
                   {.column = marital_status, .width = 0},
                   {.column = relationship, .width = 0},
                   {.column = occupation, .width = kEmbeddingWidth}},
          .numeric = NumericColumns()};
}

}  // namespace

absl::StatusOr<WideDeepColumns> CensusColumns(const std::string& variant) {
  if (variant == "tutorial") return Tutorial();
  if (variant == "dist_test") return DistTest();
  if (variant == "minibatch") return Minibatch();
  if (variant == "wide_only") return WideDeepColumns{.wide = Tutorial().wide};
  return InvalidArgument("unknown variant \"%s\" of wide_deep: tutorial, dist_test, minibatch, wide_only",
                         variant);
}

FeatureColumns AllFeatures(const WideDeepColumns& columns) {
  FeatureColumns features{.numeric = columns.numeric, .ids = columns.wide};
  for (const DeepColumn& deep : columns.deep) features.ids.push_back(deep.column);
  return features;
}

}  // namespace muster
