#include "kernels/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/random.h"
#include "kernels/portable_math.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// Two roundings more than the functions promise for themselves: those of libm's result and of the comparison.
constexpr double kTwoRoundings = 0x1p-52;

double RelativeError(double actual, double expected) { return std::abs(actual / expected - 1); }

TEST(PortableMath, ExpAndLogKeepTheirBounds) {
  RandomStream random(1);
  for (int i = 0; i < 100'000; ++i) {
    // Over the whole range, and near zero, where most of the exponent is gone.
    for (const double width : {1400.0, 2.0, 1e-6}) {
      const double x = (random.NextDouble() - 0.5) * width;
      ASSERT_LE(RelativeError(PortableExp(x), std::exp(x)), 0x1p-51 + std::abs(x) * 0x1p-53 + kTwoRoundings)
          << x;
      const double y = std::exp(x);
      if (y == 1) continue;
      ASSERT_LE(RelativeError(PortableLog(y), std::log(y)), 0x1p-50 + kTwoRoundings) << y;
    }
  }
  EXPECT_EQ(PortableExp(0), 1);
  EXPECT_EQ(PortableExp(-709), 0);
  EXPECT_EQ(PortableExp(-std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(PortableExp(710), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(PortableExp(709.7)));
  EXPECT_EQ(PortableLog(1), 0);
  EXPECT_LE(RelativeError(PortableLog(std::numeric_limits<double>::min()), -1022 * std::log(2.0)), 0x1p-50);
  EXPECT_LE(RelativeError(PortableLog(std::numeric_limits<double>::max()), 1024 * std::log(2.0)), 0x1p-50);
}

TEST(PortableMath, PowAndSinPiKeepTheirBounds) {
  RandomStream random(2);
  constexpr long double kPi = std::numbers::pi_v<long double>;
  for (int i = 0; i < 100'000; ++i) {
    const double base = std::exp(50 * (random.NextDouble() - 0.5));
    const double exponent = 20 * (random.NextDouble() - 0.5);
    const double expected = std::pow(base, exponent);
    ASSERT_LE(RelativeError(PortablePow(base, exponent), expected),
              0x1p-50 * (1 + std::abs(std::log(expected))) + kTwoRoundings)
        << base << "^" << exponent;
    const double x = random.NextDouble() / 2;
    ASSERT_LE(RelativeError(PortableSinPi(x), static_cast<double>(std::sin(kPi * x))),
              0x1p-50 + kTwoRoundings)
        << x;
  }
  EXPECT_EQ(PortablePow(7, 0), 1);
  EXPECT_EQ(PortablePow(1, -0.75), 1);
  EXPECT_EQ(PortablePow(0.1, 1000), 0);
  EXPECT_EQ(PortableSinPi(0), 0);
  EXPECT_EQ(PortableSinPi(0.5), 1);
}

// Recorded bits: libm's may differ between two machines, these may not.
TEST(PortableMath, GivesTheRecordedBits) {
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  EXPECT_EQ(bits(PortableExp(-1.25)), bits(0x1.25618372a584fp-2));
  EXPECT_EQ(bits(PortableLog(3.7)), bits(0x1.4eeee650ae55p+0));
  EXPECT_EQ(bits(PortablePow(1.9999, -0.75)), bits(0x1.3072ccdab323cp-1));
  EXPECT_EQ(bits(PortableSinPi(0.2)), bits(0x1.2cf2304755a5ep-1));
  EXPECT_EQ(bits(PortableSinPi(0.4)), bits(0x1.e6f0e134455p-1));
}

// The schedules by their formulas, with libm. Its pow and cos, and ours, are right to a few units in the last
// place of numbers near 1, and of log(result) where that is larger.
TEST(LearningRate, FollowsTheFormulas) {
  const double base = 0.01;
  const LearningRateSchedule inverse{.kind = ScheduleKind::kInverse, .gamma = 1e-4f, .power = 0.75f};
  const LearningRateSchedule step{.kind = ScheduleKind::kStep, .gamma = 0.9f, .step_size = 7};
  const LearningRateSchedule cosine{
      .kind = ScheduleKind::kCosine, .decay_steps = 1000, .final_fraction = 0.125f};
  for (uint64_t t = 0; t < 2000; ++t) {
    const double x = static_cast<double>(t);
    const auto near = [&](const LearningRateSchedule& schedule, double expected) {
      const double tolerance = 0x1p-48 * (1 + std::abs(std::log(expected / base)));
      EXPECT_LE(RelativeError(LearningRateAt(schedule, base, t), expected), tolerance)
          << ScheduleName(schedule.kind) << " at " << t;
    };
    EXPECT_EQ(LearningRateAt({}, base, t), base);
    near(inverse, base * std::pow(1 + double{inverse.gamma} * x, -0.75));
    near(step, base * std::pow(double{step.gamma}, std::floor(x / 7)));
    near(cosine, base * (0.125 + 0.875 * (1 + std::cos(std::numbers::pi * std::min(x / 1000, 1.0))) / 2));
  }
  // The first is the base itself, and the cosine ends exactly where it should.
  for (const auto& schedule : {inverse, step, cosine}) EXPECT_EQ(LearningRateAt(schedule, base, 0), base);
  EXPECT_EQ(LearningRateAt(cosine, base, 1000), base * 0.125);
  EXPECT_EQ(LearningRateAt(cosine, base, 1'000'000'000'000), base * 0.125);
  // Far out the rate is gone, but never negative or NaN.
  EXPECT_EQ(LearningRateAt(step, base, 1'000'000'000'000), 0);
}

TEST(LearningRate, WarmsUpInFrontOfEverySchedule) {
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kInverse, ScheduleKind::kStep, ScheduleKind::kCosine}) {
    LearningRateSchedule plain = UsualSchedule(kind);
    plain.step_size = 3;
    plain.decay_steps = 20;
    ASSERT_TRUE(Validate(plain).ok());
    LearningRateSchedule warm = plain;
    warm.warmup_steps = 4;
    EXPECT_EQ(LearningRateAt(warm, 2, 0), 0.5);
    EXPECT_EQ(LearningRateAt(warm, 2, 1), 1);
    EXPECT_EQ(LearningRateAt(warm, 2, 2), 1.5);
    EXPECT_EQ(LearningRateAt(warm, 2, 3), 2);
    for (uint64_t t = 0; t < 30; ++t) EXPECT_EQ(LearningRateAt(warm, 2, 4 + t), LearningRateAt(plain, 2, t));
  }
}

