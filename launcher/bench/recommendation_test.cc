#include "launcher/bench/recommendation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string HeadlineOf(const Results& results) {
  const Noise noise(results);
  const Group group = GroupsOf(results).at(0);
  const std::vector<Ranking> rankings = RankingsOf(group, noise);
  return Recommendation(results, rankings, ComparedOf(rankings), {}, noise);
}

Results With(std::vector<Measurement> measurements, double noise = 0.02) {
  for (Measurement& of : measurements) of.step_seconds.resize(3, of.step_seconds.front());
  return {.measurements = std::move(measurements), .noise = noise};
}

Measurement Learned(Measurement measurement, double accuracy) {
  measurement.test_accuracy = accuracy;
  return measurement;
}

Measurement There(Measurement measurement, double seconds) {
  measurement.seconds_to_target = seconds;
  return measurement;
}

// What is measured as 1.8 times as fast is not called slower because the machine was restless.
TEST(Recommendation, DoesNotAdviseAgainstWhatWasFaster) {
  Results results =
      With({Measured(kAllReduce, 1, 1000), Measured(kAllReduce, 4, 1800), Measured(kSync, 4, 900)},
           /*noise=*/0.5);
  EXPECT_THAT(
      HeadlineOf(results),
      StartsWith(
          "Whether to distribute to 4 workers cannot be told: 1 worker made 1000 samples/s, the best of 4 "
          "workers, allreduce, 1800, 80 % more, where up to 99 % may be chance. If you do, use "
          "allreduce"));
  results.noise = 0.02;
  EXPECT_EQ(HeadlineOf(results), "Use allreduce (compared at 4 workers).");
  results = With({Measured(kAllReduce, 1, 1000), Measured(kAllReduce, 4, 1004), Measured(kSync, 4, 900)});
  EXPECT_THAT(HeadlineOf(results),
              StartsWith("Do not distribute to 4 workers: 1 worker made 1000 samples/s"));
}

TEST(Recommendation, SaysThatTheFastestLearnedLess) {
  Results results =
      With({Learned(Measured(kAsync, 4, 2000), 0.11), Learned(Measured(kAllReduce, 4, 1400), 0.97)});
  EXPECT_EQ(
      HeadlineOf(results),
      "Use ps_async (k = 2, own hosts) (compared at 4 workers); but with 4 workers ps_async (k = 2, own "
      "hosts) ended at a test accuracy of 0.110, where allreduce reached 0.970.");
  results.measurements[0].test_accuracy = 0.965;
  EXPECT_EQ(HeadlineOf(results), "Use ps_async (k = 2, own hosts) (compared at 4 workers).");
  // All that are recommended.
  results = With({Learned(Measured(kAsync, 4, 1005), 0.11), Learned(Measured(kSync, 4, 1000), 0.2),
                  Learned(Measured(kAllReduce, 4, 1000), 0.97)});
  EXPECT_THAT(
      HeadlineOf(results),
      EndsWith("; but with 4 workers ps_async (k = 2, own hosts) ended at a test accuracy of 0.110 and "
               "ps_sync (k = 2, own hosts) of 0.200, where allreduce reached 0.970."));
  // Not of one that is as fast as another at one number of workers, and is not recommended.
  results = With({Learned(Measured(kAsync, 2, 1000), 0.11), Learned(Measured(kAllReduce, 2, 1000), 0.97),
                  Learned(Measured(kAsync, 4, 1000), 0.97), Learned(Measured(kAllReduce, 4, 2000), 0.97)});
  EXPECT_EQ(HeadlineOf(results), "Use allreduce (compared at 2 and 4 workers).");
}

TEST(Recommendation, GoesByTheTimeToTheTarget) {
  Results results = With({Learned(Measured(kAsync, 4, 2000), 0.11), There(Measured(kSync, 4, 1000), 20),
                          There(Measured(kAllReduce, 4, 1400), 11)});
  results.target_accuracy = 0.95;
  EXPECT_EQ(
      HeadlineOf(results),
      "Use allreduce (compared at 4 workers): first to a test accuracy of 0.95, with 4 workers in 11.0 s; "
      "ps_async (k = 2, own hosts) made 1.43 times as many samples/s and did not get there.");
  results.measurements[0].target_error = "lost";
  EXPECT_THAT(HeadlineOf(results), HasSubstr("samples/s; whether it gets there is not known."));
  results.measurements[0].seconds_to_target = 30;
  EXPECT_THAT(HeadlineOf(results), HasSubstr("samples/s and was there after 30.0 s."));
}

