#include "kernels/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 3;
constexpr uint64_t kSeed = 9;
const TableSpec kSpec{
    .name = "t", .rows = 1000, .width = kWidth, .initializer = Initializer::kTruncatedNormal, .scale = 0.5f};

std::vector<OptimizerConfig> AllOptimizers() {
  std::vector<OptimizerConfig> configs;
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kMomentum,
                                   OptimizerKind::kAdagrad, OptimizerKind::kFtrl}) {
    configs.push_back(UsualOptimizer(kind));
  }
  return configs;
}

std::vector<float> Read(const ParameterTable& table, std::vector<int64_t> ids) {
  std::vector<float> values(ids.size() * table.spec().width);
  table.Read(ids, values);
  return values;
}

std::vector<float> AllRows(const ParameterTable& table) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < table.spec().rows; ++id) ids.push_back(id);
  return Read(table, ids);
}

TEST(ParameterTable, RowsBeginAsFunctionsOfSeedTableAndId) {
  const ParameterTable table(kSpec, 2, AllOptimizers()[0], kSeed), same(kSpec, 2, AllOptimizers()[1], kSeed),
      other_seed(kSpec, 2, AllOptimizers()[0], kSeed + 1), other_table(kSpec, 3, AllOptimizers()[0], kSeed);
  const std::vector<float> rows = AllRows(table);
  EXPECT_THAT(rows, Each(::testing::AllOf(::testing::Ge(-1), ::testing::Lt(1))));
  EXPECT_EQ(rows, AllRows(same));
  EXPECT_NE(rows, AllRows(other_seed));
  EXPECT_NE(rows, AllRows(other_table));
  // Neither which rows are asked for nor in which order changes one.
  EXPECT_EQ(Read(table, {7}), std::vector<float>(rows.begin() + 7 * kWidth, rows.begin() + 8 * kWidth));
  EXPECT_EQ(table.updated_rows(), 0);
}

// The same as an optimizer over the whole table, whose rows are all there from the start.
TEST(ParameterTable, UpdatesAsAnOptimizerOfTheWholeTable) {
  for (const OptimizerConfig& config : AllOptimizers()) {
    ParameterTable table(kSpec, 0, config, kSeed);
    std::vector<float> whole = AllRows(table);
    const auto optimizer = MakeOptimizer(config, static_cast<int64_t>(whole.size()));
    RandomStream random(4);
    for (int step = 0; step < 60; ++step) {
      std::vector<int64_t> ids;
      // Later steps reach rows that the first ones did not, so that the table grows in between.
      for (int64_t id = 0; id < kSpec.rows; ++id) {
        if (random.NextBelow(2000) < static_cast<uint64_t>(step)) ids.push_back(kSpec.rows - 1 - id);
      }
      std::vector<float> gradient(ids.size() * kWidth);
      for (float& value : gradient) value = static_cast<float>(2 * random.NextDouble() - 1);
      table.Apply(ids, gradient, 0.25f);
      optimizer->ApplyRows(kWidth, ids, gradient, 0.25f, whole);
    }
    EXPECT_EQ(AllRows(table), whole) << OptimizerName(config.kind);
    EXPECT_GT(table.updated_rows(), 500);
    EXPECT_LT(table.updated_rows(), kSpec.rows);
  }
}

