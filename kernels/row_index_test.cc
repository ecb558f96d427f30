#include "kernels/row_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const TableSpec kTables[] = {{.name = "a", .rows = 10, .width = 1},
                             {.name = "b", .rows = 1'000'000, .width = 3}};

std::vector<int64_t> Ids(const RowIndex& index, int table) {
  return {index.ids(table).begin(), index.ids(table).end()};
}

TEST(RowIndex, NamesEachRowOnceAndFindsItForEachSample) {
  const int columns[] = {2, 0};
  RowIndex index(kTables, columns, 4);
  EXPECT_EQ(index.largest_size(), 4 * 1 + 4 * 3);
  index.Build(std::vector<int32_t>{999'999, -1, 7,  //
                                   5, -1, 3,        //
                                   999'999, -1, 7,  //
                                   0, -1, 7},
              3, 4);
  EXPECT_THAT(Ids(index, 0), ElementsAre(7, 3));
  EXPECT_THAT(Ids(index, 1), ElementsAre(999'999, 5, 0));
  EXPECT_EQ(index.range(0), (LayoutRange{0, 2}));
  EXPECT_EQ(index.range(1), (LayoutRange{2, 11}));
  EXPECT_EQ(index.size(), 11);
  EXPECT_THAT(index.offsets(0), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(index.offsets(1), ElementsAre(2, 5, 2, 8));
}

TEST(RowIndex, ForgetsTheBatchBefore) {
  const int columns[] = {0, 1};
  RowIndex index(kTables, columns, 2);
  index.Build(std::vector<int32_t>{1, 2, 3, 4}, 2, 2);
  index.Build(std::vector<int32_t>{3, 4}, 2, 1);
  EXPECT_THAT(Ids(index, 0), ElementsAre(3));
  EXPECT_THAT(index.offsets(1), ElementsAre(1));
  index.Build({}, 2, 0);
  EXPECT_EQ(index.size(), 0);
  EXPECT_THAT(Ids(index, 0), IsEmpty());
}

TEST(RowIndex, WithoutTablesHasNoRows) {
  RowIndex index;
  index.Build({}, 0, 5);
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.table_count(), 0);
}

TEST(RowIndex, AgreesWithASearchThroughAllSamples) {
  const int columns[] = {0, 1};
  constexpr int64_t kSamples = 300;
  RowIndex index(kTables, columns, kSamples);
  RandomStream random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kSamples; ++i) {
      ids.push_back(static_cast<int32_t>(random.NextBelow(10)));
      // Multiples of a power of two, which a poor hash puts into one place.
      ids.push_back(static_cast<int32_t>(random.NextBelow(round + 1) * 16384));
    }
    index.Build(ids, 2, kSamples);
    for (const int table : {0, 1}) {
      std::vector<int64_t> distinct;
      std::vector<int32_t> offsets;
      for (int64_t i = 0; i < kSamples; ++i) {
        const int64_t id = ids[2 * i + table];
        auto found = std::find(distinct.begin(), distinct.end(), id);
        if (found == distinct.end()) found = distinct.insert(distinct.end(), id);
        offsets.push_back(static_cast<int32_t>(index.range(table).begin +
                                               (found - distinct.begin()) * kTables[table].width));
      }
      ASSERT_EQ(Ids(index, table), distinct);
      ASSERT_THAT(index.offsets(table), ElementsAreArray(offsets));
    }
  }
}

TEST(RowIndexDeathTest, IdsThatAreNoRowsAreABug) {
  const int columns[] = {0, 1};
  RowIndex index(kTables, columns, 2);
  EXPECT_DEATH(index.Build(std::vector<int32_t>{-1, 0}, 2, 1), "no row of its table");
  EXPECT_DEATH(index.Build(std::vector<int32_t>{10, 0}, 2, 1), "no row of its table");
  EXPECT_DEATH(index.Build(std::vector<int32_t>(6), 2, 3), "samples");
}

}  // namespace
}  // namespace muster