// Its chief evaluates while the others go on: when it was evaluated before, allreduce was not there yet.
TEST(Recommendation, IsAsEarlyWhereNoEvaluationLayBetween) {
  Results results = With({There(Measured(kAsync, 4, 2000), 5), There(Measured(kAllReduce, 4, 1400), 4.2)});
  results.target_accuracy = 0.95;
  results.measurements[0].target_gap_seconds = 5 - 2.4;
  results.measurements[1].target_gap_seconds = 0.2;
  EXPECT_THAT(HeadlineOf(results), StartsWith("Use allreduce or ps_async (k = 2, own hosts) (compared"));
  std::swap(results.measurements[0].target_gap_seconds, results.measurements[1].target_gap_seconds);
  EXPECT_THAT(HeadlineOf(results), StartsWith("Use allreduce (compared"))
      << "allreduce may have been there earlier, ps_async only later";
}

TEST(Recommendation, SaysTheTimeOfTheOneThatItNames) {
  Results results = With({There(Measured(kAllReduce, 2, 1000), 10), There(Measured(kSync, 2, 1000), 20),
                          There(Measured(kAllReduce, 4, 1000), 5.1), There(Measured(kSync, 4, 2000), 5),
                          Measured(kAsync, 4, 3000)});
  results.target_accuracy = 0.95;
  EXPECT_EQ(HeadlineOf(results),
            "Use allreduce (compared at 2 and 4 workers): about first to a test accuracy of 0.95, with 4 "
            "workers in "
            "5.10 s (ps_sync (k = 2, own hosts) in 5.00 s); ps_async (k = 2, own hosts) made 3.00 times as "
            "many samples/s and did not get there.");
}

// What is second everywhere is not what to use, though nothing else is about first everywhere.
TEST(Recommendation, NamesAtEachNumberWhoWasFirstWhereNobodyElseWasFirstAnywhere) {
  Results results = With({There(Measured(kAsync, 2, 1000), 10), There(Measured(kAllReduce, 2, 990), 10.1),
                          There(Measured(kSync, 2, 500), 20), There(Measured(kSync, 4, 1000), 5),
                          There(Measured(kAllReduce, 4, 990), 5.05), There(Measured(kAsync, 4, 500), 10)});
  const std::string by_number =
      "With 2 workers use ps_async (k = 2, own hosts) or allreduce; with 4 workers use ps_sync (k = 2, own "
      "hosts) or allreduce";
  EXPECT_EQ(HeadlineOf(results), by_number + ".");
  results.target_accuracy = 0.95;
  EXPECT_EQ(HeadlineOf(results), by_number + ": first to a test accuracy of 0.95, with 4 workers in 5.00 s.");
}

// Where there are too few hosts servers share those of the workers.
TEST(Recommendation, NamesServersThatWereFirstWhereverTheyHadToBe) {
  const CellOptions shared = {.servers_on_workers = true};
  Results results =
      With({There(Measured(kAsync, 2, 1000), 10), There(Measured(kAllReduce, 2, 500), 20),
            There(Measured(kAsync, 4, 1000, shared), 5), There(Measured(kAllReduce, 4, 500), 10)});
  EXPECT_EQ(HeadlineOf(results), "Use ps_async (k = 2) (compared at 2 and 4 workers).");
  results.target_accuracy = 0.95;
  EXPECT_EQ(HeadlineOf(results),
            "Use ps_async (k = 2) (compared at 2 and 4 workers): first to a test accuracy of 0.95, with 4 "
            "workers in 5.00 s.");
}

// What a number of workers cannot reach it says nothing of.
TEST(Recommendation, GoesBySpeedWhereNobodyIsKnownToReachTheTarget) {
  Results results = With({Measured(kAsync, 2, 900), Measured(kAllReduce, 2, 1000), Measured(kAsync, 4, 2000),
                          Measured(kAllReduce, 4, 1500)});
  results.target_accuracy = 0.95;
  EXPECT_EQ(HeadlineOf(results),
            "With 2 workers use allreduce; with 4 workers use ps_async (k = 2, own hosts), by samples/s: of "
            "those compared none is known to reach a test accuracy of 0.95.");
  results.measurements[1].seconds_to_target = 9;
  EXPECT_EQ(
      HeadlineOf(results),
      "Use allreduce (compared at 2 workers): first to a test accuracy of 0.95, with 2 workers in 9.00 s.");
}

