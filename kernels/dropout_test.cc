#include "kernels/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "kernels/dropout_reference.h"
#include "kernels/guarded.h"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// The known answers of the authors' library Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

std::vector<float> Factors(const Dropout& dropout, int64_t position, int64_t samples, int64_t units) {
  Guarded factors(samples * units);
  DropoutFactors(dropout, position, samples, units, factors.span());
  return {factors.span().begin(), factors.span().end()};
}

TEST(Dropout, MatchesTheReference) {
  constexpr int64_t kSamples = 5;
  for (const int64_t units : {1, 3, 4, 7, 64}) {
    for (const int64_t position : {int64_t{0}, int64_t{1000}, (int64_t{1} << 32) - 2}) {
      for (const float rate : {0.0f, 0.1f, 0.5f, 0.9f, 1 - FLT_EPSILON / 2}) {
        const Dropout dropout{.seed = 0x123456789abcdef0, .rate = rate};
        const std::vector<float> factors = Factors(dropout, position, kSamples, units);
        for (int64_t i = 0; i < kSamples * units; ++i) {
          ASSERT_EQ(factors[i],
                    static_cast<float>(ReferenceDropoutFactor(dropout, position + i / units, i % units)));
        }
      }
    }
  }
}

TEST(Dropout, DropsTheShareAskedFor) {
  constexpr int64_t kSamples = 1000, kUnits = 1000, kCount = kSamples * kUnits;
  for (const double rate : {0.0, 0.25, 0.5, 0.9}) {
    const std::vector<float> factors =
        Factors({.seed = 1, .rate = static_cast<float>(rate)}, 0, kSamples, kUnits);
    const double dropped = static_cast<double>(std::count(factors.begin(), factors.end(), 0.0f));
    EXPECT_NEAR(dropped, kCount * rate, 5 * std::sqrt(kCount * rate * (1 - rate)));
  }
}

TEST(Dropout, MaskDependsOnSeedAndPositionAndNotOnTheSplit) {
  constexpr int64_t kUnits = 33;
  const Dropout dropout{.seed = 7, .rate = 0.5f};
  const std::vector<float> whole = Factors(dropout, 100, 10, kUnits);
  std::vector<float> parts = Factors(dropout, 100, 3, kUnits);
  for (const auto& [position, samples] : {std::pair(103, 1), std::pair(104, 6)}) {
    const std::vector<float> part = Factors(dropout, position, samples, kUnits);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
  EXPECT_NE(Factors(dropout, 101, 10, kUnits), whole);
  EXPECT_NE(Factors({.seed = 8, .rate = 0.5f}, 100, 10, kUnits), whole);
  EXPECT_NE(Factors({.seed = 7 + (uint64_t{1} << 32), .rate = 0.5f}, 100, 10, kUnits), whole);
}

TEST(Dropout, ScalesWhatItKeepsAndHidesNothing) {
  std::vector<float> output(5);
  DropoutApply(std::vector<float>{0, 2, 2, 0, 2}, std::vector<float>{3, 4, -5, NAN, INFINITY}, output);
  EXPECT_EQ(output[0], 0);
  EXPECT_EQ(output[1], 8);
  EXPECT_EQ(output[2], -10);
  EXPECT_TRUE(std::isnan(output[3]));
  EXPECT_EQ(output[4], INFINITY);
  EXPECT_THAT(Factors({.seed = 1, .rate = 0}, 0, 4, 9), Each(1.0f));
}

}  // namespace
}  // namespace muster
