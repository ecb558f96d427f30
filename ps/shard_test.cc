#include "ps/shard.h"

#include <gtest/gtest.h>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

// Updated with one gradient of ones at a time, without rows.
class ShardVersions : public testing::Test {
 protected:
  void Update() {
    std::vector<float> values(shard_.range().size(), 1.0f);
    ShardGradient gradient{.values = FloatPayload({BorrowFloats(values)}, 0), .finite = true};
    for (size_t t = 0; t < kTables.size(); ++t) gradient.rows.Add();
    ASSERT_TRUE(shard_.CheckGradient(gradient).ok());
    const ShardGradient* const gradients[] = {&gradient};
    shard_.Apply(gradients, 1, 1);
  }

  const int64_t bytes_ = TestLayout().size() * 4;
  Shard shard_ = *Shard::Create(
      MakeJobConfig(TestLayout(), kTables, {.rule = {.mode = UpdateMode::kAsync, .worker_count = 1}},
                    kPlainSgd, kSeed),
      0, 1);
};

TEST_F(ShardVersions, WhatIsReadStaysAsItIsAndWhatIsNotIsUpdatedInPlace) {
  const float* const place = shard_.parameters()->data();
  Update();
  EXPECT_EQ(shard_.parameters()->data(), place);
  const Floats held = shard_.parameters();
  const std::vector<float> before = *held;
  for (int i = 0; i < 3; ++i) Update();
  EXPECT_EQ(*held, before);
  EXPECT_NE(*shard_.parameters(), before);
  EXPECT_EQ((*shard_.parameters())[0], before[0] - 3);
}

TEST_F(ShardVersions, OlderOnesThatAreReadCountAndTheSnapshotDoesNot) {
  Floats first = shard_.parameters();
  EXPECT_EQ(shard_.superseded_bytes(), 0);
  Update();
  EXPECT_EQ(shard_.superseded_bytes(), bytes_);
  const Floats second = shard_.parameters();
  Update();
  EXPECT_EQ(shard_.superseded_bytes(), 2 * bytes_);
  first.reset();
  EXPECT_EQ(shard_.superseded_bytes(), bytes_);
  {
    const ShardSnapshot snapshot = shard_.Snapshot();
    Update();
    EXPECT_EQ(shard_.superseded_bytes(), bytes_) << "a checkpoint is written";
  }
  // The buffer of the snapshot is one like any other again.
  Update();
  Floats third = shard_.parameters();
  Update();
  const Floats fourth = shard_.parameters();
  Update();
  EXPECT_EQ(shard_.superseded_bytes(), 3 * bytes_);
}

}  // namespace
}  // namespace muster
