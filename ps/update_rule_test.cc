// Transcripts: events in, and the exact actions that come out.
#include "ps/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const TimePoint kStart{};

std::string Text(const UpdateAction& action) {
  struct Printer {
    std::string operator()(const ApplyAction& a) const {
      std::string ids;
      for (const PushId id : a.pushes) ids += absl::StrFormat("%s%d", ids.empty() ? "" : "+", id);
      return absl::StrFormat("apply %s of %d samples -> step %d", ids, a.samples, a.step);
    }
    std::string operator()(const AnswerAction& a) const {
      const char* outcomes[] = {"applied", "stale", "duplicate"};
      return absl::StrFormat("answer %d %s step %d loss %g staleness %d", a.id,
                             outcomes[static_cast<int>(a.outcome)], a.step, a.mean_loss, a.staleness);
    }
    std::string operator()(const RefuseAction& a) const {
      return absl::StrFormat("refuse %d: %s", a.id, std::string(a.status.message()));
    }
    std::string operator()(const ReleaseAction& a) const { return absl::StrFormat("release %d", a.id); }
    std::string operator()(const EndAction& a) const {
      return a.status.ok() ? "end" : "end: " + std::string(a.status.message());
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
  Rule(UpdateMode mode, int workers)
      : rule_({.mode = mode, .worker_count = workers, .worker_timeout = std::chrono::seconds(100)}, kStart) {
    for (int rank = 0; rank < workers; ++rank) Join(rank, "first");
  }

  std::vector<std::string> Join(int rank, const std::string& uuid, uint64_t incarnation = 0) {
    UpdateActions actions;
    const auto answer = rule_.Join({rank, uuid, incarnation}, now, &actions);
    std::vector<std::string> texts = Texts(actions);
    if (!answer.ok()) texts.push_back(std::string(answer.status().message()));
    return texts;
  }
  std::vector<std::string> Push(int rank, PushInfo push, const std::string& uuid = "first") {
    if (push.samples == 0) push.samples = 10;
    return Texts(rule_.Push({rank, uuid, 0}, push, now));
  }
  std::vector<std::string> Finish(int rank, const std::string& uuid = "first") {
    return Texts(rule_.Finish({rank, uuid, 0}, now));
  }
  void Heard(const WorkerIdentity& worker) { rule_.Heard(worker, now); }
  std::vector<std::string> Await(int rank, PushId id) {
    return Texts(rule_.AwaitFinished({rank, "first", 0}, id, now));
  }
  std::vector<std::string> Tick() { return Texts(rule_.Tick(now)); }
  const UpdateRule& operator*() const { return rule_; }

  TimePoint now = kStart;

 private:
  UpdateRule rule_;
};

TEST(AsyncRule, AppliesEachPushOnceAndCountsStaleness) {
  Rule rule(UpdateMode::kAsync, 2);
  EXPECT_THAT(rule.Push(0, {.id = 1, .sequence = 1, .step = 0, .loss_sum = 20}),
              ElementsAre("apply 1 of 10 samples -> step 1", "answer 1 applied step 1 loss 2 staleness 0"));
  EXPECT_THAT(rule.Push(1, {.id = 2, .sequence = 1, .step = 0, .loss_sum = 5}),
              ElementsAre("apply 2 of 10 samples -> step 2", "answer 2 applied step 2 loss 0.5 staleness 1"));
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 1, .step = 0}),
              ElementsAre("answer 3 duplicate step 2 loss 0 staleness 2"));
  EXPECT_EQ((*rule).counts(), (PushCounts{.received = 3, .applied = 2, .duplicate = 1}));
}

TEST(AsyncRule, ANewProcessStartsItsOwnSequenceAndTheOldOneIsFenced) {
  Rule rule(UpdateMode::kAsync, 1);
  rule.Push(0, {.id = 1, .sequence = 1});
  EXPECT_THAT(rule.Join(0, "second", 1), IsEmpty());
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 2, .step = 1}, "first"),
              ElementsAre(HasSubstr("refuse 2: rank 0: a newer process")));
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 1, .step = 1}, "second"),
              ElementsAre("apply 3 of 10 samples -> step 2", "answer 3 applied step 2 loss 0 staleness 0"));
  EXPECT_THAT(rule.Join(0, "first", 0), ElementsAre(HasSubstr("incarnation 0 is not the newest")));
}

TEST(SyncRule, WaitsForEveryRankAndSumsInTheirOrder) {
  Rule rule(UpdateMode::kSync, 3);
  EXPECT_THAT(rule.Push(2, {.id = 1, .sequence = 1, .samples = 30, .loss_sum = 30}), IsEmpty());
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 1, .samples = 34, .loss_sum = 100}), IsEmpty());
  EXPECT_EQ((*rule).held(), 2u);
  EXPECT_THAT(
      rule.Push(1, {.id = 3, .sequence = 1, .samples = 36, .loss_sum = 70}),
      ElementsAre("apply 2+3+1 of 100 samples -> step 1", "answer 2 applied step 1 loss 2 staleness 0",
                  "answer 3 applied step 1 loss 2 staleness 0",
                  "answer 1 applied step 1 loss 2 staleness 0"));
  EXPECT_EQ((*rule).counts(), (PushCounts{.received = 3, .applied = 3}));
}

