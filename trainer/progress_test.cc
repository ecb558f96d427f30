#include "trainer/progress.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TimePoint At(int seconds) { return TimePoint() + std::chrono::seconds(seconds); }

TEST(Progress, StepsThatWereThereBeforeAreNotItsOwn) {
  Progress progress;
  progress.GoOnFrom({.step = 100, .local_steps = 40, .samples = 1000});
  progress.Start(At(50));
  EXPECT_FALSE(progress.has_stepped());
  EXPECT_EQ(progress.first_step(), std::nullopt);
  progress.Add({.step = 103, .samples = 1030, .loss = 0.5, .staleness = 2}, At(52));
  progress.Add({.step = 105, .samples = 1050, .loss = 0.25}, At(55));
  progress.End(At(60));
  EXPECT_EQ(progress.first_step(), At(52));
  EXPECT_EQ(progress.steps_made(), 5u);
  EXPECT_EQ(progress.samples_made(), 50u);
  EXPECT_EQ(progress.local_steps(), 42u);
  EXPECT_EQ(progress.own_steps(), 2u);
  EXPECT_EQ(progress.loss(), 0.25);
  EXPECT_EQ(progress.time(), std::chrono::seconds(10));
}

TEST(Progress, AMultipleThatOthersHavePassedCounts) {
  Progress progress;
  progress.GoOnFrom({.step = 98});
  progress.Start(At(0));
  progress.Add({.step = 99}, At(1));
  EXPECT_FALSE(progress.HasPassed(100));
  progress.MarkStep();
  progress.Add({.step = 103}, At(2));
  EXPECT_TRUE(progress.HasPassed(100));
  progress.MarkStep();
  EXPECT_FALSE(progress.HasPassed(100));
}

TEST(Progress, ALineHasTheRateSinceTheOneBefore) {
  Progress progress;
  progress.GoOnFrom({});
  progress.Start(At(10));
  progress.Add({.step = 1, .samples = 100}, At(12));
  EXPECT_EQ(progress.Line(At(12)).samples_per_second, 50);
  EXPECT_EQ(progress.Line(At(12)).begun_at, 0u);
  progress.MarkLine(At(12));
  EXPECT_EQ(progress.Line(At(12)).samples_per_second, 0) << "no time has passed";
  progress.Add({.step = 2, .samples = 200}, At(16));
  const MetricsLine line = progress.Line(At(16));
  EXPECT_EQ(line.step, 2u);
  EXPECT_EQ(line.seconds, 6);
  EXPECT_EQ(line.samples_per_second, 25);
  EXPECT_EQ(line.begun_at, std::nullopt) << "it has been told";
}

TEST(Progress, TimeThatIsLeftOutCountsNeitherForLinesNorForTheWhole) {
  Progress progress;
  progress.GoOnFrom({});
  progress.Start(At(0));
  progress.LeaveOut(std::chrono::seconds(4));
  EXPECT_EQ(progress.Line(At(10)).seconds, 6);
  progress.End(At(10));
  EXPECT_EQ(progress.time(), std::chrono::seconds(6));
}

TEST(Progress, TheFirstStepAndWhatOthersMadeMeanwhileAreToldFromTheRest) {
  Progress progress;
  progress.GoOnFrom({.step = 10});
  progress.Start(At(0));
  EXPECT_EQ(progress.steps_after_first(), 0u);
  progress.Add({.step = 13}, At(30));
  EXPECT_EQ(progress.steps_after_first(), 0u);
  progress.LeaveOut(std::chrono::seconds(5));
  progress.Add({.step = 17}, At(39));
  progress.End(At(40));
  EXPECT_EQ(progress.steps_after_first(), 4u);
  EXPECT_EQ(progress.time_after_first(), std::chrono::seconds(5));
  EXPECT_EQ(progress.first_step(), At(30)) << "whenever an evaluation was";
  // The servers went back.
  progress.GoOnFrom({.step = 11});
  EXPECT_EQ(progress.steps_after_first(), 0u);
  progress.Add({.step = 12}, At(50));
  EXPECT_EQ(progress.steps_after_first(), 1u);
}

// Servers that were started again have lost some steps; the curve says between which.
TEST(Progress, WhatWasLostIsInTheNextLineAndNotInTheRates) {
  Progress progress;
  progress.GoOnFrom({.step = 10, .local_steps = 10, .samples = 100});
  progress.Start(At(0));
  progress.Add({.step = 20, .local_steps = 10, .samples = 200}, At(1));
  progress.MarkLine(At(1));
  progress.GoOnFrom({.step = 15, .local_steps = 15, .samples = 150});
  progress.Add({.step = 17, .local_steps = 2, .samples = 170}, At(2));
  progress.GoOnFrom({.step = 8, .local_steps = 8, .samples = 80});
  EXPECT_FALSE(progress.has_stepped()) << "nothing is left of what it made";
  progress.Add({.step = 9, .samples = 90}, At(3));
  const MetricsLine line = progress.Line(At(3));
  EXPECT_EQ(line.begun_at, 8u);
  EXPECT_EQ(line.reached, 20u) << "before it went back for the first time";
  EXPECT_EQ(line.samples_per_second, 5) << "10 samples in 2 s";
  EXPECT_EQ(progress.steps_made(), 1u);
  EXPECT_EQ(progress.samples_made(), 10u);
  EXPECT_EQ(progress.own_steps(), 13u) << "with those that were lost";
  EXPECT_EQ(progress.first_step(), At(1));
}

}  // namespace
}  // namespace muster
