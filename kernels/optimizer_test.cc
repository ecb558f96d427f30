#include "kernels/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "base/random.h"

namespace muster {
namespace {

constexpr int64_t kSize = 131;  // odd, so that vector code has a remainder
constexpr int kSteps = 100;
constexpr double kUnit = FLT_EPSILON / 2;  // the largest relative error of one rounding

OptimizerConfig Config(OptimizerKind kind) {
  return {.kind = kind, .learning_rate = kind == OptimizerKind::kSgd ? 0.5f : 0.01f};
}

std::vector<float> RandomFloats(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

// The gradient sum of one step over `kSamples` samples; an element that never gets a gradient stands for
// padding.
constexpr float kSamples = 100;
std::vector<float> GradientSum(int step) {
  std::vector<float> gradient = RandomFloats(1000 + step, kSize);
  for (float& value : gradient) value *= kSamples;
  gradient[17] = 0;
  return gradient;
}

// Algorithm 1 of the Adam paper, and plain SGD, in double with pow.
std::vector<double> Reference(const OptimizerConfig& config, std::vector<double> p) {
  std::vector<double> m(kSize), v(kSize);
  const double beta1 = config.beta1, beta2 = config.beta2;
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient_sum = GradientSum(t);
    for (int64_t i = 0; i < kSize; ++i) {
      const double g = gradient_sum[i] / double{kSamples};
      if (config.kind == OptimizerKind::kSgd) {
        p[i] -= config.learning_rate * g;
        continue;
      }
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, t));
      const double v_hat = v[i] / (1 - std::pow(beta2, t));
      p[i] -= config.learning_rate * m_hat / (std::sqrt(v_hat) + config.epsilon);
    }
  }
  return p;
}

// What 100 steps may differ from the reference. One step of either rounds p once (it stays below 1 + 100
// steps of at most `largest_step`), and its update carries: SGD four roundings. Adam: v sums positive terms,
// so its relative error grows by four roundings a step, half of that after the square root; m forgets with
// beta1 = 0.9, so its error stays below ten times four roundings of the largest gradient, which is at most
// sqrt(t) times sqrt(v_hat); the rest of the expression six.
double Tolerance(OptimizerKind kind) {
  double tolerance = 0;
  const double rate = Config(kind).learning_rate;
  for (int t = 1; t <= kSteps; ++t) {
    const double largest_step = kind == OptimizerKind::kSgd ? rate : rate * std::min(std::sqrt(t), 3.17);
    const double update = kind == OptimizerKind::kSgd ? 4 * largest_step
                                                      : (2 * t + 6) * largest_step + 40 * std::sqrt(t) * rate;
    tolerance += kUnit * (1 + t * largest_step + update);
  }
  return tolerance;
}

std::vector<float> Train(OptimizerKind kind, bool in_place, int64_t cut) {
  std::vector<float> parameters = RandomFloats(1, kSize);
  std::vector<std::unique_ptr<Optimizer>> parts;
  for (int64_t begin = 0; begin < kSize; begin += cut) {
    parts.push_back(MakeOptimizer(Config(kind), std::min(cut, kSize - begin)));
  }
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient_sum = GradientSum(t);
    std::vector<float> updated(kSize);
    for (int64_t begin = 0; begin < kSize; begin += cut) {
      const size_t size = std::min(cut, kSize - begin);
      const std::span<float> from = std::span(parameters).subspan(begin, size);
      parts[begin / cut]->Apply(from, std::span(gradient_sum).subspan(begin, size), 1 / kSamples,
                                in_place ? from : std::span(updated).subspan(begin, size));
    }
    if (!in_place) parameters = updated;
  }
  return parameters;
}

class OptimizerTest : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(OptimizerTest, FollowsTheReferenceInDouble) {
  const std::vector<float> start = RandomFloats(1, kSize);
  const std::vector<double> expected = Reference(Config(GetParam()), {start.begin(), start.end()});
  const std::vector<float> actual = Train(GetParam(), /*in_place=*/true, kSize);
  for (int64_t i = 0; i < kSize; ++i) EXPECT_NEAR(actual[i], expected[i], Tolerance(GetParam())) << i;
  EXPECT_EQ(actual[17], start[17]);
}

TEST_P(OptimizerTest, InPlaceGivesTheSameBits) {
  EXPECT_EQ(Train(GetParam(), true, kSize), Train(GetParam(), false, kSize));
}

TEST_P(OptimizerTest, AnyCutGivesTheSameBits) {
  const std::vector<float> whole = Train(GetParam(), true, kSize);
  for (const int64_t cut : {1, 3, 16, 67}) EXPECT_EQ(Train(GetParam(), true, cut), whole) << cut;
}

TEST_P(OptimizerTest, ShowsWhatIsNotFinite) {
  const auto optimizer = MakeOptimizer(Config(GetParam()), 2);
  std::vector<float> parameters = {1, 1};
  optimizer->Apply(parameters, std::vector<float>{NAN, 1}, 1, parameters);
  EXPECT_TRUE(std::isnan(parameters[0]));
  EXPECT_TRUE(std::isfinite(parameters[1]));
}

TEST_P(OptimizerTest, EmptyShardIsFine) { MakeOptimizer(Config(GetParam()), 0)->Apply({}, {}, 1, {}); }

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest, ::testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam),
                         [](const auto& info) { return OptimizerName(info.param); });

TEST(ParseOptimizerKind, KnowsItsNamesAndSuggestsTheNearest) {
  EXPECT_EQ(*ParseOptimizerKind("sgd"), OptimizerKind::kSgd);
  EXPECT_EQ(*ParseOptimizerKind("adam"), OptimizerKind::kAdam);
  const absl::Status status = ParseOptimizerKind("adma").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "no optimizer 'adma', did you mean 'adam'?; there are: sgd, adam");
  EXPECT_EQ(ParseOptimizerKind("rmsprop").status().message(), "no optimizer 'rmsprop'; there are: sgd, adam");
}

}  // namespace
}  // namespace muster
