// Transcripts: events in, and the exact actions that come out.
#include "ps/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Text(const UpdateAction& action) {
  struct Printer {
    std::string operator()(const ApplyAction& a) const {
      std::string ids;
      for (const PushId id : a.pushes) ids += absl::StrFormat("%s%d", ids.empty() ? "" : "+", id);
      const std::string rate = a.rate_scale == 1 ? "" : absl::StrFormat(" at rate x%g", a.rate_scale);
      return absl::StrFormat("apply %s of %d samples%s -> step %d", ids, a.samples, rate, a.step);
    }
    std::string operator()(const DiscardAction& a) const { return absl::StrFormat("discard %d", a.id); }
    std::string operator()(const AnswerAction& a) const {
      const char* outcomes[] = {"applied", "stale", "duplicate", "held"};
      return absl::StrFormat("answer %d %s step %d loss %g staleness %d", a.id,
                             outcomes[static_cast<int>(a.outcome)], a.step, a.mean_loss, a.staleness);
    }
    std::string operator()(const RefuseAction& a) const {
      return absl::StrFormat("refuse %d: %s", a.id, std::string(a.status.message()));
    }
  };
  return std::visit(Printer{}, action);
}

std::vector<std::string> Texts(const UpdateActions& actions) {
  std::vector<std::string> texts;
  for (const UpdateAction& action : actions) texts.push_back(Text(action));
  return texts;
}

class Rule {
 public:
  explicit Rule(const UpdateRuleOptions& options) : rule_(options) {
    for (int rank = 0; rank < options.worker_count; ++rank) Join(rank, "first");
  }

  std::vector<std::string> Join(int rank, const std::string& uuid, uint64_t incarnation = 0) {
    UpdateActions actions;
    const auto answer = rule_.Join({rank, uuid, incarnation}, &actions);
    std::vector<std::string> texts = Texts(actions);
    texts.push_back(answer.ok() ? absl::StrFormat("at step %d, next %d, %d pushes", answer->step,
                                                  answer->next_step, answer->pushes)
                                : std::string(answer.status().message()));
    return texts;
  }
  std::vector<std::string> Push(int rank, PushInfo push, const std::string& uuid = "first") {
    if (push.samples == 0) push.samples = 10;
    return Texts(rule_.Push({rank, uuid, 0}, push));
  }
  std::vector<std::string> Decide(uint64_t step, std::vector<int> ranks) {
    return Texts(rule_.Decide({step, std::move(ranks)}));
  }
  void MakeRoomFor(int workers) { rule_.MakeRoomFor(workers); }
  const UpdateRule* operator->() const { return &rule_; }

 private:
  UpdateRule rule_;
};

Rule AsyncRule(int workers) { return Rule({.mode = UpdateMode::kAsync, .worker_count = workers}); }
Rule SyncRule(int workers) { return Rule({.mode = UpdateMode::kSync, .worker_count = workers}); }

TEST(AsyncRule, TakesMoreWorkersWhileItGoesOn) {
  Rule rule = AsyncRule(1);
  rule.Push(0, {.id = 1, .sequence = 1, .loss_sum = 20});
  rule.MakeRoomFor(3);
  EXPECT_THAT(rule.Join(2, "late"), ElementsAre("at step 1, next 1, 0 pushes"));
  EXPECT_THAT(rule.Push(2, {.id = 2, .sequence = 1, .version = 1, .loss_sum = 5}, "late"),
              ElementsAre("apply 2 of 10 samples -> step 2", "answer 2 applied step 2 loss 0.5 staleness 0"));
  EXPECT_EQ(rule->tallies()[2].counts.applied, 1u);
  UpdateRule restored({.mode = UpdateMode::kAsync, .worker_count = 1}, rule->state());
  UpdateActions ignored;
  EXPECT_EQ(restored.Join({2, "later", 1}, &ignored)->pushes, 1u) << "it goes on where it was";
  rule.MakeRoomFor(1);
  EXPECT_EQ(rule->tallies().size(), 3u) << "what has been done stays";
  EXPECT_EQ(rule->counts().applied, 2u);
}

