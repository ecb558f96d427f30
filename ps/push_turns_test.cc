#include "ps/push_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Duration kPatience = std::chrono::seconds(3);
const TimePoint kStart;

std::vector<uint64_t> Give(PushTurns& turns, int64_t held = 0, Duration at = {}) {
  std::vector<uint64_t> streams;
  for (const PushTurns::Ask& ask : turns.Give(held, kStart + at)) streams.push_back(ask.stream);
  return streams;
}

void Ask(PushTurns& turns, uint64_t stream, int64_t bytes, uint64_t request = 1) {
  turns.Add({.stream = stream, .request = request, .rank = static_cast<int>(stream), .bytes = bytes});
}

TEST(PushTurns, AsManyAsFitInTheOrderInWhichTheyAsked) {
  PushTurns turns(100, kPatience);
  for (const uint64_t stream : {3, 1, 2, 4}) Ask(turns, stream, 40);
  EXPECT_THAT(Give(turns), ElementsAre(3, 1));
  EXPECT_THAT(Give(turns), IsEmpty());
  turns.Remove(1);
  EXPECT_THAT(Give(turns, /*held=*/30), IsEmpty());
  EXPECT_THAT(Give(turns, /*held=*/20), ElementsAre(2));
  turns.Remove(3);
  turns.Remove(2);
  EXPECT_THAT(Give(turns), ElementsAre(4));
  EXPECT_FALSE(turns.anyone_waits());
}

// A small one behind it waits as well: it would never be its turn otherwise.
TEST(PushTurns, WhatIsLargerThanAllGoesAlone) {
  PushTurns turns(100, kPatience);
  Ask(turns, 1, 10);
  Ask(turns, 2, 500);
  Ask(turns, 3, 10);
  EXPECT_THAT(Give(turns), ElementsAre(1));
  turns.Remove(1);
  EXPECT_THAT(Give(turns, /*held=*/1), IsEmpty());
  EXPECT_THAT(Give(turns), ElementsAre(2));
  turns.Remove(2);
  EXPECT_THAT(Give(turns), ElementsAre(3));
}

TEST(PushTurns, WhoeverAsksAgainOrIsGoneHasNoTurn) {
  PushTurns turns(100, kPatience);
  Ask(turns, 1, 60);
  Ask(turns, 2, 60);
  EXPECT_THAT(Give(turns), ElementsAre(1));
  EXPECT_TRUE(turns.IsSending(1, 1));
  EXPECT_TRUE(turns.IsWaiting(2, 1));
  Ask(turns, 1, 60, /*request=*/2);
  EXPECT_FALSE(turns.IsSending(1, 1));
  EXPECT_TRUE(turns.IsWaiting(1, 2));
  EXPECT_FALSE(turns.IsWaiting(1, 1));
  EXPECT_THAT(Give(turns), ElementsAre(2));
  turns.Remove(1);
  turns.Remove(2);
  EXPECT_FALSE(turns.anyone_waits());
  EXPECT_THAT(turns.sending(), IsEmpty());
}

// Somebody sends slowly, or has stopped, or receives slowly: the others go on, if slowly.
TEST(PushTurns, NobodyWaitsForEver) {
  PushTurns turns(100, kPatience);
  for (const uint64_t stream : {1, 2, 3}) Ask(turns, stream, 80);
  EXPECT_THAT(Give(turns), ElementsAre(1));
  EXPECT_THAT(Give(turns, 0, kPatience - std::chrono::milliseconds(1)), IsEmpty());
  EXPECT_THAT(Give(turns, 0, kPatience), ElementsAre(2));
  EXPECT_THAT(Give(turns, 0, 2 * kPatience - std::chrono::milliseconds(1)), IsEmpty());
  turns.Remove(1);
  turns.Remove(2);
  EXPECT_THAT(Give(turns, /*held=*/500, 2 * kPatience), ElementsAre(3));
  Ask(turns, 1, 80);
  EXPECT_THAT(Give(turns, 0, 3 * kPatience), IsEmpty());
  turns.Remove(1);
  Ask(turns, 2, 80);
  EXPECT_THAT(Give(turns, 0, 5 * kPatience), IsEmpty()) << "it has just come";
  EXPECT_EQ(turns.Clear().size(), 1u);
  EXPECT_FALSE(turns.anyone_waits());
  EXPECT_THAT(turns.sending(), IsEmpty());
}

// Whatever happens, what is sent at a time stays within the budget, and everybody's turn comes.
TEST(PushTurns, HoldTheBudgetAndForgetNobody) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed);
    PushTurns turns(100, kPatience);
    std::map<uint64_t, int64_t> asked, sending;
    uint64_t last_turn = 0;
    for (uint64_t step = 1; step < 500; ++step) {
      const uint64_t stream = random.NextBelow(8);
      if (random.NextBelow(2) == 0 && !sending.contains(stream) && !asked.contains(stream)) {
        asked[stream] = static_cast<int64_t>(1 + random.NextBelow(150));
        Ask(turns, stream, asked[stream]);
      } else if (random.NextBelow(2) == 0) {
        turns.Remove(stream);
        asked.erase(stream);
        sending.erase(stream);
      }
      for (const PushTurns::Ask& given : turns.Give(0, kStart)) {
        ASSERT_EQ(asked[given.stream], given.bytes);
        asked.erase(given.stream);
        sending[given.stream] = given.bytes;
        last_turn = step;
      }
      int64_t bytes = 0;
      for (const auto& [of, size] : sending) bytes += size;
      ASSERT_TRUE(bytes <= 100 || sending.size() == 1) << seed;
      ASSERT_TRUE(!sending.empty() || asked.empty()) << seed << ": nobody sends, and somebody waits";
    }
    ASSERT_GT(last_turn, 400u);
  }
}

}  // namespace
}  // namespace muster
