#include "kernels/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 100;
constexpr double kUnit = FLT_EPSILON / 2;  // the largest relative error of one rounding

// A number in double, and a bound of what the same computation in float may differ from it: what its operands
// may, and one rounding of the result (running error analysis: Higham, "Accuracy and stability of numerical
// algorithms", section 3.3). Double's own roundings are 2^-29 of that.
struct Bounded {
  double value = 0;
  double error = 0;
};

Bounded Exactly(float value) { return {value, 0}; }
Bounded Rounded(double value, double error = 0) { return {value, error + kUnit * (std::abs(value) + error)}; }

Bounded operator+(Bounded a, Bounded b) { return Rounded(a.value + b.value, a.error + b.error); }
Bounded operator-(Bounded a, Bounded b) { return Rounded(a.value - b.value, a.error + b.error); }
Bounded operator*(Bounded a, Bounded b) {
  return Rounded(a.value * b.value,
                 std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
}
Bounded operator/(Bounded a, Bounded b) {
  const double quotient = a.value / b.value;
  return Rounded(quotient, (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error));
}
Bounded Sqrt(Bounded a) {
  const double root = std::sqrt(a.value);
  return Rounded(root, root > 0 ? a.error / root : 0);
}

struct Recipe {
  std::string name;
  OptimizerConfig config;
};

// Each optimizer, with and without what can be added to it.
std::vector<Recipe> Recipes() {
  const LearningRateSchedule inverse{.kind = ScheduleKind::kInverse, .gamma = 0.1f, .power = 0.75f};
  const LearningRateSchedule step{.kind = ScheduleKind::kStep, .gamma = 0.5f, .step_size = 30};
  const LearningRateSchedule cosine{
      .kind = ScheduleKind::kCosine, .decay_steps = 80, .final_fraction = 0.1f, .warmup_steps = 10};
  using Kind = OptimizerKind;
  return {
      {"sgd", {.kind = Kind::kSgd, .learning_rate = 0.5f}},
      {"sgd_decay", {.kind = Kind::kSgd, .learning_rate = 0.5f, .weight_decay = 0.01f, .schedule = step}},
      {"momentum", {.kind = Kind::kMomentum, .learning_rate = 0.05f}},
      {"momentum_decay",
       {.kind = Kind::kMomentum, .learning_rate = 0.05f, .weight_decay = 5e-4f, .schedule = inverse}},
      {"nesterov", {.kind = Kind::kMomentum, .learning_rate = 0.05f, .nesterov = true, .schedule = cosine}},
      {"adagrad", {.kind = Kind::kAdagrad, .learning_rate = 0.05f}},
      {"adagrad_decay",
       {.kind = Kind::kAdagrad, .learning_rate = 0.05f, .weight_decay = 0.01f, .schedule = cosine}},
      {"adam", {.kind = Kind::kAdam, .learning_rate = 0.01f}},
      {"adam_decay",
       {.kind = Kind::kAdam, .learning_rate = 0.01f, .weight_decay = 0.01f, .schedule = inverse}},
      {"ftrl", {.kind = Kind::kFtrl, .learning_rate = 0.2f}},
      {"ftrl_l1_l2", {.kind = Kind::kFtrl, .learning_rate = 0.2f, .l1 = 0.5f, .l2 = 0.25f}},
  };
}

// One parameter by the formulas of the papers, with its slots.
class Reference {
 public:
  Reference(const OptimizerConfig& config, float start) : c_(config), p_(Exactly(start)) {
    if (config.kind == OptimizerKind::kAdagrad || config.kind == OptimizerKind::kFtrl) {
      accumulator_ = Exactly(config.initial_accumulator);
    }
  }

  // `update` counts from 1.
  void Update(int update, float gradient_sum, float gradient_scale) {
    const Bounded g = Exactly(gradient_sum) * Exactly(gradient_scale) +
                      (c_.weight_decay > 0 ? Exactly(c_.weight_decay) * p_ : Bounded{});
    const Bounded rate = Rounded(LearningRateAt(c_.schedule, c_.learning_rate, update - 1));
    switch (c_.kind) {
      case OptimizerKind::kSgd:
        p_ = p_ - rate * g;
        return;
      case OptimizerKind::kMomentum:
        first_ = Exactly(c_.momentum) * first_ + g;
        p_ = p_ - rate * (c_.nesterov ? g + Exactly(c_.momentum) * first_ : first_);
        return;
      case OptimizerKind::kAdagrad:
        accumulator_ = accumulator_ + g * g;
        p_ = p_ - rate * g / Sqrt(accumulator_);
        return;
      case OptimizerKind::kAdam:
        Adam(update, g, rate);
        return;
      case OptimizerKind::kFtrl:
        Ftrl(g, rate);
        return;
    }
  }

  Bounded parameter() const { return p_; }

 private:
  void Adam(int update, Bounded g, Bounded rate) {
    const double beta1 = c_.beta1, beta2 = c_.beta2;
    first_ = Exactly(c_.beta1) * first_ + Rounded(1 - beta1) * g;
    second_ = Exactly(c_.beta2) * second_ + Rounded(1 - beta2) * (g * g);
    const Bounded m_hat = first_ / Rounded(1 - std::pow(beta1, update));
    const Bounded v_hat = second_ / Rounded(1 - std::pow(beta2, update));
    p_ = p_ - rate * m_hat / (Sqrt(v_hat) + Exactly(c_.epsilon));
  }

  void Ftrl(Bounded g, Bounded rate) {
    if (g.value == 0) return;
    const Bounded old_root = Sqrt(accumulator_);
    accumulator_ = accumulator_ + g * g;
    const Bounded root = Sqrt(accumulator_);
    first_ = first_ + g - (root - old_root) / rate * p_;
    const Bounded l1{first_.value < 0 ? -c_.l1 : c_.l1};
    const Bounded value = (l1 - first_) / (root / rate + Exactly(2 * c_.l2));
    // Where |z| is so near to l1 that float may see it on the other side, one of the two is 0.
    const double distance = std::abs(first_.value) - c_.l1;
    const bool is_zero = distance <= 0;
    const bool is_near = std::abs(distance) <= first_.error;
    p_ = {is_zero ? 0 : value.value, is_near   ? std::abs(value.value) + value.error
                                     : is_zero ? 0
                                               : value.error};
  }

  const OptimizerConfig c_;
  Bounded p_;
  Bounded first_;  // moment, velocity, or z
  Bounded second_;
  Bounded accumulator_;
};

std::vector<float> RandomFloats(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

// The gradient sum of one step over `kSamples` samples; an element that never gets one.
constexpr float kSamples = 100;
int64_t Without(int64_t size) { return size / 7; }
std::vector<float> GradientSum(int step, int64_t size) {
  std::vector<float> gradient = RandomFloats(1000 + step, size);
  for (float& value : gradient) value *= kSamples;
  gradient[Without(size)] = 0;
  return gradient;
}

// The rows that step `step` touches: about half of `count`, in a changing order.
std::vector<int64_t> RowsOf(int step, int64_t count) {
  RandomStream random(7, static_cast<uint64_t>(step));
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < count; ++row) {
    if (random.NextBelow(2) == 0) rows.push_back(row);
  }
  if (step % 2 == 0) std::reverse(rows.begin(), rows.end());
  return rows;
}

// Bits, so that -0 is not 0 and NaN is NaN.
std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Around the widths of vectors, so that there are remainders of every sort.
constexpr int64_t kSizes[] = {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 131};
constexpr int64_t kSize = 131;

std::vector<float> Train(const OptimizerConfig& config, int64_t size, bool in_place, int64_t cut) {
  std::vector<float> parameters = RandomFloats(1, size);
  std::vector<std::unique_ptr<Optimizer>> parts;
  for (int64_t begin = 0; begin < size; begin += cut) {
    parts.push_back(MakeOptimizer(config, std::min(cut, size - begin)));
  }
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient_sum = GradientSum(t, size);
    std::vector<float> updated(size);
    for (int64_t begin = 0; begin < size; begin += cut) {
      const size_t part = std::min(cut, size - begin);
      const std::span<float> from = std::span(parameters).subspan(begin, part);
      parts[begin / cut]->Apply(from, std::span(gradient_sum).subspan(begin, part), 1 / kSamples,
                                in_place ? from : std::span(updated).subspan(begin, part));
    }
    if (!in_place) parameters = updated;
  }
  return parameters;
}

