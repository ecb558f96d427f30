#include "launcher/bench/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr Strategy kAsync = Strategy::kAsyncServers;
constexpr Strategy kSync = Strategy::kSyncServers;
constexpr Strategy kAllReduce = Strategy::kAllReduce;

GroupAdvice OnlyGroup(const Results& results) {
  const Advice advice = MakeAdvice(results);
  EXPECT_THAT(advice.groups, SizeIs(1));
  return advice.groups.at(0);
}

Results With(std::vector<Measurement> measurements) {
  return {.measurements = std::move(measurements), .median_noise = 0.03};
}

TEST(Advice, SaysWhatWasFastestByHowMuchAndHowNearTheBound) {
  Results results =
      With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000), Measured(kSync, 2, 1500),
            Measured(kAllReduce, 2, 1900), Measured(kSync, 4, 2500), Measured(kAllReduce, 4, 3300)});
  results.measurements[4].scaling_efficiency = 0.69;
  results.measurements[5].scaling_efficiency = 0.825;
  results.measurements[5].bound_step_seconds = 0.1;  // of 0.121
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.title, "mnist_mlp over 1 Gbit/s");
  EXPECT_EQ(advice.recommendation, "Use allreduce (compared at 2 and 4 workers).");
  EXPECT_THAT(
      advice.sentences,
      ElementsAre(
          "With 1 worker allreduce was fastest: 1000 samples/s, 1.11 times ps_sync (k = 2, own hosts).",
          "With 2 workers allreduce was fastest: 1900 samples/s, 1.27 times ps_sync (k = 2, own hosts).",
          "With 4 workers allreduce was fastest: 3300 samples/s, 1.32 times ps_sync (k = 2, own hosts).",
          "Scaling efficiency with 4 workers: allreduce 82 %, ps_sync (k = 2, own hosts) 69 %.",
          "Of what the links allow with 4 workers: allreduce 82 %."));
  EXPECT_THAT(MakeAdvice(results).cautions, IsEmpty());
}

TEST(Advice, SaysAboutEqualWithinTheNoise) {
  const Results results =
      With({Measured(kSync, 4, 980), Measured(kAllReduce, 4, 1000), Measured(kAsync, 4, 500)});
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(
      advice.sentences.at(0),
      "With 4 workers allreduce and ps_sync (k = 2, own hosts) were about equal: 1000 samples/s and 2.0 % "
      "less (noise 3.0 %); then came ps_async (k = 2, own hosts), 2.00 times slower.");
  EXPECT_EQ(advice.recommendation, "Use allreduce or ps_sync (k = 2, own hosts) (compared at 4 workers).");
}

TEST(Advice, SaysThatAllAreEqual) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 4, 1000), Measured(kAllReduce, 4, 1000)}));
  EXPECT_EQ(
      advice.sentences.at(0),
      "With 4 workers ps_sync (k = 2, own hosts) and allreduce were about equal: 1000 samples/s and 0 % less "
      "(noise 3.0 %).");
}

TEST(Advice, WithoutNoiseTellsApartWhatIsShownApart) {
  Results results = With({Measured(kSync, 4, 980), Measured(kAllReduce, 4, 1000)});
  results.median_noise.reset();
  EXPECT_EQ(OnlyGroup(results).sentences.at(0),
            "With 4 workers allreduce was fastest: 1000 samples/s, 1.02 times ps_sync (k = 2, own hosts).");
  EXPECT_THAT(MakeAdvice(results).cautions,
              ElementsAre("The noise was not measured: small differences may be chance."));
  results.measurements[0].samples_per_second = 996;
  EXPECT_EQ(OnlyGroup(results).sentences.at(0),
            "With 4 workers allreduce and ps_sync (k = 2, own hosts) were about equal: 1000 samples/s and "
            "0.4 % less.");
}

TEST(Advice, ChangesWithTheNumberOfWorkersAndOfServers) {
  const CellOptions one = {.servers = 1, .servers_on_workers = true};
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 2, 1000, one), Measured(kAllReduce, 2, 800),
                                             Measured(kSync, 4, 1100, one), Measured(kAllReduce, 4, 1500)}));
  EXPECT_EQ(advice.recommendation,
            "With 2 workers use ps_sync (k = 1, on workers); with 4 workers use allreduce.");
}

