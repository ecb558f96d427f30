#include "launcher/bench/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

GroupAdvice OnlyGroup(const Results& results) {
  const Advice advice = MakeAdvice(results);
  EXPECT_THAT(advice.groups, SizeIs(1));
  return advice.groups.at(0);
}

// Each repeated three times.
Results With(std::vector<Measurement> measurements) {
  for (Measurement& measurement : measurements) {
    if (measurement.error.empty()) measurement.step_seconds.resize(3, measurement.step_seconds.front());
  }
  return {.measurements = std::move(measurements), .noise = 0.03};
}

// Of two cells that were not fitted, one is off by a tenth of `error` less, and one by a tenth more.
void SetPredictionError(double error, Results* results) {
  for (const size_t i : {0, 1}) {
    Measurement& measurement = results->measurements.at(i);
    const double off = error * (i == 0 ? 0.9 : 1.1);
    measurement.predicted_step_seconds = measurement.median_step_seconds() * (1 + off);
  }
}

Curve CurveOf(Strategy strategy, std::vector<Curve::Point> points, const CellOptions& options = {}) {
  return {.cell = MakeCell(strategy, 1, options), .points = std::move(points)};
}

TEST(Advice, SaysWhatWasFastestByHowMuchAndHowNearTheBound) {
  Results results =
      With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000), Measured(kSync, 2, 1500),
            Measured(kAllReduce, 2, 1900), Measured(kSync, 4, 2500), Measured(kAllReduce, 4, 3300)});
  results.measurements[4].scaling_efficiency = 0.69;
  results.measurements[5].scaling_efficiency = 0.825;
  results.measurements[4].bound_step_seconds = 0.03;  // of 0.16
  results.measurements[5].bound_step_seconds = 0.1;   // of 0.121
  results.measurements[5].communication_seconds = 0.105;
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
          "Least time on the links with 4 workers: allreduce 82 % of a step (95 % of its communication), "
          "ps_sync (k = 2, own hosts) 19 % of a step."));
  EXPECT_THAT(MakeAdvice(results).cautions, IsEmpty());
}

// What travels while others compute can be more than what is not computing, and of asynchronous workers each
// has a cycle of its own.
TEST(Advice, ComparesTheBoundWithCommunicationWhereThatMeansSomething) {
  Results results = With({Measured(kAsync, 4, 2000), Measured(kSync, 4, 1000)});
  for (Measurement& measurement : results.measurements) {
    measurement.bound_step_seconds = measurement.median_step_seconds() / 2;
  }
  results.measurements[0].communication_seconds = 0.7;
  results.measurements[1].communication_seconds = 0.1;
  EXPECT_THAT(OnlyGroup(results).sentences,
              Contains("Least time on the links with 4 workers: ps_async (k = 2, own hosts) 50 % of a step, "
                       "ps_sync (k = 2, own hosts) 50 % of a step."));
}

TEST(Advice, SaysAboutEqualWithinTheNoise) {
  const Results results =
      With({Measured(kSync, 4, 980), Measured(kAllReduce, 4, 1000), Measured(kAsync, 4, 500)});
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(
      advice.sentences.at(0),
      "With 4 workers allreduce and ps_sync (k = 2, own hosts) were about equal: 1000 samples/s and 2.0 % "
      "less (up to 5.6 % may be chance); then came ps_async (k = 2, own hosts), 2.00 times slower.");
  EXPECT_EQ(advice.recommendation, "Use allreduce or ps_sync (k = 2, own hosts) (compared at 4 workers).");
}

TEST(Advice, SaysThatAllAreEqual) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kSync, 4, 1000), Measured(kAllReduce, 4, 1000)}));
  EXPECT_EQ(
      advice.sentences.at(0),
      "With 4 workers ps_sync (k = 2, own hosts) and allreduce were about equal: 1000 samples/s and 0 % less "
      "(up to 6.1 % may be chance).");
}