void ExpectNear(const std::vector<float>& actual, const std::vector<Reference>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto [value, error] = expected[i].parameter();
    // Twice, because the loops take a few operations in another order. A wrong formula is off by far more
    // than any bound that is below a thousandth of the way that the parameters go.
    EXPECT_NEAR(actual[i], value, 2 * error) << i;
    EXPECT_LT(error, 1e-3) << i;
  }
}

class OptimizerTest : public ::testing::TestWithParam<Recipe> {
 protected:
  const OptimizerConfig& config() const { return GetParam().config; }
};

TEST_P(OptimizerTest, FollowsTheReferenceInDouble) {
  for (const int64_t size : kSizes) {
    const std::vector<float> start = RandomFloats(1, size);
    std::vector<Reference> reference;
    for (const float p : start) reference.emplace_back(config(), p);
    for (int t = 1; t <= kSteps; ++t) {
      const std::vector<float> gradient_sum = GradientSum(t, size);
      for (int64_t i = 0; i < size; ++i) reference[i].Update(t, gradient_sum[i], 1 / kSamples);
    }
    const std::vector<float> actual = Train(config(), size, /*in_place=*/true, size);
    ExpectNear(actual, reference);
    if (config().weight_decay > 0) continue;
    EXPECT_EQ(actual[Without(size)], start[Without(size)]);
  }
}