TEST(Recommendation, DoesNotDistributeWhereOneWorkerIsThereFirst) {
  Results results = With({There(Measured(kAllReduce, 1, 1000), 10), There(Measured(kAllReduce, 4, 3000), 12),
                          There(Measured(kSync, 4, 2000), 15)});
  results.target_accuracy = 0.95;
  EXPECT_EQ(HeadlineOf(results),
            "Do not distribute to 4 workers: 1 worker had a test accuracy of 0.95 after 10.0 s, the best of "
            "4 workers, "
            "allreduce, after 12.0 s. If you have to, use allreduce (compared at 4 workers): first to a test "
            "accuracy of 0.95, with 4 workers in 12.0 s.");
  results.measurements[1].seconds_to_target = 5;
  EXPECT_THAT(HeadlineOf(results), StartsWith("Use allreduce"));
  results.measurements[0].seconds_to_target.reset();
  EXPECT_THAT(HeadlineOf(results), Not(HasSubstr("distribute")));
}

TEST(Recommendation, SaysWhyItIsNotKnownWhoIsThereFirst) {
  Results results = With({There(Measured(kAllReduce, 1, 1000), 10), There(Measured(kAllReduce, 4, 3000), 9.8),
                          There(Measured(kSync, 4, 2000), 15)});
  results.target_accuracy = 0.95;
  const std::string numbers =
      "Whether to distribute to 4 workers cannot be told: 1 worker had a test accuracy of 0.95 after 10.0 s, "
      "the best of "
      "4 workers, allreduce, after 9.80 s, ";
  EXPECT_THAT(HeadlineOf(results), StartsWith(numbers + "where up to 390 ms may be chance. If you do, use "));
  results.measurements[0].target_gap_seconds = 1.2;
  EXPECT_THAT(HeadlineOf(results), StartsWith(numbers + "and evaluations are 1.20 s apart. If you do, use "));
}

TEST(Recommendation, DoesNotDistributeWhereOnlyOneWorkerGetsThere) {
  Results results = With(
      {There(Measured(kAllReduce, 1, 1000), 10), Measured(kAllReduce, 4, 3000), Measured(kSync, 4, 2000)});
  results.target_accuracy = 0.95;
  const std::string rest =
      " 1 worker had a test accuracy of 0.95 after 10.0 s; of more workers none is known to have. If you ";
  EXPECT_EQ(
      HeadlineOf(results),
      "Do not distribute to 4 workers:" + rest +
          "have to, use allreduce (compared at 4 workers), by samples/s: of those compared none is known "
          "to reach a test accuracy of 0.95.");
  // As in the middle of a benchmark.
  results.measurements[1].target_error = "not run";
  EXPECT_THAT(HeadlineOf(results),
              StartsWith("Whether to distribute to 4 workers cannot be told:" + rest + "do, use"));
  for (const size_t i : {1, 2}) results.measurements[i].error = "not run";
  EXPECT_THAT(HeadlineOf(results), Not(HasSubstr("distribute")));
}

// Though one makes more samples/s.
TEST(Recommendation, DistributesWhereOnlySeveralWorkersGetThere) {
  Results results =
      With({Measured(kAllReduce, 1, 1000), There(Measured(kAllReduce, 4, 900), 12), Measured(kSync, 4, 800)});
  results.target_accuracy = 0.95;
  EXPECT_EQ(
      HeadlineOf(results),
      "Use allreduce (compared at 4 workers): first to a test accuracy of 0.95, with 4 workers in 12.0 s.");
  results.measurements[1].seconds_to_target.reset();
  EXPECT_THAT(HeadlineOf(results),
              StartsWith("Do not distribute to 4 workers: 1 worker made 1000 samples/s"));
}

// Though nothing can be said of the very fastest.
TEST(Recommendation, DistributesWhereASecondOneIsFasterThanOneWorkerForCertain) {
  Results results = With({There(Measured(kAllReduce, 1, 1000), 10), There(Measured(kAllReduce, 4, 1800), 6),
                          There(Measured(kSync, 4, 2000), 5)});
  results.measurements[2].step_seconds = {0.05, 0.2, 0.9};
  EXPECT_THAT(HeadlineOf(results), Not(HasSubstr("distribute")));
  results.target_accuracy = 0.95;
  EXPECT_THAT(HeadlineOf(results), Not(HasSubstr("distribute")));
  results.measurements[1].seconds_to_target = 9.9;
  EXPECT_THAT(HeadlineOf(results), StartsWith("Whether to distribute to 4 workers cannot be told"));
}

}  // namespace
}  // namespace muster::bench
