// Rows of tables over shards: which owns them, and what a shard does with its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ps/row_partition.h"
#include "ps/shard_tables.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RowPartition, MovesOnlyTheRowsThatMustWithAnotherShard) {
  constexpr int kRows = 20'000;
  int moved = 0, elsewhere = 0;
  std::vector<int> owned(5);
  for (uint64_t id = 0; id < kRows; ++id) {
    const int before = OwnerOfRow(3, id, 4), after = OwnerOfRow(3, id, 5);
    ++owned[after];
    moved += before != after;
    elsewhere += before != after && after != 4;
  }
  EXPECT_EQ(elsewhere, 0);
  // Binomial with p = 1/5: the deviation is 57.
  for (const int count : owned) EXPECT_NEAR(count, kRows / 5, 300);
  EXPECT_NEAR(moved, kRows / 5, 300);
  EXPECT_EQ(OwnerOfRow(3, 1, 1), 0);
}

TEST(RowPartition, GathersAndScattersWhatItTookApart) {
  const TableSpec tables[] = {{.name = "a", .rows = 6, .width = 3},
                              {.name = "b", .rows = 100'000, .width = 1}};
  const int columns[] = {0, 1};
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.insert(ids.end(), {i % 6, i * 5000});
  RowIndex rows(tables, columns, 20);
  rows.Build(ids, 2, 20);
  std::vector<float> packed(rows.size()), back(rows.size());
  std::iota(packed.begin(), packed.end(), 0.0f);
  RowPartition partition(3);
  partition.Build(rows);
  int64_t floats = 0;
  for (const int shard : {0, 1, 2}) {
    std::vector<float> part(partition.size(shard));
    partition.Gather(shard, packed, part);
    partition.Scatter(shard, part, back);
    floats += partition.size(shard);
    for (const int t : {0, 1}) {
      for (const uint64_t id : partition.rows(shard)[t].ids()) EXPECT_EQ(OwnerOfRow(t, id, 3), shard);
    }
  }
  EXPECT_EQ(floats, rows.size());
  EXPECT_EQ(back, packed);
}

class ShardTablesTest : public ::testing::Test {
 protected:
  static RepeatedRows Rows(const std::vector<std::vector<uint64_t>>& ids) {
    RepeatedRows rows;
    for (const auto& of_table : ids) rows.Add()->mutable_ids()->Add(of_table.begin(), of_table.end());
    return rows;
  }

  std::string Error(const RepeatedRows& rows) {
    return std::string(tables_.CheckRows(rows).status().message());
  }

  std::vector<float> Read(uint64_t id) {
    std::vector<float> values(2);
    tables_.Read(Rows({{id}, {}}), values);
    return values;
  }

  const std::vector<TableSpec> specs_ = {{.name = "narrow", .rows = 4, .width = 2},
                                         {.name = "wide", .rows = 1 << 30, .width = 1 << 16}};
  const OptimizerConfig sgd_{.kind = OptimizerKind::kSgd, .learning_rate = 1};
  ShardTables tables_ = *ShardTables::Create(specs_, std::vector{sgd_}, 1, {}, 0, 1);
};

TEST_F(ShardTablesTest, AStepSumsWhatSeveralWorkersAdded) {
  tables_.AddGradients(Rows({{1, 3}, {}}), std::vector<float>{1, 2, 10, 20});
  tables_.AddGradients(Rows({{3}, {}}), std::vector<float>{100, 200});
  tables_.Apply(0.5f);
  EXPECT_THAT(Read(1), ElementsAre(-0.5f, -1));
  EXPECT_THAT(Read(3), ElementsAre(-55, -110));
  tables_.AddGradients(Rows({{3}, {}}), std::vector<float>{1, 1});
  tables_.Apply(1);
  EXPECT_THAT(Read(3), ElementsAre(-56, -111)) << "the step before has been forgotten";
}

TEST_F(ShardTablesTest, RowsFromTheWireAreChecked) {
  EXPECT_EQ(*tables_.CheckRows(Rows({{0, 3}, {7}})), 2 * 2 + (1 << 16));
  EXPECT_EQ(Error(Rows({{0}})), "rows of 1 tables, the model has 2");
  EXPECT_EQ(Error(Rows({{4}, {}})), "row 4 of table narrow, which has 4");
  EXPECT_EQ(Error(Rows({{~uint64_t{0}}, {}})), "row 18446744073709551615 of table narrow, which has 4");
  EXPECT_EQ(Error(Rows({{1, 1, 1, 1, 1}, {}})), "5 rows of table narrow, which has 4");
  // 4 KB on the wire for a gigabyte of memory.
  EXPECT_THAT(Error(Rows({{}, std::vector<uint64_t>(4096, 5)})), HasSubstr("too many for one message"));
  const auto second = ShardTables::Create(specs_, std::vector{sgd_}, 1, {}, 1, 2);
  int refused = 0;
  for (uint64_t id = 0; id < 4; ++id) {
    const absl::Status status = second->CheckRows(Rows({{id}, {}})).status();
    EXPECT_EQ(status.ok(), OwnerOfRow(0, id, 2) == 1);
    refused += !status.ok();
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace muster