TEST(Advice, WithoutNoiseTellsApartWhatIsShownApart) {
  Results results = With({Measured(kSync, 4, 980), Measured(kAllReduce, 4, 1000)});
  results.noise.reset();
  EXPECT_EQ(OnlyGroup(results).sentences.at(0),
            "With 4 workers allreduce was fastest: 1000 samples/s, 1.02 times ps_sync (k = 2, own hosts).");
  EXPECT_THAT(MakeAdvice(results).cautions,
              ElementsAre("There are too few repetitions to tell how large the noise is: small differences "
                          "may be chance."));
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

TEST(Advice, SaysFirstWhereMoreWorkersDoNotPay) {
  Results results = With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000), Measured(kSync, 2, 700),
                          Measured(kAllReduce, 2, 500), Measured(kAllReduce, 4, 300)});
  EXPECT_EQ(
      OnlyGroup(results).recommendation,
      "Do not distribute to 2 or 4 workers: 1 worker made 1000 samples/s, the best of 2 workers, ps_sync "
      "(k = 2, own hosts), 700. If you have to, use ps_sync (k = 2, own hosts) (compared at 2 workers).");
  results.measurements.push_back(Measured(kSync, 4, 200));
  EXPECT_EQ(
      OnlyGroup(results).recommendation,
      "Do not distribute to 2 or 4 workers: 1 worker made 1000 samples/s, the best of 2 workers, ps_sync "
      "(k = 2, own hosts), 700. If you have to, with 2 workers use ps_sync (k = 2, own hosts); with 4 "
      "workers use "
      "allreduce.");
  results.measurements.back() = Measured(kSync, 4, 1200);
  EXPECT_EQ(OnlyGroup(results).recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 2 and 4 workers).");
}

TEST(Advice, SaysWithHowManyMoreThanWereMeasuredItExpectsThatTheyPay) {
  Results results =
      With({Measured(kAllReduce, 1, 1000), Measured(kAllReduce, 4, 900), Measured(kSync, 4, 500)});
  results.curves = {CurveOf(kAllReduce, {{1, 1000}, {4, 1040}, {6, 1090}, {8, 1600}, {16, 2000}}),
                    CurveOf(kSync, {{1, 500}, {4, 500}, {6, 600}, {8, 700}, {16, 800}})};
  SetPredictionError(0.1, &results);
  const std::string numbers =
      "Do not distribute to 4 workers: 1 worker made 1000 samples/s, the best of 4 workers, allreduce, 900";
  const std::string rest = ". If you have to, use allreduce (compared at 4 workers)";
  EXPECT_EQ(OnlyGroup(results).recommendation,
            numbers + "; the simulator expects 8 workers with allreduce to be faster than 1" + rest + ".");
  // It has them ahead with as many as were measured, and they were not.
  results.curves[0].points[1].samples_per_second = 1200;
  EXPECT_EQ(OnlyGroup(results).recommendation, numbers + rest + ".");
  SetPredictionError(0.64, &results);
  EXPECT_THAT(OnlyGroup(results).recommendation, StartsWith(numbers + rest + "; of more than 4 workers"));
}

TEST(Advice, SaysThatMoreWorkersDoNotPayWhereNothingElseIsCompared) {
  const std::string numbers =
      "Do not distribute to 2 workers: 1 worker made 1000 samples/s, the best of 2 workers, allreduce, 500";
  const std::string alone = numbers + ".";
  Results results = With({Measured(kAllReduce, 1, 1000), Measured(kAllReduce, 2, 500)});
  EXPECT_EQ(OnlyGroup(results).recommendation, alone);
  results.curves = {CurveOf(kAllReduce, {{1, 1000}, {2, 500}, {8, 1600}})};
  SetPredictionError(0.1, &results);
  EXPECT_EQ(OnlyGroup(results).recommendation,
            numbers + "; the simulator expects 8 workers with allreduce to be faster than 1.");
  EXPECT_EQ(
      OnlyGroup(With({Measured(kSync, 1, 900), Measured(kAllReduce, 1, 1000), Measured(kAllReduce, 2, 500)}))
          .recommendation,
      alone);
}