TEST(AsyncRule, AppliesEachPushOnceAndCountsStaleness) {
  Rule rule = AsyncRule(2);
  EXPECT_THAT(rule.Push(0, {.id = 1, .sequence = 1, .loss_sum = 20}),
              ElementsAre("apply 1 of 10 samples -> step 1", "answer 1 applied step 1 loss 2 staleness 0"));
  EXPECT_THAT(rule.Push(1, {.id = 2, .sequence = 1, .loss_sum = 5}),
              ElementsAre("apply 2 of 10 samples -> step 2", "answer 2 applied step 2 loss 0.5 staleness 1"));
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 1}),
              ElementsAre("discard 3", "answer 3 duplicate step 2 loss 0 staleness 2"));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 3, .applied = 2, .duplicate = 1}));
  EXPECT_EQ(rule->samples(), 20u);
}

TEST(AsyncRule, PushesMayOvertakeEachOther) {
  Rule rule = AsyncRule(1);
  EXPECT_THAT(rule.Push(0, {.id = 1, .sequence = 3}), Contains(HasSubstr("apply 1")));
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 1}), Contains(HasSubstr("apply 2")));
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 3}), Contains(HasSubstr("answer 3 duplicate")));
  EXPECT_THAT(rule.Push(0, {.id = 4, .sequence = 200}), Contains(HasSubstr("apply 4")));
  EXPECT_THAT(rule.Push(0, {.id = 5, .sequence = 2}), Contains(HasSubstr("answer 5 duplicate")))
      << "too old to tell, and so not applied";
}

TEST(AsyncRule, DropsWhatIsTooStale) {
  Rule rule({.mode = UpdateMode::kAsync, .worker_count = 2, .max_staleness = 1});
  for (uint64_t i = 1; i <= 3; ++i) rule.Push(0, {.id = i, .sequence = i, .version = i - 1});
  EXPECT_THAT(rule.Push(1, {.id = 4, .sequence = 1, .version = 1}),
              ElementsAre("discard 4", "answer 4 stale step 3 loss 0 staleness 2"));
  EXPECT_THAT(rule.Push(1, {.id = 5, .sequence = 2, .version = 2}),
              ElementsAre("apply 5 of 10 samples -> step 4", "answer 5 applied step 4 loss 0 staleness 1"));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 5, .applied = 4, .stale = 1}));
}

TEST(AsyncRule, TellsWhatBecameOfEachWorkersPushes) {
  Rule rule({.mode = UpdateMode::kAsync, .worker_count = 2, .max_staleness = 3});
  for (uint64_t i = 1; i <= 3; ++i) rule.Push(0, {.id = i, .sequence = i, .version = i - 1});
  rule.Push(1, {.id = 4, .sequence = 1});
  rule.Push(1, {.id = 5, .sequence = 2});
  rule.Push(1, {.id = 6, .sequence = 1, .version = 4});
  rule.Push(1, {.id = 7, .sequence = 3, .version = 4, .finite = false});
  ASSERT_EQ(rule->tallies().size(), 2u);
  EXPECT_EQ(rule->tallies()[0].counts, (PushCounts{.received = 3, .applied = 3}));
  EXPECT_THAT(rule->tallies()[0].staleness.counts(), ElementsAre(3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(rule->tallies()[1].counts,
            (PushCounts{.received = 4, .applied = 1, .stale = 1, .duplicate = 1, .rejected = 1}));
  EXPECT_THAT(rule->tallies()[1].staleness.counts(), ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(rule->tallies()[1].staleness.sum(), 3);
}

TEST(AsyncRule, ScalesTheRateOfWhatIsStale) {
  Rule rule({.mode = UpdateMode::kAsync, .worker_count = 2, .scale_rate = true});
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_THAT(rule.Push(0, {.id = i, .sequence = i, .version = i - 1}),
                Contains(absl::StrFormat("apply %d of 10 samples -> step %d", i, i)));
  }
  EXPECT_THAT(rule.Push(1, {.id = 4, .sequence = 1}),
              Contains("apply 4 of 10 samples at rate x0.25 -> step 4"));
}

TEST(AsyncRule, ANewProcessStartsItsOwnSequenceAndTheOldOneIsFenced) {
  Rule rule = AsyncRule(1);
  rule.Push(0, {.id = 1, .sequence = 1});
  EXPECT_THAT(rule.Join(0, "second", 1), ElementsAre("at step 1, next 1, 1 pushes"));
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 2, .version = 1}, "first"),
              ElementsAre("discard 2", HasSubstr("refuse 2: rank 0: a newer process")));
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 1, .version = 1}, "second"),
              ElementsAre("apply 3 of 10 samples -> step 2", "answer 3 applied step 2 loss 0 staleness 0"));
  EXPECT_THAT(rule.Join(0, "first", 0), ElementsAre(HasSubstr("incarnation 0 is not the newest")));
}