TEST(SyncRule, APushSentAgainTakesThePlaceOfTheFirstAndCountsOnce) {
  Rule rule(UpdateMode::kSync, 2);
  rule.Push(0, {.id = 1, .sequence = 1});
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 1}), ElementsAre("refuse 1: rank 0 has sent step 0 again"));
  EXPECT_THAT(rule.Push(1, {.id = 3, .sequence = 1}),
              ElementsAre("apply 2+3 of 20 samples -> step 1", "answer 2 applied step 1 loss 0 staleness 0",
                          "answer 3 applied step 1 loss 0 staleness 0"));
  // The answer was lost, and it comes a third time.
  EXPECT_THAT(rule.Push(0, {.id = 4, .sequence = 1}),
              ElementsAre("answer 4 duplicate step 1 loss 0 staleness 1"));
  EXPECT_EQ((*rule).counts(), (PushCounts{.received = 4, .applied = 2, .duplicate = 2}));
}

TEST(SyncRule, AReplacementComputesTheStepAgain) {
  Rule rule(UpdateMode::kSync, 2);
  rule.Push(0, {.id = 1, .sequence = 1});
  EXPECT_THAT(rule.Join(0, "second", 1), ElementsAre(HasSubstr("refuse 1: rank 0: a newer process")));
  EXPECT_THAT(rule.Push(1, {.id = 2, .sequence = 1}), IsEmpty()) << "the step must wait for the replacement";
  EXPECT_THAT(rule.Push(0, {.id = 3, .sequence = 1}, "second"),
              ElementsAre("apply 3+2 of 20 samples -> step 1", "answer 3 applied step 1 loss 0 staleness 0",
                          "answer 2 applied step 1 loss 0 staleness 0"));
}

TEST(SyncRule, AFinishedWorkerIsAStateAndNotAHang) {
  Rule rule(UpdateMode::kSync, 2);
  rule.Push(0, {.id = 1, .sequence = 1});
  EXPECT_THAT(rule.Finish(1),
              ElementsAre("apply 1 of 10 samples -> step 1", "answer 1 applied step 1 loss 0 staleness 0"));
  EXPECT_THAT(rule.Await(0, 2), ElementsAre("release 2"));
  EXPECT_THAT(rule.Finish(0), ElementsAre("end"));
}

TEST(Rule, AnAwaitIsReleasedWhenAllOthersHaveFinished) {
  Rule rule(UpdateMode::kAsync, 3);
  EXPECT_THAT(rule.Await(0, 1), IsEmpty());
  EXPECT_THAT(rule.Finish(2), IsEmpty());
  EXPECT_THAT(rule.Finish(1), ElementsAre("release 1"));
}

TEST(Rule, RefusesWhatItCannotUse) {
  Rule rule(UpdateMode::kSync, 1);
  EXPECT_THAT(rule.Push(0, {.id = 1, .sequence = 1, .loss_sum = std::numeric_limits<double>::quiet_NaN()}),
              ElementsAre(HasSubstr("refuse 1: rank 0: the loss of step 0 is not finite")));
  EXPECT_THAT(rule.Push(0, {.id = 2, .sequence = 2, .step = 7}),
              ElementsAre(HasSubstr("refuse 2: rank 0 computed from step 7, but this shard is at step 0")));
  EXPECT_EQ((*rule).counts(), (PushCounts{.received = 2, .rejected = 2}));
}

TEST(Rule, SilenceEndsTheWaitAndNamesTheRank) {
  Rule rule(UpdateMode::kSync, 2);
  rule.now = kStart + std::chrono::seconds(50);
  rule.Push(0, {.id = 1, .sequence = 1});
  rule.now = kStart + std::chrono::seconds(99);
  EXPECT_THAT(rule.Tick(), IsEmpty());
  EXPECT_EQ((*rule).next_deadline(), kStart + std::chrono::seconds(100));
  rule.now = kStart + std::chrono::seconds(100);
  EXPECT_THAT(rule.Tick(), ElementsAre("refuse 1: step 0 waits for rank 1 (silent for 1m40s)",
                                       "end: step 0 waits for rank 1 (silent for 1m40s)"));
}

TEST(Rule, AWorkerThatAsksForSomethingIsNotSilent) {
  Rule rule(UpdateMode::kSync, 2);
  rule.Push(0, {.id = 1, .sequence = 1});
  rule.now = kStart + std::chrono::seconds(99);
  rule.Heard({1, "first", 0});
  rule.now += std::chrono::seconds(50);
  rule.Heard({1, "nobody", 7});
  EXPECT_EQ((*rule).next_deadline(), kStart + std::chrono::seconds(199));
}

TEST(Rule, AWorkerThatStillTrainsIsNotSilent) {
  Rule rule(UpdateMode::kAsync, 2);
  rule.Await(0, 1);
  for (int i = 1; i <= 10; ++i) {
    rule.now += std::chrono::seconds(60);
    rule.Push(1, {.id = 10u + i, .sequence = 0u + i, .step = 0});
    EXPECT_THAT(rule.Tick(), IsEmpty());
  }
}

}  // namespace
}  // namespace muster