TEST(Advice, WithOneStrategyRecommendsNone) {
  const GroupAdvice advice = OnlyGroup(With({Measured(kAllReduce, 2, 1000), Measured(kAllReduce, 4, 1800)}));
  EXPECT_EQ(advice.recommendation, "None: only allreduce has numbers.");
  EXPECT_THAT(advice.sentences, ElementsAre("With 2 workers only allreduce has numbers: 1000 samples/s.",
                                            "With 4 workers only allreduce has numbers: 1800 samples/s.",
                                            "Nothing is predicted: the simulator would need numbers of "
                                            "allreduce with 1 worker."));
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

TEST(Advice, SaysWhichLinksHaveNoBound) {
  const CellOptions unknown = {.link_bytes_per_second = 0};
  EXPECT_THAT(OnlyGroup(With({Measured(kAllReduce, 2, 100, unknown)})).sentences,
              Contains("No bound is known: the rate of the links is not."));
}

TEST(Advice, SaysOfABoundThatItsLinksWereMeasured) {
  Results results = {.measurements = {Measured(Strategy::kAllReduce, 2, 1000, {.link_bytes_per_second = 0})}};
  Measurement& source = results.measurements[0];
  source.bound_step_seconds = 0.199;
  source.bound_link_bytes_per_second = 117e6;
  source.is_fitted = true;
  const auto sentences = [&] { return MakeAdvice(results).groups.at(0).sentences; };
  EXPECT_THAT(sentences(),
              Contains("The links carry 117 MB/s by what allreduce with 2 workers took: how near "
                       "that is to their bound is not known."));
  results.measurements.push_back(Measured(kSync, 2, 500, {.link_bytes_per_second = 0}));
  results.measurements[1].bound_step_seconds = 0.2;
  results.measurements[1].bound_link_bytes_per_second = 117e6;
  EXPECT_THAT(sentences(), Contains("Least time on the links, which carry 117 MB/s by what allreduce with 2 "
                                    "workers took, with 2 workers: ps_sync (k = 2, own hosts) 50 % of a "
                                    "step."))
      << "and nothing of the one that gave the rate";
}

// What becomes faster than what never led is nobody's concern.
TEST(Advice, NamesWhereTheLeadChangesBeyondWhatWasMeasured) {
  Results results =
      With({Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1500), Measured(kAsync, 4, 1000)});
  results.curves = {
      CurveOf(kSync, {{2, 1100}, {4, 2000}, {8, 3000}, {12, 3500}, {16, 3600}, {24, 3600}, {32, 3600}}),
      CurveOf(kAllReduce, {{2, 1200}, {4, 1500}, {8, 2500}, {12, 3400}, {16, 4500}, {24, 6000}, {32, 7000}}),
      CurveOf(kAsync, {{2, 500}, {4, 1000}, {8, 2700}, {12, 3000}, {16, 4000}, {24, 5900}, {32, 9000}})};
  SetPredictionError(0.1, &results);
  GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 4 workers); the simulator expects allreduce to take "
            "the lead between 12 and 16 workers.");
  EXPECT_THAT(
      advice.sentences,
      Contains("The simulator expects the lead to pass to allreduce between 12 and 16, then to ps_async "
               "(k = 2, own hosts) between 24 and 32 workers."));
  EXPECT_THAT(advice.sentences, Contains("The simulator's predictions were off by 10 % in the median, from "
                                         "9.0 % to 11 %, of 2 cells."));
  results.measurements[1].is_fitted = true;
  EXPECT_THAT(OnlyGroup(results).sentences,
              Contains("The simulator's prediction was off by 9.0 %, of 1 cell."));
  // Measured where there is no point of the curves.
  results.measurements.push_back(Measured(kSync, 13, 4000));
  results.measurements.push_back(Measured(kAllReduce, 13, 3000));
  EXPECT_THAT(OnlyGroup(results).recommendation, EndsWith("to take the lead between 13 and 16 workers."));
}