TEST(Advice, PrefersWhatIsBestAtEachNumber) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 2, 990), Measured(kAllReduce, 2, 1000),
                                             Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1500)}));
  EXPECT_EQ(advice.recommendation, "Use ps_sync (k = 2, own hosts) (compared at 2 and 4 workers).");
}

TEST(Advice, WithOneWorkerOnlyComparesThat) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000)}));
  EXPECT_EQ(advice.recommendation, "Use allreduce (compared at 1 worker).");
  EXPECT_THAT(advice.sentences, Not(Contains(StartsWith("Scaling"))));
}

TEST(Advice, SaysThatMoreWorkersDoNotPay) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000),
                                             Measured(kSync, 2, 700), Measured(kAllReduce, 2, 500)}));
  EXPECT_EQ(advice.recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 2 workers); but no larger number of workers was "
            "faster than "
            "1 alone: 1000 samples/s.");
}

TEST(Advice, WithOneStrategyRecommendsNone) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kAllReduce, 2, 1000), Measured(kAllReduce, 4, 1800)}));
  EXPECT_EQ(advice.recommendation, "None: only allreduce has numbers.");
  EXPECT_THAT(advice.sentences, ElementsAre("With 2 workers only allreduce has numbers: 1000 samples/s.",
                                            "With 4 workers only allreduce has numbers: 1800 samples/s.",
                                            "No bound is known: the rate of the links is not."));
}

TEST(Advice, WithNothingAtTheSameNumberRecommendsNone) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kAllReduce, 2, 1000), Measured(kSync, 4, 1800)}));
  EXPECT_EQ(advice.recommendation, "None: no two have numbers for the same number of workers.");
}

TEST(Advice, OfWhatFailedIsNone) {
  const Results results = With({Failed(kSync, 2, "worker:1 was lost"), Failed(kAllReduce, 2, "no space")});
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation, "None: no cell has numbers.");
  EXPECT_THAT(advice.sentences, ElementsAre("With 2 workers nothing has numbers."));
  EXPECT_THAT(MakeAdvice(results).cautions,
              ElementsAre("2 of 2 cells have no numbers: the comparison is weak where they are missing."));
}

TEST(Advice, OfNothingIsACaution) {
  const Advice advice = MakeAdvice({});
  EXPECT_THAT(advice.groups, IsEmpty());
  EXPECT_THAT(advice.cautions, ElementsAre("Nothing was measured."));
  EXPECT_EQ(ToText(advice), "Caution: Nothing was measured.\n");
}

TEST(Advice, SaysWhereTheSimulatorSeesACrossing) {
  Results results = With({Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1500)});
  results.crossings = {{.slower = MakeCell(kSync, 16), .faster = MakeCell(Strategy::kHybrid, 16)},
                       {.slower = MakeCell(kSync, 6), .faster = MakeCell(kAllReduce, 6)},
                       {.slower = MakeCell(kAllReduce, 5), .faster = MakeCell(kAsync, 5)},
                       {.slower = MakeCell(kSync, 3), .faster = MakeCell(kAsync, 3)}};
  results.median_prediction_error = 0.02;
  const GroupAdvice advice = OnlyGroup(results);
  // The first one of what is recommended, beyond what was measured.
  EXPECT_EQ(advice.recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 4 workers); from 6 workers on the simulator expects "
            "allreduce to be faster than ps_sync (k = 2, own hosts).");
  EXPECT_THAT(advice.sentences,
              Contains("The simulator predicts that from 16 workers on hybrid (k = 2, own hosts) "
                       "is faster than ps_sync (k = 2, own hosts)."));
  EXPECT_THAT(MakeAdvice(results).cautions, IsEmpty());
  results.median_prediction_error = 0.2;
  EXPECT_THAT(
      MakeAdvice(results).cautions,
      ElementsAre("The median error of the predictions, 20 %, is larger than the noise, 3.0 %: what the "
                  "simulator says is weak."));
  results.median_prediction_error.reset();
  EXPECT_THAT(MakeAdvice(results).cautions, ElementsAre("How far the simulator is off was not measured."));
}

