#include "bench/simulator/fair_links.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"

namespace muster::simulator {
namespace {

constexpr double kRounding = 1e-9;

FairLinksOptions Options(int workers, int servers, bool on_workers, double bytes) {
  return {.workers = workers,
          .servers = servers,
          .servers_on_workers = on_workers,
          .worker_link_bytes_per_second = 1,
          .server_link_bytes_per_second = 1,
          .push_bytes = bytes,
          .pull_bytes = bytes};
}

std::set<int> Workers(const std::vector<FairLinks::Ended>& ended) {
  std::set<int> workers;
  for (const FairLinks::Ended& one : ended) workers.insert(one.worker);
  return workers;
}

TEST(FairLinks, TwoPushesShareTheServersLink) {
  FairLinks links(Options(2, 1, false, 4));
  links.Begin(Direction::kPush, 0, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  // At 2 half of the first one is there; then both go at half the rate. It ends at 6, and the other one,
  // which has 2 left then, at 8.
  links.Begin(Direction::kPush, 1, 2);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 6);
  EXPECT_EQ(Workers(links.TakeEnded()), std::set<int>{0});
  EXPECT_DOUBLE_EQ(links.NextEnd(), 8);
  EXPECT_EQ(Workers(links.TakeEnded()), std::set<int>{1});
  EXPECT_EQ(links.NextEnd(), std::numeric_limits<double>::infinity());
}

TEST(FairLinks, PushAndPullDoNotDisturbEachOther) {
  FairLinks links(Options(2, 1, false, 4));
  links.Begin(Direction::kPush, 0, 0);
  links.Begin(Direction::kPull, 1, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  EXPECT_EQ(links.TakeEnded().size(), 2u);
}

TEST(FairLinks, AWorkersLinkIsALimitToo) {
  // Two workers and four servers: nobody shares anything.
  FairLinks links(Options(2, 4, false, 4));
  links.Begin(Direction::kPush, 0, 0);
  links.Begin(Direction::kPush, 1, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  FairLinksOptions slower = Options(2, 4, false, 4);
  slower.worker_link_bytes_per_second = 0.5;
  FairLinks slow(slower);
  slow.Begin(Direction::kPull, 1, 1);
  EXPECT_DOUBLE_EQ(slow.NextEnd(), 9);
}

TEST(FairLinks, ALargeShareIsSoManyTimesTheOthers) {
  FairLinksOptions options = Options(3, 1, false, 4);
  options.large_share = 3;
  FairLinks links(options);
  // 3/5, 1/5 and 1/5 of the link. The first has its 4 at 20/3; the others have 4/3 then, and go on at a half.
  links.Begin(Direction::kPull, 0, 0, Share::kLarge);
  links.Begin(Direction::kPull, 1, 0);
  links.Begin(Direction::kPull, 2, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 20.0 / 3);
  EXPECT_EQ(Workers(links.TakeEnded()), std::set<int>{0});
  EXPECT_DOUBLE_EQ(links.NextEnd(), 12);
  EXPECT_EQ(Workers(links.TakeEnded()), (std::set<int>{1, 2}));
}

TEST(FairLinks, ALargeShareIsNoMoreThanAWorkersLink) {
  // Three workers and two servers, whose links have room for two: 6/5 were the large share of it. So it is 1,
  // and the others go at a half.
  FairLinksOptions options = Options(3, 2, false, 4);
  options.large_share = 3;
  FairLinks links(options);
  links.Begin(Direction::kPull, 0, 0, Share::kLarge);
  links.Begin(Direction::kPull, 1, 0);
  links.Begin(Direction::kPull, 2, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  EXPECT_EQ(Workers(links.TakeEnded()), std::set<int>{0});
  // Then nobody shares anything.
  EXPECT_DOUBLE_EQ(links.NextEnd(), 6);
}

TEST(FairLinks, OnTheWorkersHostsTheyMeet) {
  // Two hosts with a server each; half of all bytes stay on a host. Worker 0 alone: 2 bytes in 2 s.
  const FairLinksOptions options = Options(2, 2, true, 4);
  FairLinks links(options);
  EXPECT_DOUBLE_EQ(OwnShare(options, 1), 0.5);
  links.Begin(Direction::kPush, 0, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 2);
  // What worker 1 pulls leaves host 0, too.
  links.Begin(Direction::kPull, 1, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  EXPECT_EQ(links.TakeEnded().size(), 2u);
  // When it pushes, instead, that is the other direction.
  links.Begin(Direction::kPush, 0, 4);
  links.Begin(Direction::kPush, 1, 4);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 6);
}

TEST(FairLinks, APullIsNotHeldUpByPushesThatItDoesNotMeet) {
  // Servers on the first two of six hosts. Three of the others push: 6 bytes into each server's host. One
  // pulls and has its link to itself.
  FairLinks links(Options(6, 2, true, 4));
  for (const int worker : {2, 3, 4}) links.Begin(Direction::kPush, worker, 0);
  links.Begin(Direction::kPull, 5, 0);
  EXPECT_DOUBLE_EQ(links.NextEnd(), 4);
  EXPECT_EQ(Workers(links.TakeEnded()), std::set<int>{5});
  EXPECT_DOUBLE_EQ(links.NextEnd(), 6);
  EXPECT_EQ(Workers(links.TakeEnded()), (std::set<int>{2, 3, 4}));
}

TEST(FairLinks, WhatOneKindLeavesOfALinkIsTheOthers) {
  // Ten hosts, the first two with a server. Five push, of them worker 0: 2.5 bytes into the other server's
  // host for each of a push, so they go at 0.4. Three pull: half of it, 1.5 in all, leaves host 0, beside
  // half of its push; so they go at (1 - 0.2) / 1.5.
  for (const bool is_reversed : {false, true}) {
    FairLinks links(Options(10, 2, true, 4));
    for (const int worker : {0, 2, 3, 4, 9}) {
      links.Begin(is_reversed ? Direction::kPull : Direction::kPush, worker, 0);
    }
    for (const int worker : {5, 6, 7}) {
      links.Begin(is_reversed ? Direction::kPush : Direction::kPull, worker, 0);
    }
    EXPECT_DOUBLE_EQ(links.NextEnd(), 7.5);
    EXPECT_EQ(Workers(links.TakeEnded()), (std::set<int>{5, 6, 7}));
    EXPECT_DOUBLE_EQ(links.NextEnd(), 10);
  }
}

// Whatever begins when: each transfer ends once and no earlier than alone, and no server's host receives more
// than its link carries.
TEST(FairLinks, CarryEverythingOnceAndNoFasterThanTheyCan) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    const int workers = 2 + static_cast<int>(random.NextBelow(6));
    const int servers = 2 + static_cast<int>(random.NextBelow(4));
    FairLinksOptions options = Options(workers, servers, random.NextBelow(2) == 0, 1 + random.NextDouble());
    options.large_share = 1 + static_cast<double>(random.NextBelow(4));
    FairLinks links(options);
    std::vector<double> begun(workers, -1);
    double now = 0;
    double received = 0;  // by server 0
    for (int begins = 0, ends = 0; begins < 50 || ends < begins;) {
      const double next = now + random.NextDouble();
      const int worker = static_cast<int>(random.NextBelow(workers));
      if (begins < 50 && next < links.NextEnd()) {
        now = next;
        if (begun[worker] >= 0) continue;
        begun[worker] = now;
        const bool is_push = random.NextBelow(2) == 0;
        const bool is_large = !is_push && random.NextBelow(2) == 0;
        links.Begin(is_push ? Direction::kPush : Direction::kPull, worker, now,
                    is_large ? Share::kLarge : Share::kEven);
        ++begins;
        continue;
      }
      now = links.NextEnd();
      for (const FairLinks::Ended& end : links.TakeEnded()) {
        ASSERT_GE(begun[end.worker], 0) << "seed " << seed;
        const double alone = options.push_bytes * (1 - OwnShare(options, end.worker));
        EXPECT_GE(now - begun[end.worker], alone * (1 - kRounding)) << "seed " << seed;
        begun[end.worker] = -1;
        if (end.direction == Direction::kPush && !(options.servers_on_workers && end.worker == 0)) {
          received += options.push_bytes / servers;
        }
        ++ends;
      }
    }
    EXPECT_LE(received, now * (1 + kRounding)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace muster::simulator