TEST_P(OptimizerTest, FollowsTheReferenceByRows) {
  constexpr int64_t kRows = 13;
  for (const int64_t width : {1, 3, 8, 17, 33}) {
    std::vector<float> table = RandomFloats(1, kRows * width);
    std::vector<Reference> reference;
    for (const float p : table) reference.emplace_back(config(), p);
    const auto optimizer = MakeOptimizer(config(), kRows * width);
    for (int t = 1; t <= kSteps; ++t) {
      const std::vector<int64_t> rows = RowsOf(t, kRows);
      std::vector<float> sums = RandomFloats(2000 + t, static_cast<int64_t>(rows.size()) * width);
      for (float& sum : sums) sum *= kSamples;
      optimizer->ApplyRows(width, rows, sums, 1 / kSamples, table);
      for (size_t i = 0; i < sums.size(); ++i) {
        reference[rows[i / width] * width + i % width].Update(t, sums[i], 1 / kSamples);
      }
    }
    ExpectNear(table, reference);
  }
}

TEST_P(OptimizerTest, AllRowsGiveTheBitsOfADenseUpdate) {
  constexpr int64_t kWidth = 5, kRows = 3;
  std::vector<float> by_rows = RandomFloats(1, kRows * kWidth), dense = by_rows;
  const auto rows_optimizer = MakeOptimizer(config(), kRows * kWidth);
  const auto dense_optimizer = MakeOptimizer(config(), kRows * kWidth);
  const std::vector<int64_t> rows = {0, 1, 2};
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> sums = GradientSum(t, kRows * kWidth);
    rows_optimizer->ApplyRows(kWidth, rows, sums, 1 / kSamples, by_rows);
    dense_optimizer->Apply(dense, sums, 1 / kSamples, dense);
  }
  EXPECT_EQ(Bits(by_rows), Bits(dense));
}

TEST_P(OptimizerTest, InPlaceGivesTheSameBits) {
  EXPECT_EQ(Bits(Train(config(), kSize, true, kSize)), Bits(Train(config(), kSize, false, kSize)));
}

TEST_P(OptimizerTest, AnyCutGivesTheSameBits) {
  const std::vector<uint32_t> whole = Bits(Train(config(), kSize, true, kSize));
  for (const int64_t cut : {1, 3, 16, 67}) EXPECT_EQ(Bits(Train(config(), kSize, true, cut)), whole) << cut;
}

TEST_P(OptimizerTest, ZerosWithoutAGradientStayZero) {
  const auto optimizer = MakeOptimizer(config(), kSize);
  std::vector<float> parameters(kSize);
  for (int t = 1; t <= kSteps; ++t) {
    optimizer->Apply(parameters, std::vector<float>(kSize), 1 / kSamples, parameters);
  }
  EXPECT_EQ(Bits(parameters), Bits(std::vector<float>(kSize)));
}

TEST_P(OptimizerTest, ShowsWhatIsNotFinite) {
  const auto optimizer = MakeOptimizer(config(), 2);
  std::vector<float> parameters = {1, 1};
  optimizer->Apply(parameters, std::vector<float>{NAN, 1}, 1, parameters);
  EXPECT_TRUE(std::isnan(parameters[0]));
  EXPECT_TRUE(std::isfinite(parameters[1]));
}

TEST_P(OptimizerTest, EmptyShardIsFine) {
  MakeOptimizer(config(), 0)->Apply({}, {}, 1, {});
  MakeOptimizer(config(), 0)->ApplyRows(4, {}, {}, 1, {});
}