TEST(SyncRule, HoldsUntilTheStepIsChosenAndSumsInOrderOfRank) {
  Rule rule = SyncRule(3);
  EXPECT_THAT(rule.Push(2, {.id = 1, .samples = 30, .loss_sum = 30}), IsEmpty());
  EXPECT_THAT(rule.Push(0, {.id = 2, .samples = 34, .loss_sum = 100}), IsEmpty());
  EXPECT_THAT(rule.Push(1, {.id = 3, .samples = 36, .loss_sum = 70}), IsEmpty());
  EXPECT_EQ(rule->Report(), (ShardReport{.step = 0, .held = {{0, 0}, {0, 1}, {0, 2}}}));
  EXPECT_THAT(rule.Decide(0, {0, 1, 2}), ElementsAre("apply 2+3+1 of 100 samples -> step 1",
                                                     "answer 2 applied step 1 loss 2 staleness 0",
                                                     "answer 3 applied step 1 loss 2 staleness 0",
                                                     "answer 1 applied step 1 loss 2 staleness 0"));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 3, .applied = 3}));
  EXPECT_EQ(rule->Report(), (ShardReport{.step = 1}));
}

TEST(SyncRule, AStepThatIsChosenWaitsForItsParts) {
  Rule rule = SyncRule(2);
  rule.Push(0, {.id = 1});
  EXPECT_THAT(rule.Decide(0, {0, 1}), IsEmpty());
  EXPECT_THAT(rule.Decide(0, {0, 1}), IsEmpty()) << "said again";
  EXPECT_THAT(rule.Push(1, {.id = 2}), Contains("apply 1+2 of 20 samples -> step 1"));
  EXPECT_THAT(rule.Decide(0, {0, 1}), IsEmpty()) << "and again, late";
}

TEST(SyncRule, WhatTheStepWentOnWithoutIsStale) {
  Rule rule = SyncRule(3);
  rule.Push(0, {.id = 1});
  rule.Push(1, {.id = 2});
  EXPECT_THAT(rule.Decide(0, {0}),
              ElementsAre("apply 1 of 10 samples -> step 1", "answer 1 applied step 1 loss 0 staleness 0",
                          "discard 2", "answer 2 stale step 1 loss 0 staleness 0"));
  EXPECT_THAT(rule.Push(2, {.id = 3}), ElementsAre("discard 3", "answer 3 stale step 1 loss 0 staleness 1"));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 3, .applied = 1, .stale = 2}));
}

TEST(SyncRule, APushSentAgainCountsOnceAndTakesOverTheAnswer) {
  Rule rule = SyncRule(2);
  rule.Push(0, {.id = 1});
  EXPECT_THAT(rule.Push(0, {.id = 2}),
              ElementsAre("discard 2", "refuse 1: rank 0 has sent its part of step 0 again"));
  rule.Push(1, {.id = 3});
  EXPECT_THAT(rule.Decide(0, {0, 1}),
              ElementsAre("apply 1+3 of 20 samples -> step 1", "answer 2 duplicate step 1 loss 0 staleness 0",
                          "answer 3 applied step 1 loss 0 staleness 0"));
  // The answer was lost, and it comes a third time.
  EXPECT_THAT(rule.Push(0, {.id = 4}),
              ElementsAre("discard 4", "answer 4 duplicate step 1 loss 0 staleness 1"));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 4, .applied = 2, .duplicate = 2}));
}

