#include "trainer/models/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "trainer/models/cpu_model.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(AreaUnderCurve, CountsPairs) {
  using Labels = std::vector<uint8_t>;
  EXPECT_EQ(AreaUnderCurve(std::vector<float>{1, 2, 3, 4}, Labels{0, 0, 1, 1}), 1);
  EXPECT_EQ(AreaUnderCurve(std::vector<float>{4, 3, 2, 1}, Labels{0, 0, 1, 1}), 0);
  EXPECT_EQ(AreaUnderCurve(std::vector<float>{1, 3, 2, 4}, Labels{0, 0, 1, 1}), 0.75);
  EXPECT_EQ(AreaUnderCurve(std::vector<float>{5, 5, 5}, Labels{0, 1, 0}), 0.5);
  EXPECT_EQ(AreaUnderCurve(std::vector<float>{1, 2}, Labels{1, 1}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({}, {}), std::nullopt);
}

TEST(AreaUnderCurve, IsThatOfAllPairsOneByOne) {
  RandomStream random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> scores;
    std::vector<uint8_t> labels = {0, 1};
    for (int i = 0; i < 60; ++i) {
      scores.push_back(static_cast<float>(random.NextBelow(20)));  // some are equal
      if (i >= 2) labels.push_back(static_cast<uint8_t>(random.NextBelow(2)));
    }
    double ahead = 0, pairs = 0;
    for (size_t one = 0; one < scores.size(); ++one) {
      for (size_t zero = 0; zero < scores.size(); ++zero) {
        if (labels[one] != 1 || labels[zero] != 0) continue;
        ++pairs;
        ahead += scores[one] > scores[zero] ? 1 : scores[one] == scores[zero] ? 0.5 : 0;
      }
    }
    EXPECT_DOUBLE_EQ(*AreaUnderCurve(scores, labels), ahead / pairs);
  }
}

TEST(EvaluateDataset, AnswersThatAreNoNumbersAreNoAccuracy) {
  const auto model = MakeCpuModel(
      *PlanModel({.input = {.channels = 1}, .layers = {DenseSpec{.name = "softmax", .outputs = 2}}}),
      {.largest_batch = 2});
  const Dataset dataset{.feature_count = 1, .features = {1, 2, 3}, .labels = {0, 1, 0}};
  BatchBuffer buffer(2, 1);
  std::vector<float> parameters(model->layout().size());
  const auto evaluation = EvaluateDataset(*model, parameters, dataset, buffer);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->result.samples, 3);
  EXPECT_FALSE(evaluation->auc.has_value());
  EXPECT_TRUE(CheckFinite(*evaluation).ok());
  parameters[0] = NAN;
  const absl::Status status = CheckFinite(*EvaluateDataset(*model, parameters, dataset, buffer));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("not finite"));
}

TEST(ReadTables, ReadsEveryRowOfTablesOfAnyLength) {
  const std::vector<TableSpec> specs = {{.name = "short", .rows = 3, .width = 2},
                                        {.name = "long", .rows = 70'000, .width = 1}};
  TableValues values;
  for (const TableSpec& spec : specs) {
    std::vector<float>& table = values.emplace_back(spec.rows * spec.width);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i + values.size());
  }
  TableValuesSource source(specs, values);
  const auto read = ReadTables(specs, source);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, values);
  EXPECT_TRUE(ReadTables({}, source)->empty());
}

}  // namespace
}  // namespace muster