TEST_P(OptimizerTest, ARowOutsideTheTableIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto optimizer = MakeOptimizer(config(), 6);
  std::vector<float> table(6), sums(3);
  for (const int64_t row : {int64_t{-1}, int64_t{2}, INT64_MAX / 2}) {
    EXPECT_DEATH(optimizer->ApplyRows(3, std::vector<int64_t>{row}, sums, 1, table), "outside the table");
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest, ::testing::ValuesIn(Recipes()),
                         [](const auto& info) { return info.param.name; });

// Those that leave a parameter without a gradient as it is.
TEST(Optimizer, RowsGiveTheBitsOfADenseUpdateWithZerosElsewhere) {
  constexpr int64_t kRows = 13;
  for (const std::string name : {"sgd", "adagrad", "ftrl", "ftrl_l1_l2"}) {
    const std::vector<Recipe> recipes = Recipes();
    const auto recipe =
        std::find_if(recipes.begin(), recipes.end(), [&](const Recipe& r) { return r.name == name; });
    ASSERT_NE(recipe, recipes.end());
    for (const int64_t width : {1, 3, 8, 17}) {
      std::vector<float> by_rows = RandomFloats(1, kRows * width), dense = by_rows;
      const auto rows_optimizer = MakeOptimizer(recipe->config, kRows * width);
      const auto dense_optimizer = MakeOptimizer(recipe->config, kRows * width);
      for (int t = 1; t <= kSteps; ++t) {
        const std::vector<int64_t> rows = RowsOf(t, kRows);
        const std::vector<float> sums = RandomFloats(2000 + t, static_cast<int64_t>(rows.size()) * width);
        std::vector<float> all(kRows * width);
        for (size_t i = 0; i < sums.size(); ++i) all[rows[i / width] * width + i % width] = sums[i];
        rows_optimizer->ApplyRows(width, rows, sums, 1 / kSamples, by_rows);
        dense_optimizer->Apply(dense, all, 1 / kSamples, dense);
      }
      EXPECT_EQ(Bits(by_rows), Bits(dense)) << name << ", width " << width;
    }
  }
}

// As where a unit is never active again.
TEST(Optimizer, MomentsWithoutGradientsBecomeZero) {
  for (const OptimizerConfig& config : {OptimizerConfig{.kind = OptimizerKind::kMomentum},
                                        OptimizerConfig{.kind = OptimizerKind::kMomentum, .nesterov = true},
                                        OptimizerConfig{.kind = OptimizerKind::kAdam, .beta2 = 0.95f}}) {
    const auto optimizer = MakeOptimizer(config, kSize);
    std::vector<float> parameters(kSize, 1);
    std::vector<float> gradient(kSize, 1e-6f);
    gradient[0] = NAN;
    for (int64_t i = 1; i < kSize; i += 2) gradient[i] = -1e-6f;
    optimizer->Apply(parameters, gradient, 1, parameters);
    for (int t = 1; t < 47 * 64; ++t) {  // the last one clears
      optimizer->Apply(parameters, std::vector<float>(kSize), 1, parameters);
    }
    for (const std::span<float> slot : optimizer->slots()) {
      EXPECT_TRUE(std::isnan(slot[0])) << "what is not finite has to stay visible";
      for (int64_t i = 1; i < kSize; ++i) EXPECT_EQ(slot[i], 0) << OptimizerName(config.kind) << " " << i;
    }
  }
}

// An update at a fraction of its rate is the update of an optimizer with that rate.
TEST(Optimizer, ARateScaleIsAnotherRate) {
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad, OptimizerKind::kAdam}) {
    OptimizerConfig config = UsualOptimizer(kind);
    config.learning_rate = 0.5f;
    const auto scaled = MakeOptimizer(config, 2);
    config.learning_rate = 0.125f;
    const auto expected = MakeOptimizer(config, 2);
    const std::vector<float> gradient = {1, -3};
    std::vector<float> values = {1, 2}, expected_values = values;
    scaled->Apply(values, gradient, {0.5f, 0.25f}, values);
    expected->Apply(expected_values, gradient, 0.5f, expected_values);
    EXPECT_EQ(values, expected_values) << OptimizerName(kind);
    scaled->ApplyRows(1, std::vector<int64_t>{1}, std::vector<float>{7}, {1, 0.25f}, values);
    expected->ApplyRows(1, std::vector<int64_t>{1}, std::vector<float>{7}, 1, expected_values);
    EXPECT_EQ(values, expected_values) << OptimizerName(kind);
  }
}