TEST(SyncRule, TheContributionOfADeadProcessStays) {
  Rule rule = SyncRule(2);
  rule.Push(0, {.id = 1});
  EXPECT_THAT(rule.Join(0, "second", 1),
              ElementsAre(HasSubstr("refuse 1: rank 0: a newer process"), "at step 0, next 1, 0 pushes"));
  rule.Push(1, {.id = 2});
  EXPECT_THAT(rule.Push(0, {.id = 3}, "second"), ElementsAre("discard 3")) << "computed again all the same";
  EXPECT_THAT(rule.Decide(0, {0, 1}),
              ElementsAre("apply 1+2 of 20 samples -> step 1", "answer 3 duplicate step 1 loss 0 staleness 0",
                          "answer 2 applied step 1 loss 0 staleness 0"));
}

TEST(BoundedRule, AWorkerRunsAheadByTheBoundAndNoFurther) {
  Rule rule({.mode = UpdateMode::kBounded, .worker_count = 2, .staleness = 2});
  EXPECT_THAT(rule.Push(0, {.id = 1, .step = 0, .loss_sum = 20}),
              ElementsAre("answer 1 held step 0 loss 2 staleness 0"));
  EXPECT_THAT(rule.Push(0, {.id = 2, .step = 1}), ElementsAre("answer 2 held step 0 loss 0 staleness 1"));
  EXPECT_THAT(rule.Push(0, {.id = 3, .step = 2}), IsEmpty()) << "its answer has to be of step 1 at least";
  EXPECT_EQ(rule->Report(), (ShardReport{.step = 0, .held = {{0, 0}, {1, 0}, {2, 0}}}));
  EXPECT_THAT(rule.Push(1, {.id = 4, .step = 0}), ElementsAre("answer 4 held step 0 loss 0 staleness 0"));
  EXPECT_THAT(rule.Decide(0, {0, 1}),
              ElementsAre("apply 1+4 of 20 samples -> step 1", "answer 3 held step 1 loss 0 staleness 2"));
  EXPECT_THAT(
      rule.Push(0, {.id = 5, .step = 4, .version = 1}),
      ElementsAre("discard 5",
                  "refuse 5: rank 0 computed its part of step 4 from step 1: more than 2 steps apart"));
  EXPECT_THAT(rule.Join(0, "second", 1), ElementsAre("at step 1, next 3, 1 pushes"));
}

TEST(Rule, RefusesWhatItCannotUse) {
  Rule rule = SyncRule(1);
  EXPECT_THAT(rule.Push(0, {.id = 1, .loss_sum = std::numeric_limits<double>::quiet_NaN()}),
              ElementsAre("discard 1", HasSubstr("refuse 1: rank 0: the loss of step 0 is not finite")));
  EXPECT_THAT(rule.Push(0, {.id = 2, .finite = false}),
              ElementsAre("discard 2", HasSubstr("refuse 2: rank 0: the gradient of step 0 is not finite")));
  EXPECT_THAT(rule.Push(0, {.id = 3, .step = 7, .version = 7}),
              ElementsAre("discard 3",
                          HasSubstr("refuse 3: rank 0 computed from step 7, but this shard is at step 0")));
  EXPECT_EQ(rule->counts(), (PushCounts{.received = 3, .rejected = 3}));
}