TEST(LearningRate, RefusesWhatMakesNoSense) {
  const auto error = [](LearningRateSchedule schedule) {
    const absl::Status status = Validate(schedule);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const float nan = NAN, infinity = INFINITY;
  for (const float bad : {-1e-9f, nan, infinity}) {
    EXPECT_THAT(error({.kind = ScheduleKind::kInverse, .gamma = bad}), HasSubstr("gamma of"));
    EXPECT_THAT(error({.kind = ScheduleKind::kInverse, .power = bad}), HasSubstr("power of"));
  }
  for (const float bad : {0.0f, 1.0001f, nan}) {
    EXPECT_THAT(error({.kind = ScheduleKind::kStep, .gamma = bad, .step_size = 1}), HasSubstr("gamma of"));
  }
  for (const float bad : {-0.01f, 1.0001f, nan}) {
    EXPECT_THAT(error({.kind = ScheduleKind::kCosine, .decay_steps = 1, .final_fraction = bad}),
                HasSubstr("final_fraction of"));
  }
  EXPECT_EQ(error({.kind = ScheduleKind::kStep, .gamma = 0.5f}),
            "step_size of the learning-rate schedule step is 0, expected at least 1");
  EXPECT_EQ(error({.kind = ScheduleKind::kCosine}),
            "decay_steps of the learning-rate schedule cosine is 0, expected at least 1");
  EXPECT_TRUE(Validate(LearningRateSchedule{}).ok());
}

TEST(LearningRate, KnowsItsNamesAndFields) {
  EXPECT_EQ(*ParseScheduleKind("cosine"), ScheduleKind::kCosine);
  EXPECT_EQ(ParseScheduleKind("cosin").status().message(),
            "no learning-rate schedule 'cosin', did you mean 'cosine'?; there are: constant, inverse, step, "
            "cosine");
  EXPECT_THAT(ScheduleFields(ScheduleKind::kStep), ::testing::ElementsAre("gamma", "step_size"));
  EXPECT_TRUE(ScheduleFields(ScheduleKind::kConstant).empty());
}

}  // namespace
}  // namespace muster