TEST(Advice, SaysWhoReachedTheAccuracyFirst) {
  Results results =
      With({Measured(kAsync, 4, 2000), Measured(kSync, 4, 1500), Measured(kAllReduce, 4, 1400)});
  results.target_accuracy = 0.95;
  EXPECT_THAT(OnlyGroup(results).sentences,
              Contains("With 4 workers a test accuracy of 0.95 was reached by none."));
  results.measurements[0].test_accuracy = 0.9;
  results.measurements[1].test_accuracy = 0.96;
  results.measurements[1].seconds_to_target = 12;
  results.measurements[2].seconds_to_target = 11;
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation,
            "Use ps_async (k = 2, own hosts) (compared at 4 workers); to the accuracy asked for allreduce "
            "was first.");
  EXPECT_THAT(
      advice.sentences,
      Contains(
          "With 4 workers a test accuracy of 0.95 was reached by allreduce in 11.0 s and ps_sync (k = 2, "
          "own hosts) in 12.0 s, and not by ps_async (k = 2, own hosts)."));
  EXPECT_THAT(
      advice.sentences,
      Contains("The fastest with 4 workers, ps_async (k = 2, own hosts), ended at a test accuracy of 0.900; "
               "ps_sync (k = 2, own hosts) reached 0.960."));
}

TEST(Advice, DoesNotCallMissedWhatIsNotKnown) {
  Results results = With({Measured(kAsync, 4, 2000), Measured(kSync, 4, 1500)});
  results.target_accuracy = 0.95;
  results.measurements[0].target_error = "worker:1 was lost";
  EXPECT_THAT(OnlyGroup(results).sentences,
              Contains("With 4 workers a test accuracy of 0.95 was reached by none; of ps_async (k = 2, own "
                       "hosts) it is not known."));
  results.measurements.push_back(Measured(kAllReduce, 4, 1400));
  results.measurements[2].seconds_to_target = 11;
  EXPECT_THAT(
      OnlyGroup(results).sentences,
      Contains("With 4 workers a test accuracy of 0.95 was reached by allreduce in 11.0 s, and not by "
               "ps_sync (k = 2, own hosts); of ps_async (k = 2, own hosts) it is not known."));
  results.measurements.resize(1);
  EXPECT_THAT(OnlyGroup(results).sentences,
              Contains("With 4 workers it is not known who reaches a test accuracy of 0.95."));
}

TEST(Advice, IsWeakWhereCellsFailedOrBeatTheirBound) {
  Results results = With({Measured(kSync, 4, 1000), Measured(kAllReduce, 4, 800), Failed(kAsync, 4, "lost")});
  results.measurements[0].bound_step_seconds = 0.5;   // of 0.4
  results.measurements[1].bound_step_seconds = 0.51;  // of 0.5, which is noise
  results.compute_seconds_per_step = 0.05;
  EXPECT_THAT(
      MakeAdvice(results).cautions,
      ElementsAre(
          "1 of 3 cells has no numbers: the comparison is weak where they are missing.",
          "1 of 3 cells was faster than the bound: the links are not as slow as they were said to be.",
          "The computation was a wait of 50.0 ms a step: this compares the exchange of gradients, not "
          "the training."));
}

TEST(Advice, IsGivenForEachModelAndLink) {
  const Results results =
      With({Measured(kSync, 2, 100), Measured(kAllReduce, 2, 200, {.link_bytes_per_second = 0}),
            Measured(kAllReduce, 2, 150), Measured(kSync, 2, 9, {.model = "wide_deep"})});
  const Advice advice = MakeAdvice(results);
  std::vector<std::string> lines;
  for (const GroupAdvice& group : advice.groups) lines.push_back(group.title + ": " + group.recommendation);
  EXPECT_THAT(lines,
              ElementsAre("mnist_mlp over 1 Gbit/s: Use allreduce (compared at 2 workers).",
                          "mnist_mlp over links as they are: None: only allreduce has numbers.",
                          "wide_deep over 1 Gbit/s: None: only ps_sync (k = 2, own hosts) has numbers."));
  EXPECT_THAT(ToText(MakeAdvice(With({Measured(kSync, 2, 9, {.model = "\x1b[2J"})}))),
              StartsWith(" [2J over "));
  EXPECT_THAT(ToText(advice),
              StartsWith("mnist_mlp over 1 Gbit/s\n  Use allreduce (compared at 2 workers).\n  - With 2"));
}

}  // namespace
}  // namespace muster::bench