TEST(Rule, KnowsWhetherAProcessIsTheOnlyOneOfItsRank) {
  UpdateRule rule({.mode = UpdateMode::kAsync, .worker_count = 2});
  const WorkerIdentity first{0, "first", 0}, second{0, "second", 1};
  EXPECT_TRUE(rule.IsSole(first)) << "before it has joined";
  UpdateActions actions;
  ASSERT_TRUE(rule.Join(first, &actions).ok());
  EXPECT_TRUE(rule.IsSole(first));
  EXPECT_FALSE(rule.IsSole(second)) << "before it has joined";
  ASSERT_TRUE(rule.Join(first, &actions).ok());
  EXPECT_TRUE(rule.IsSole(first)) << "it has joined twice";
  ASSERT_TRUE(rule.Join(second, &actions).ok());
  EXPECT_FALSE(rule.IsSole(second)) << "there was another one";
  EXPECT_FALSE(rule.IsSole(first));
  EXPECT_TRUE(rule.IsSole({1, "first", 0})) << "of another rank";

  const UpdateRuleState earlier = WithoutProcesses({.step = 3});  // of a checkpoint before both
  UpdateRule gone_back({.mode = UpdateMode::kAsync, .worker_count = 2},
                       WithoutProcesses(earlier, rule.state()));
  EXPECT_FALSE(gone_back.HasJoined(0));
  EXPECT_FALSE(gone_back.IsSole({0, "third", 2}));
  EXPECT_TRUE(gone_back.IsSole({1, "first", 0}));
  UpdateRule restored({.mode = UpdateMode::kAsync, .worker_count = 2}, WithoutProcesses(rule.state()));
  EXPECT_TRUE(restored.IsSole({0, "third", 2})) << "all processes are new";
}

TEST(Rule, GoesOnFromItsState) {
  Rule rule = SyncRule(2);
  rule.Push(0, {.id = 1, .loss_sum = 1});
  rule.Push(1, {.id = 2});
  rule.Decide(0, {0, 1});
  rule.Push(0, {.id = 3, .step = 1, .version = 1});
  const UpdateRuleState state = rule->state();
  EXPECT_EQ(state.counts, (PushCounts{.received = 2, .applied = 2})) << "without what is held";
  EXPECT_EQ(state.samples, 20u) << "without what is held";
  UpdateRule restored({.mode = UpdateMode::kSync, .worker_count = 2}, state);
  EXPECT_EQ(restored.state(), state);
  EXPECT_THAT(Texts(restored.Push({0, "first", 0}, {.id = 4, .samples = 1})),
              ElementsAre("discard 4", "answer 4 duplicate step 1 loss 0 staleness 1"));
  EXPECT_THAT(Texts(restored.Push({0, "first", 0}, {.id = 5, .step = 1, .version = 1, .samples = 1})),
              IsEmpty());
  EXPECT_EQ(restored.held(), 1u);
  EXPECT_EQ(restored.counts(), (PushCounts{.received = 4, .applied = 2, .duplicate = 1}));
  EXPECT_EQ(restored.tallies()[0].counts, (PushCounts{.received = 2, .duplicate = 1}));
  restored.BeginTallies();
  EXPECT_EQ(restored.counts(), (PushCounts{.received = 4, .applied = 2, .duplicate = 1}));
  EXPECT_EQ(restored.tallies()[0].counts, (PushCounts{.received = 1})) << "it is held";
  UpdateRule fewer({.mode = UpdateMode::kSync, .worker_count = 1}, state);
  EXPECT_EQ(fewer.state().workers.size(), 1u);
}

TEST(SlidingWindow, RemembersTheNewest) {
  SlidingWindow window;
  EXPECT_FALSE(window.Contains(0));
  window.Insert(0);
  window.Insert(2);
  EXPECT_TRUE(window.Contains(0));
  EXPECT_FALSE(window.Contains(1));
  EXPECT_TRUE(window.Contains(2));
  window.Insert(1);
  EXPECT_TRUE(window.Contains(1));
  window.Insert(64);
  EXPECT_TRUE(window.IsTooOld(0));
  EXPECT_FALSE(window.Contains(0));
  EXPECT_FALSE(window.IsTooOld(1));
  EXPECT_TRUE(window.Contains(1));
  window.Insert(1'000);
  EXPECT_TRUE(window.Contains(1'000));
  EXPECT_FALSE(window.Contains(999));
  EXPECT_EQ(SlidingWindow(window.end(), window.bits()), window);
}

}  // namespace
}  // namespace muster