// The schedule counts updates, not rows, and Adam's correction likewise.
TEST(Optimizer, AnUpdateWithoutRowsCounts) {
  for (const OptimizerConfig& config :
       {OptimizerConfig{.kind = OptimizerKind::kSgd,
       .learning_rate = 1,
       .schedule = {.kind = ScheduleKind::kStep, .gamma = 0.5f, .step_size = 1}},
        OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 1, .beta1 = 0.5f}}) {
    const auto optimizer = MakeOptimizer(config, 1);
    std::vector<float> table = {0};
    optimizer->ApplyRows(1, {}, {}, 1, table);
    EXPECT_EQ(table[0], 0);
    optimizer->ApplyRows(1, std::vector<int64_t>{0}, std::vector<float>{1}, 1, table);
    Reference reference(config, 0);
    reference.Update(2, 1, 1);
    EXPECT_NEAR(table[0], reference.parameter().value, 2 * reference.parameter().error);
  }
}

TEST(Optimizer, ValidationNamesTheField) {
  EXPECT_TRUE(Validate(OptimizerConfig{}).ok());
  for (const Recipe& recipe : Recipes()) EXPECT_TRUE(Validate(recipe.config).ok()) << recipe.name;
  const auto error = [](OptimizerConfig config) {
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const OptimizerConfig good;
  const auto with = [&](float OptimizerConfig::*field, float value) {
    OptimizerConfig config = good;
    config.*field = value;
    return error(config);
  };
  for (const float bad : {-1.0f, NAN, INFINITY}) {
    EXPECT_THAT(with(&OptimizerConfig::learning_rate, bad), HasSubstr("learning_rate of"));
    EXPECT_THAT(with(&OptimizerConfig::weight_decay, bad), HasSubstr("weight_decay of"));
    EXPECT_THAT(with(&OptimizerConfig::momentum, bad), HasSubstr("momentum of"));
    EXPECT_THAT(with(&OptimizerConfig::beta1, bad), HasSubstr("beta1 of"));
    EXPECT_THAT(with(&OptimizerConfig::beta2, bad), HasSubstr("beta2 of"));
    EXPECT_THAT(with(&OptimizerConfig::epsilon, bad), HasSubstr("epsilon of"));
    EXPECT_THAT(with(&OptimizerConfig::initial_accumulator, bad), HasSubstr("initial_accumulator of"));
    EXPECT_THAT(with(&OptimizerConfig::l1, bad), HasSubstr("l1 of"));
    EXPECT_THAT(with(&OptimizerConfig::l2, bad), HasSubstr("l2 of"));
  }
  EXPECT_EQ(with(&OptimizerConfig::learning_rate, 0),
            "learning_rate of the optimizer sgd is 0, expected a finite number above 0");
  EXPECT_EQ(with(&OptimizerConfig::momentum, 1),
            "momentum of the optimizer sgd is 1, expected a number from 0 to below 1");
  EXPECT_EQ(with(&OptimizerConfig::l1, 0.1f), "l1 means nothing with the optimizer sgd");
  EXPECT_EQ(error({.kind = OptimizerKind::kFtrl, .weight_decay = 0.1f}),
            "weight_decay means nothing with the optimizer ftrl");
  EXPECT_EQ(error({.kind = OptimizerKind::kAdam, .nesterov = true}),
            "nesterov means nothing with the optimizer adam");
  EXPECT_EQ(error({.kind = OptimizerKind::kFtrl, .schedule = {.warmup_steps = 1}}),
            "the optimizer ftrl takes a constant learning rate only, without warm-up");
  EXPECT_THAT(error({.schedule = {.kind = ScheduleKind::kStep}}), HasSubstr("gamma of"));
}

TEST(Optimizer, TheUsualOnesAreValid) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad,
                                   OptimizerKind::kAdam, OptimizerKind::kFtrl}) {
    EXPECT_TRUE(Validate(UsualOptimizer(kind)).ok());
    EXPECT_EQ(UsualOptimizer(kind).kind, kind);
    EXPECT_EQ(*ParseOptimizerKind(OptimizerName(kind)), kind);
  }
}

TEST(ParseOptimizerKind, KnowsItsNamesAndSuggestsTheNearest) {
  const absl::Status status = ParseOptimizerKind("adma").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "no optimizer 'adma', did you mean 'adam'?; there are: sgd, momentum, adagrad, adam, ftrl");
  EXPECT_EQ(ParseOptimizerKind("rmsprop").status().message(),
            "no optimizer 'rmsprop'; there are: sgd, momentum, adagrad, adam, ftrl");
}

}  // namespace
}  // namespace muster