TEST(ParameterTable, GoesOnFromACopyOfItsRowsWithTheSameBits) {
  for (const OptimizerConfig& config : AllOptimizers()) {
    ParameterTable table(kSpec, 0, config, kSeed);
    RandomStream random(8);
    const auto update = [&](ParameterTable& of, uint64_t seed) {
      RandomStream draws(seed);
      std::vector<int64_t> ids;
      for (int64_t id = 0; id < kSpec.rows; ++id) {
        if (draws.NextBelow(10) == 0) ids.push_back(id);
      }
      std::vector<float> gradient(ids.size() * kWidth);
      for (float& value : gradient) value = static_cast<float>(draws.NextDouble() - 0.5);
      of.Apply(ids, gradient, 0.5f);
    };
    for (uint64_t step = 0; step < 5; ++step) update(table, step);
    const TableRows rows = table.CopyRows();
    EXPECT_EQ(static_cast<int64_t>(rows.ids.size()), table.updated_rows());
    // In two parts, as from the files of two shards.
    TableRows parts[2];
    for (TableRows& part : parts) part.slots.resize(rows.slots.size());
    for (size_t i = 0; i < rows.ids.size(); ++i) {
      TableRows& part = parts[rows.ids[i] % 2];
      const auto row = [&](const std::vector<float>& from, std::vector<float>& to) {
        to.insert(to.end(), from.begin() + i * kWidth, from.begin() + (i + 1) * kWidth);
      };
      part.ids.push_back(rows.ids[i]);
      row(rows.values, part.values);
      for (size_t s = 0; s < rows.slots.size(); ++s) row(rows.slots[s], part.slots[s]);
    }
    ParameterTable restored(kSpec, 0, config, kSeed);
    for (const TableRows& part : parts) ASSERT_TRUE(restored.RestoreRows(part).ok());
    restored.SkipTo(5);
    for (uint64_t step = 5; step < 9; ++step) {
      update(table, step);
      update(restored, step);
    }
    EXPECT_EQ(AllRows(restored), AllRows(table)) << OptimizerName(config.kind);
    EXPECT_FALSE(restored.RestoreRows(rows).ok()) << "they are there already";
  }
}

// Rows 0 to 9 with every update, and one of the others with each: 10 in the first, 11 in the second, ...
void UpdateMostlyTheSame(ParameterTable& table, int64_t update) {
  std::vector<int64_t> ids(10);
  std::iota(ids.begin(), ids.end(), 0);
  ids.push_back(9 + update);
  table.Apply(ids, std::vector<float>(ids.size() * kWidth, 0.5f), 1.0f);
}