TEST(Advice, SaysNothingOfCurvesWhereTheLeaderStays) {
  Results results = With({Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1980)});
  // Both lead, as far as the noise tells, and one of them is always in front.
  results.curves = {CurveOf(kSync, {{4, 2000}, {8, 3000}, {16, 3000}}),
                    CurveOf(kAllReduce, {{4, 1500}, {8, 2500}, {16, 5000}}),
                    CurveOf(kAsync, {{4, 1000}, {8, 2000}, {16, 5100}})};
  SetPredictionError(0.1, &results);
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation, "Use ps_sync (k = 2, own hosts) or allreduce (compared at 4 workers).");
  EXPECT_THAT(advice.sentences, Not(Contains(StartsWith("The simulator expects"))));
}

TEST(Advice, DoesNotLeanOnASimulatorThatIsFarOff) {
  Results results = With({Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1500)});
  results.curves = {CurveOf(kSync, {{4, 2000}, {8, 3000}}), CurveOf(kAllReduce, {{4, 1500}, {8, 4000}})};
  SetPredictionError(0.64, &results);
  GroupAdvice advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 4 workers); of more than 4 workers the simulator "
            "cannot say what leads: its predictions were off by 64 % in the median.");
  EXPECT_THAT(advice.sentences, Not(Contains(StartsWith("The simulator expects"))));
  EXPECT_THAT(advice.sentences, Contains(StartsWith("The simulator's predictions were off by 64 % ")));
  // It has another one in front where something was measured.
  SetPredictionError(0.1, &results);
  results.curves[0].points[0].samples_per_second = 1000;
  advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation,
            "Use ps_sync (k = 2, own hosts) (compared at 4 workers); of more than 4 workers the simulator "
            "cannot say what leads: with 4 workers it has allreduce in front.");
  // What it was calibrated with tells nothing of it.
  for (Measurement& measurement : results.measurements) measurement.is_fitted = true;
  advice = OnlyGroup(results);
  EXPECT_EQ(advice.recommendation, "Use ps_sync (k = 2, own hosts) (compared at 4 workers).");
  EXPECT_THAT(advice.sentences, Contains("How far the simulator's predictions are off is not known: it was "
                                         "calibrated with all cells that it could be compared with."));
}

TEST(Advice, SaysWhatTheSimulatorCannotBeFittedTo) {
  Results results = With({Measured(kSync, 4, 2000), Measured(kAllReduce, 4, 1500)});
  for (Measurement& measurement : results.measurements) {
    measurement.is_fitted = true;
    measurement.predicted_step_seconds = measurement.median_step_seconds();
  }
  *results.measurements[0].predicted_step_seconds *= 0.65;
  EXPECT_THAT(
      OnlyGroup(results).sentences,
      Contains("The simulator does not fit what it was calibrated with: of ps_sync (k = 2, own hosts) "
               "with 4 workers it is off by 35 %. So its curves are left out."));
}

TEST(Advice, SaysWhatIsMissingForPredictions) {
  const auto sentences = [](Results results) { return OnlyGroup(results).sentences; };
  const std::string both =
      "Nothing is predicted: the simulator would need numbers of allreduce with 1 worker and allreduce with "
      "2 "
      "or more workers.";
  Results results =
      With({Measured(kSync, 2, 1000), Measured(kAsync, 2, 1000), Failed(kAllReduce, 2, "lost")});
  EXPECT_THAT(sentences(results), Contains(both));
  for (const double wait : {0.05, 0.0}) {
    results.compute_seconds_per_step = wait;
    EXPECT_THAT(sentences(results), Contains("Nothing is predicted: the simulator would need numbers of "
                                             "allreduce with 2 or more workers."));
  }
  results.compute_seconds_per_step.reset();
  results = With({Measured(kAsync, 2, 1000), Measured(kAllReduce, 1, 500), Measured(kAllReduce, 2, 900)});
  EXPECT_THAT(sentences(results), Contains("Parameter servers are not predicted: the simulator would need "
                                           "numbers of ps_sync."));
  results.measurements.push_back(Measured(kSync, 2, 800));
  EXPECT_THAT(sentences(results), Not(Contains(HasSubstr("would need numbers"))));
  results.unpredicted = {{.model = "mnist_mlp", .link_bytes_per_second = 125e6, .why = "no rate"},
                         {.model = "mnist_mlp", .link_bytes_per_second = 1, .why = "another link"}};
  EXPECT_THAT(sentences(results), Contains("Nothing is predicted: no rate."));
  EXPECT_THAT(sentences(With({Measured(kSync, 2, 9, {.model = "wide_deep:minibatch"})})),
              Contains("Models with tables are not predicted: what their rows cost comes and goes with the "
                       "batch."));
}

