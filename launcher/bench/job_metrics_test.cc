#include "launcher/bench/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace muster::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// So many steps up to 50 ms, 100 ms, 250 ms, and beyond.
std::string Metrics(int up_to_50, int up_to_100, int up_to_250, int beyond) {
  std::string text;
  const auto add = [&](const char* bound, int count) {
    for (const char* phase : {"compute", "push"}) {
      text +=
          absl::StrFormat("muster_worker_step_seconds_bucket{task=\"worker:0\",phase=\"%s\",le=\"%s\"} %d\n",
                          phase, bound, phase[0] == 'c' ? count : 7);
    }
  };
  add("0.05", up_to_50);
  add("0.1", up_to_50 + up_to_100);
  add("0.25", up_to_50 + up_to_100 + up_to_250);
  add("+Inf", up_to_50 + up_to_100 + up_to_250 + beyond);
  return text;
}

std::vector<double> FactorsOf(const std::vector<std::string>& processes) {
  ComputeSteps steps;
  for (const std::string& metrics : processes) steps.Add(metrics);
  return steps.Factors();
}

constexpr char kEvaluated[] =
    "{\"step\":1,\"seconds\":0.5,\"loss\":2}\n"
    "{\"step\":10,\"seconds\":2.4,\"test_accuracy\":0.5}\n"
    "{\"step\":15,\"seconds\":3.1,\"loss\":1}\n"
    "no line of it\n"
    "{\"step\":20,\"seconds\":5.0,\"test_accuracy\":0.9}\n"
    "{\"step\":30,\"seconds\":7.0,\"test_accuracy\":0.8}\n";

TEST(TargetTime, IsThatOfTheFirstEvaluationWithTheAccuracyAndSinceTheOneBefore) {
  EXPECT_EQ(TargetTimeOf(kEvaluated, 0.9).seconds, 5.0);
  EXPECT_NEAR(TargetTimeOf(kEvaluated, 0.9).gap_seconds, 5.0 - 2.4, 1e-12);
  EXPECT_EQ(TargetTimeOf(kEvaluated, 0.4).seconds, 2.4);
  EXPECT_EQ(TargetTimeOf(kEvaluated, 0.4).gap_seconds, 2.4) << "since it began";
  EXPECT_TRUE(std::isinf(TargetTimeOf(kEvaluated, 0.95).seconds));
  EXPECT_TRUE(std::isinf(TargetTimeOf("", 0.9).seconds));
}

// What computes is prepared in the first one.
TEST(StepSeconds, AreThoseOfAllButTheFirst) {
  nlohmann::json result = {
      {"steps_per_second", 4.0}, {"seconds_after_first_step", 2.0}, {"steps_after_first_step", 16}};
  EXPECT_EQ(StepSecondsOf(result), 0.125);
  result["seconds_after_first_step"] = result["steps_after_first_step"] = nullptr;
  EXPECT_EQ(StepSecondsOf(result), 0.25) << "there was no other";
}

TEST(ComputeSteps, StragglersCountWithTheLeastThatTheyAreSlower) {
  // The longest is the first one.
  EXPECT_THAT(FactorsOf({Metrics(3, 1, 1, 1)}), ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(FactorsOf({Metrics(3, 0, 0, 1), Metrics(0, 0, 1, 1)}), ElementsAre(1, 1, 1, 2));
  EXPECT_THAT(FactorsOf({Metrics(0, 5, 0, 1)}), ElementsAre(1, 1, 1, 1, 1)) << "whichever the bucket";
}

TEST(ComputeSteps, WithoutStepsThereAreNone) {
  EXPECT_THAT(FactorsOf({}), IsEmpty());
  EXPECT_THAT(
      FactorsOf({"no metrics", "muster_worker_steps_total 5\n", Metrics(0, 0, 0, 0), Metrics(1, 0, 0, 0)}),
      IsEmpty());
}

TEST(ComputeSteps, OfManyAreAThousand) {
  const std::vector<double> factors = FactorsOf({Metrics(990'000, 0, 10'000, 1)});
  ASSERT_EQ(factors.size(), 1000u);
  EXPECT_EQ(std::count(factors.begin(), factors.end(), 2), 10);
  EXPECT_EQ(FactorsOf({Metrics(1'000'000, 0, 100, 0)}).back(), 1)
      << "one of ten thousand is none of a thousand";
}

}  // namespace
}  // namespace muster::bench