std::vector<int64_t> SortedIds(const ParameterTable& table) {
  std::vector<int64_t> ids = table.CopyRows().ids;
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(ParameterTable, DropsRowsThatNoUpdateHasTouchedForLong) {
  for (const OptimizerConfig& config : AllOptimizers()) {
    ParameterTable table(kSpec, 0, config, kSeed, {.every = 20, .after = 2}), keeps(kSpec, 0, config, kSeed);
    const std::vector<float> initial = AllRows(table);
    for (int64_t update = 1; update <= 59; ++update) {
      UpdateMostlyTheSame(table, update);
      UpdateMostlyTheSame(keeps, update);
    }
    // After 40 updates none was untouched for 40.
    EXPECT_EQ(table.updated_rows(), 10 + 59);
    EXPECT_EQ(AllRows(table), AllRows(keeps));
    UpdateMostlyTheSame(table, 60);
    UpdateMostlyTheSame(keeps, 60);
    std::vector<int64_t> expected(10);
    std::iota(expected.begin(), expected.end(), 0);
    for (int64_t update = 21; update <= 60; ++update) expected.push_back(9 + update);
    EXPECT_EQ(SortedIds(table), expected);
    EXPECT_EQ(Read(table, expected), Read(keeps, expected)) << OptimizerName(config.kind);
    EXPECT_EQ(Read(table, {10}),
              std::vector<float>(initial.begin() + 10 * kWidth, initial.begin() + 11 * kWidth));

    // What comes again, or new, begins with fresh slots.
    ParameterTable fresh(kSpec, 0, config, kSeed);
    fresh.SkipTo(60);
    const std::vector<int64_t> again = {10, 300, 15};
    for (ParameterTable* each : {&table, &fresh}) {
      each->Apply(again, std::vector<float>(again.size() * kWidth, 0.25f), 1.0f);
    }
    EXPECT_EQ(Read(table, again), Read(fresh, again)) << OptimizerName(config.kind);
    EXPECT_EQ(Read(table, expected), Read(keeps, expected)) << OptimizerName(config.kind);
  }
}

TEST(ParameterTable, DropsTheSameRowsAfterACopy) {
  const OptimizerConfig config = UsualOptimizer(OptimizerKind::kFtrl);
  constexpr RowEviction kEviction{.every = 20, .after = 2};
  ParameterTable table(kSpec, 0, config, kSeed, kEviction), restored(kSpec, 0, config, kSeed, kEviction),
      without(kSpec, 0, config, kSeed, kEviction);
  for (int64_t update = 1; update <= 50; ++update) UpdateMostlyTheSame(table, update);
  TableRows rows = table.CopyRows();
  EXPECT_EQ(rows.last_updates.size(), rows.ids.size());
  ASSERT_TRUE(restored.RestoreRows(rows).ok());
  rows.last_updates.clear();  // as of a table that dropped none
  ASSERT_TRUE(without.RestoreRows(rows, 50).ok());
  for (ParameterTable* each : {&restored, &without}) each->SkipTo(50);
  for (int64_t update = 51; update <= 80; ++update) {
    for (ParameterTable* each : {&table, &restored, &without}) UpdateMostlyTheSame(*each, update);
  }
  EXPECT_EQ(table.updated_rows(), 10 + 40);
  EXPECT_EQ(SortedIds(restored), SortedIds(table));
  EXPECT_EQ(AllRows(restored), AllRows(table));
  EXPECT_EQ(without.updated_rows(), 10 + 80);
  for (int64_t update = 81; update <= 100; ++update) UpdateMostlyTheSame(without, update);
  EXPECT_EQ(without.updated_rows(), 10 + 40);
}

TEST(ParameterTable, RefusesRowsThatCannotBeItsOwn) {
  const TableRows good{
      .ids = {1, 2}, .values = std::vector<float>(2 * kWidth), .slots = {std::vector<float>(2 * kWidth)}};
  const auto restores = [&](const std::function<void(TableRows&)>& change) {
    ParameterTable table(kSpec, 0, UsualOptimizer(OptimizerKind::kAdagrad), kSeed);
    TableRows rows = good;
    change(rows);
    const bool ok = table.RestoreRows(rows).ok();
    EXPECT_EQ(table.updated_rows(), ok ? 2 : 0);
    return ok;
  };
  EXPECT_TRUE(restores([](TableRows&) {}));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.ids[1] = 1; }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.ids[1] = -1; }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.ids[1] = kSpec.rows; }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.values.pop_back(); }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.slots[0].pop_back(); }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.slots.clear(); }));
  EXPECT_FALSE(restores([](TableRows& rows) { rows.last_updates = {1}; }));
}

TEST(ParameterTable, NamesWhatIsWrongWithASpec) {
  const auto error = [](const TableSpec& spec, size_t optimizers = 1) {
    const TableSpec tables[] = {{.name = "first", .rows = 1, .width = 1}, spec};
    return std::string(ValidateTables(tables, optimizers).message());
  };
  EXPECT_EQ(error(kSpec), "");
  EXPECT_EQ(error({.name = "first", .rows = 1, .width = 1}), "two tables are named 'first'");
  EXPECT_THAT(error({.name = "t", .rows = 0, .width = 1}), HasSubstr("table 't' has 0 rows"));
  EXPECT_THAT(error({.name = "t", .rows = int64_t{1} << 31, .width = 1}),
              HasSubstr("expected 1 to 2147483647"));
  EXPECT_THAT(error({.name = "t", .rows = 1, .width = 0}), HasSubstr("has 0 numbers"));
  EXPECT_THAT(error({.name = "t", .rows = 1, .width = 1, .optimizer_group = 1}), HasSubstr("group 1"));
  EXPECT_EQ(error({.name = "t", .rows = 1, .width = 1, .optimizer_group = 1}, 2), "");
}

TEST(ParameterTableDeathTest, IdsOutOfRangeAreABug) {
  ParameterTable table(kSpec, 0, AllOptimizers()[0], kSeed);
  for (const int64_t id : {int64_t{-1}, kSpec.rows}) {
    EXPECT_DEATH(Read(table, {id}), "outside the table");
    EXPECT_DEATH(table.Apply(std::vector{id}, std::vector<float>(kWidth), 1), "outside the table");
  }
}

}  // namespace
}  // namespace muster