TEST(Advice, SaysWhereServersMove) {
  const CellOptions one = {.servers = 1}, shared = {.servers = 1, .servers_on_workers = true};
  Results results = With({Measured(kSync, 1, 900, one), Measured(kAsync, 2, 1000, one),
                          Measured(kSync, 2, 1000, one), Measured(kSync, 4, 1100, shared)});
  EXPECT_THAT(
      OnlyGroup(results).sentences,
      Contains("Servers (k = 1) have hosts of their own with 1 and 2 workers, and are on the workers' "
               "hosts with 4 workers: part of the difference between these is their place."));
  results.measurements.resize(3);
  EXPECT_THAT(OnlyGroup(results).sentences, Not(Contains(StartsWith("Servers (k = 1)"))));
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
  // Not what is fastest: what is asked for is the accuracy.
  EXPECT_EQ(advice.recommendation,
            "Use allreduce (compared at 4 workers): first to a test accuracy of 0.95, with 4 workers in 11.0 "
            "s; ps_async (k = 2, own hosts) made 1.43 times as many samples/s and did not get there.");
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

TEST(Advice, SaysOnceWhatTheFastestLearnedLess) {
  Results results = With({Measured(kAsync, 4, 2000), Measured(kAllReduce, 4, 1400)});
  results.measurements[0].test_accuracy = 0.11;
  results.measurements[1].test_accuracy = 0.97;
  const GroupAdvice advice = OnlyGroup(results);
  EXPECT_THAT(advice.recommendation, HasSubstr("ended at a test accuracy of 0.110"));
  EXPECT_THAT(advice.sentences, Not(Contains(HasSubstr("ended at a test accuracy"))));
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
          "1 of 3 cells was faster than its bound. Shaped links let short bursts pass at more than their "
          "rate, which is much of a small model; or a step has fewer bytes than were counted for it; or the "
          "links are faster than they were said, or measured, to be.",
          "The computation was a wait of 50.0 ms a step: this compares the exchange of gradients, not "
          "the training."));
}

TEST(Advice, NamesTheCellWhoseRepetitionsDifferMost) {
  Results results = With({Measured(kSync, 4, 1000), Measured(kAllReduce, 4, 800)});
  results.measurements[1].step_seconds = {0.5, 0.5, 0.9};
  EXPECT_THAT(
      MakeAdvice(results).cautions,
      ElementsAre("Repetitions differ by 3.0 % (standard deviation), those of allreduce with 4 workers, "
                  "mnist_mlp over 1 Gbit/s, by 46 %: what is said of it may be chance, and more "
                  "repetitions would tell."));
  results.measurements[1].step_seconds = {0.5, 0.51, 0.52};
  EXPECT_THAT(MakeAdvice(results).cautions, IsEmpty());
  results.noise = 0.2;
  EXPECT_THAT(MakeAdvice(results).cautions, ElementsAre(HasSubstr("differ by 20 %")));
}

TEST(Advice, SaysThatItIsNotAll) {
  Results results = With({Measured(kSync, 4, 1000), Measured(kAllReduce, 4, 800)});
  results.unfinished = "no space left";
  EXPECT_THAT(MakeAdvice(results).cautions, ElementsAre("It did not come to its end (no space left): cells "
                                                        "may lack repetitions, and there are no curves."));
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
