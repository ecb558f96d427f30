#include "trainer/data/feature_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "trainer/data/census.h"
#include "trainer/data/census_columns.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMostBuckets = std::numeric_limits<int32_t>::max();

// Three people.
ColumnTable People() {
  return {.rows = 3,
          .numbers = {{.name = "age", .values = {40, 17, 65}}, {.name = "gain", .values = {0, 5, 10}}},
          .strings = {{.name = "education", .dictionary = {"Bachelors", "Masters", "?"}, .codes = {0, 1, 2}},
                      {.name = "occupation",
                       .dictionary = {"Exec-managerial", "Adm-clerical", "?"},
                       .codes = {1, 2, 0}}}};
}

BucketizedColumn AgeBuckets() { return {"age", {18, 25, 30, 35, 40, 45, 50, 55, 60, 65}}; }

std::vector<int32_t> Ids(const IdColumn& column, const ColumnTable& table = People()) {
  const auto encoded = Encode({.ids = {column}}, table);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  return encoded.ok() ? encoded->ids : std::vector<int32_t>();
}

std::string Error(const FeatureColumns& columns) {
  const absl::Status status = Encode(columns, People()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(FeatureColumns, BucketsHoldTheirLowerBoundary) {
  EXPECT_THAT(Ids(AgeBuckets()), ElementsAre(5, 0, 10));
  EXPECT_EQ(BucketCount(AgeBuckets()), 11);
  ColumnTable table{.rows = 6,
                    .numbers = {{.name = "x", .values = {-1e30f, 0.4999f, 0.5f, 0.75f, 1, 1e30f}}}};
  EXPECT_THAT(Ids(BucketizedColumn{"x", {0.5f, 1}}, table), ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(FeatureColumns, WordsOfNoVocabularyShareTheLastId) {
  const VocabularyColumn column{"education", {"Masters", "Bachelors"}};
  EXPECT_THAT(Ids(column), ElementsAre(1, 0, 2));
  EXPECT_EQ(BucketCount(column), 3);
}

// Made by another implementation of the rule in the header, in Python, from the specification of XXH64.
TEST(FeatureColumns, HashesAreThoseOfTheRule) {
  EXPECT_THAT(Ids(HashedColumn{"education", 1000}), ElementsAre(11, 713, 324));
  EXPECT_THAT(Ids(HashedColumn{"education", kMostBuckets}), ElementsAre(330626845, 275264983, 913727961));
  EXPECT_THAT(Ids(HashedColumn{"education", 1}), ElementsAre(0, 0, 0));
  EXPECT_THAT(Ids(CrossedColumn{{"education", "occupation"}, 10'000}), ElementsAre(8623, 1117, 4090));
  EXPECT_THAT(Ids(CrossedColumn{{"education", "occupation"}, kMostBuckets}),
              ElementsAre(1171772621, 945241227, 77776857));
  ColumnTable table = People();
  table.numbers[0].values = {40 - 1, 17, 65};  // buckets 4, 0 and 10
  EXPECT_THAT(Ids(CrossedColumn{{AgeBuckets(), "education", "occupation"}, 1'000'000}, table),
              ElementsAre(65788, 40475, 986060));
  EXPECT_THAT(Ids(CrossedColumn{{AgeBuckets(), "education"}, kMostBuckets}, table),
              ElementsAre(53176070, 104671758, 510278090));
  // 40 bytes, which XXH64 takes through its loop of 32.
  EXPECT_THAT(
      Ids(CrossedColumn{{AgeBuckets(), "education", "occupation", "education", "occupation"}, kMostBuckets},
          table),
      ElementsAre(231034790, 183809243, 1450776241));
}

TEST(FeatureColumns, IdsDependOnTheOrderOfPartsAndNotOfTheDictionary) {
  EXPECT_NE(Ids(CrossedColumn{{"education", "occupation"}, kMostBuckets}),
            Ids(CrossedColumn{{"occupation", "education"}, kMostBuckets}));
  ColumnTable table = People();
  table.strings[0].dictionary = {"unused", "?", "Masters", "Bachelors"};
  table.strings[0].codes = {3, 2, 1};
  for (const IdColumn& column :
       std::vector<IdColumn>{HashedColumn{"education", 1000}, VocabularyColumn{"education", {"?"}},
                             CrossedColumn{{"occupation", "education"}, 1000}}) {
    EXPECT_EQ(Ids(column, table), Ids(column)) << NameOf(column);
  }
}

TEST(FeatureColumns, HaveNames) {
  EXPECT_EQ(NameOf(HashedColumn{"education", 1}), "education");
  EXPECT_EQ(NameOf(VocabularyColumn{"education", {}}), "education");
  EXPECT_EQ(NameOf(AgeBuckets()), "age_buckets");
  EXPECT_EQ(NameOf(CrossedColumn{{AgeBuckets(), "education"}, 1}), "age_buckets_x_education");
}

TEST(FeatureColumns, EncodedRowsLieOneBehindTheOther) {
  const auto encoded = Encode({.numeric = {{.column = "gain"}, {.column = "age"}},
                               .ids = {AgeBuckets(), VocabularyColumn{"education", {"Masters"}}}},
                              People());
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(encoded->rows, 3);
  EXPECT_EQ(encoded->numeric_count, 2);
  EXPECT_EQ(encoded->id_count, 2);
  EXPECT_THAT(encoded->numeric, ElementsAre(0, 40, 5, 17, 10, 65));
  EXPECT_THAT(encoded->ids, ElementsAre(5, 1, 0, 0, 10, 1));
}

TEST(Standardization, IsThatOfTheTableItWasFittedTo) {
  ColumnTable table{
      .rows = 4,
      .numbers = {{.name = "x", .values = {2, 4, 4, 6}}, {.name = "same", .values = {3, 3, 3, 3}}}};
  std::vector<NumericFeature> features = {{.column = "x"}, {.column = "same"}};
  ASSERT_TRUE(FitStandardization(table, &features).ok());
  EXPECT_EQ(features[0].mean, 4);
  EXPECT_EQ(features[0].deviation, std::sqrt(2.0));
  EXPECT_EQ(features[1].mean, 3);
  EXPECT_EQ(features[1].deviation, 1);
  const ColumnTable other{.rows = 1,
                          .numbers = {{.name = "x", .values = {5}}, {.name = "same", .values = {4.5}}}};
  const auto encoded = Encode({.numeric = features}, other);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_THAT(encoded->numeric, ElementsAre(static_cast<float>(1 / std::sqrt(2.0)), 1.5f));

  const ColumnTable empty{.rows = 0, .numbers = {{.name = "x"}, {.name = "same"}}};
  EXPECT_THAT(std::string(FitStandardization(empty, &features).message()), HasSubstr("\"x\": no rows"));
  features = {{.column = "y"}};
  EXPECT_EQ(FitStandardization(table, &features).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FeatureColumns, ErrorsNameTheColumn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<IdColumn, std::string>> cases = {
      {HashedColumn{"educatoin", 10}, "no column \"educatoin\"; did you mean \"education\"?"},
      {VocabularyColumn{"zip", {}}, "no column \"zip\""},
      {BucketizedColumn{"zip", {}}, "no column \"zip\""},
      {CrossedColumn{{"education", "zip"}, 10}, "no column \"zip\""},
      {HashedColumn{"age", 10}, "column \"age\" holds numbers where strings are needed"},
      {BucketizedColumn{"education", {1}}, "column \"education\" holds strings where numbers are needed"},
      {CrossedColumn{{"age", "education"}, 10}, "column \"age\" holds numbers where strings are needed"},
      {BucketizedColumn{"age", {1, 3, 2}}, "column \"age\": boundary 2: "},
      {BucketizedColumn{"age", {1, 1}}, "column \"age\": boundary 1: "},
      {BucketizedColumn{"age", {nan}}, "column \"age\": boundary nan: "},
      {BucketizedColumn{"age", {1, infinity}}, "column \"age\": boundary inf: "},
      {HashedColumn{"education", 0}, "column \"education\": 0 buckets"},
      {HashedColumn{"education", kMostBuckets + 1}, "column \"education\": 2147483648 buckets"},
      {CrossedColumn{{"education", "occupation"}, -1}, "column \"education_x_occupation\": -1 buckets"},
      {CrossedColumn{{"education"}, 10}, "column \"education\": a cross of 1 parts"},
      {VocabularyColumn{"education", {"a", "b", "a"}}, "column \"education\": the word \"a\" is there twice"},
  };
  for (const auto& [column, message] : cases) EXPECT_THAT(Error({.ids = {column}}), HasSubstr(message));
  EXPECT_THAT(Error({.numeric = {{.column = "education"}}}), HasSubstr("holds strings where numbers"));
}

std::string Describe(const IdColumn& column) {
  return absl::StrFormat("%s %d", NameOf(column), BucketCount(column));
}

WideDeepColumns ColumnsOf(const std::string& variant) {
  const auto columns = CensusColumns(variant);
  EXPECT_TRUE(columns.ok()) << columns.status();
  return columns.value_or(WideDeepColumns());
}

TEST(CensusColumns, AreThoseOfTheirSources) {
  const auto wide = [](const std::string& variant) {
    const WideDeepColumns columns = ColumnsOf(variant);
    std::vector<std::string> wide;
    for (const IdColumn& column : columns.wide) wide.push_back(Describe(column));
    return wide;
  };
  const auto deep = [](const std::string& variant) {
    const WideDeepColumns columns = ColumnsOf(variant);
    std::vector<std::string> deep;
    for (const DeepColumn& column : columns.deep) {
      deep.push_back(absl::StrFormat("%s as %d", Describe(column.column), column.width));
    }
    return deep;
  };
  EXPECT_THAT(
      wide("tutorial"),
      ElementsAre("gender 3", "native_country 1000", "education 1000", "occupation 1000", "workclass 100",
                  "relationship 100", "age_buckets 11", "education_x_occupation 10000",
                  "age_buckets_x_education_x_occupation 1000000", "native_country_x_occupation 10000"));
  EXPECT_THAT(deep("tutorial"),
              ElementsAre("workclass 100 as 8", "education 1000 as 8", "gender 3 as 8",
                          "relationship 100 as 8", "native_country 1000 as 8", "occupation 1000 as 8"));
  EXPECT_THAT(
      wide("dist_test"),
      ElementsAre("gender 3", "native_country 1000", "education 1000", "occupation 1000", "workclass 100",
                  "marital_status 100", "relationship 100", "age_buckets 11", "education_x_occupation 10000",
                  "native_country_x_occupation 10000", "age_buckets_x_race_x_occupation 1000000"));
  EXPECT_THAT(deep("dist_test"),
              ElementsAre("workclass 100 as 8", "education 1000 as 8", "marital_status 100 as 8",
                          "gender 3 as 8", "relationship 100 as 8", "race 6 as 8", "native_country 1000 as 8",
                          "occupation 1000 as 8"));
  EXPECT_THAT(wide("minibatch"),
              ElementsAre("education 17", "marital_status 8", "relationship 7", "workclass 10",
                          "occupation 1000", "age_buckets 11", "education_x_occupation 1000",
                          "age_buckets_x_education_x_occupation 1000"));
  EXPECT_THAT(deep("minibatch"),
              ElementsAre("workclass 10 as 0", "education 17 as 0", "marital_status 8 as 0",
                          "relationship 7 as 0", "occupation 1000 as 8"));
  for (const std::string variant : {"tutorial", "dist_test", "minibatch"}) {
    const WideDeepColumns columns = ColumnsOf(variant);
    std::vector<std::string> numeric;
    for (const NumericFeature& feature : columns.numeric) numeric.push_back(feature.column);
    EXPECT_THAT(numeric,
                ElementsAre("age", "education_num", "capital_gain", "capital_loss", "hours_per_week"));
  }
  EXPECT_EQ(CensusColumns("deep").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CensusColumns, FitTheRealSet) {
  const char* const folder = std::getenv("MUSTER_DATA");
  if (folder == nullptr)
    GTEST_SKIP() << "MUSTER_DATA does not name a folder with the real data set (census/)";
  const auto census = LoadCensus(folder);
  ASSERT_TRUE(census.ok()) << census.status();
  for (const std::string variant : {"tutorial", "dist_test", "minibatch"}) {
    WideDeepColumns columns = ColumnsOf(variant);
    ASSERT_TRUE(FitStandardization(census->train.table, &columns.numeric).ok());
    const FeatureColumns features = AllFeatures(columns);
    ASSERT_EQ(features.ids.size(), columns.wide.size() + columns.deep.size());
    for (const CensusDataset* part : {&census->train, &census->test}) {
      const auto encoded = Encode(features, part->table);
      ASSERT_TRUE(encoded.ok()) << encoded.status();
      for (int64_t i = 0; i < encoded->id_count; ++i) {
        const int64_t buckets = BucketCount(features.ids[i]);
        // A word in another case than the data has would put whole groups into the bucket for the others.
        const bool closed = std::holds_alternative<VocabularyColumn>(features.ids[i]);
        for (int64_t row = 0; row < encoded->rows; ++row) {
          const int32_t id = encoded->ids[row * encoded->id_count + i];
          ASSERT_TRUE(id >= 0 && id < buckets - (closed ? 1 : 0)) << NameOf(features.ids[i]) << " " << id;
        }
      }
      if (part != &census->train) continue;
      for (int64_t i = 0; i < encoded->numeric_count; ++i) {
        double sum = 0, squares = 0;
        for (int64_t row = 0; row < encoded->rows; ++row) {
          const double value = encoded->numeric[row * encoded->numeric_count + i];
          sum += value;
          squares += value * value;
        }
        // Rounding to float moves a value by 2^-24 of itself at most, and the mean square of all is 1.
        EXPECT_NEAR(sum / encoded->rows, 0, 0x1p-24) << columns.numeric[i].column;
        EXPECT_NEAR(squares / encoded->rows, 1, 0x1p-23) << columns.numeric[i].column;
      }
    }
  }
}

}  // namespace
}  // namespace muster
