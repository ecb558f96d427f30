#include "kernels/parameter_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace muster {
namespace {

using ::testing::HasSubstr;

std::vector<TensorSpec> ExampleSpecs() {
  return {{"hidden_0/weights", {37, 5}, Initializer::kTruncatedNormal, 0.25f},
          {"hidden_0/bias", {5}, Initializer::kZeros, 0},
          {"output/weights", {5, 3}, Initializer::kUniform, 0.5f},
          {"scalar", {}, Initializer::kUniform, 1.0f}};
}

ParameterLayout MustCreate(std::vector<TensorSpec> specs) {
  return *ParameterLayout::Create(std::move(specs));
}

std::vector<float> InitializeAll(const ParameterLayout& layout, uint64_t seed) {
  std::vector<float> values(layout.size(), NAN);
  layout.Initialize(seed, {0, layout.size()}, values);
  return values;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(ParameterLayout, AlignsTensorsInTheOrderGiven) {
  const ParameterLayout layout = MustCreate(ExampleSpecs());
  ASSERT_EQ(layout.tensors().size(), 4u);
  EXPECT_EQ(layout.tensors()[0].offset, 0);
  EXPECT_EQ(layout.tensors()[0].size, 185);
  EXPECT_EQ(layout.tensors()[1].offset, 192);
  EXPECT_EQ(layout.tensors()[2].offset, 208);
  EXPECT_EQ(layout.tensors()[3].offset, 224);
  EXPECT_EQ(layout.tensors()[3].size, 1);
  EXPECT_EQ(layout.size(), 240);
  EXPECT_EQ(layout.parameter_count(), 185 + 5 + 15 + 1);
}

TEST(ParameterLayout, OfNoTensorsThereIsNothing) {
  const auto layout = ParameterLayout::Create({});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->size(), 0);
  EXPECT_EQ(layout->Shard(1, 3), (LayoutRange{0, 0}));
  EXPECT_EQ(layout->Hash(), ParameterLayout().Hash());
}

TEST(ParameterLayout, RefusesWhatCannotBeLaidOut) {
  const auto error = [](std::vector<TensorSpec> specs) {
    const absl::Status status = ParameterLayout::Create(std::move(specs)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({{"a", {1}}, {"a", {1}}}), HasSubstr("'a'"));
  EXPECT_THAT(error({{"a", {3, 0}}}), HasSubstr("dimension of 0"));
  EXPECT_THAT(error({{"a", {-1}}}), HasSubstr("dimension of -1"));
  EXPECT_THAT(error({{.name = "a", .shape = {1}, .optimizer_group = -1}}), HasSubstr("optimizer group -1"));
  EXPECT_THAT(error({{"a", {int64_t{1} << 40, 2}}}), HasSubstr("'a'"));
  EXPECT_THAT(error({{"a", {INT64_MAX, INT64_MAX}}}), HasSubstr("'a'"));
  EXPECT_THAT(error({{"a", {int64_t{1} << 40}}, {"b", {1}}}), HasSubstr("'b'"));
  EXPECT_TRUE(ParameterLayout::Create({{"a", {int64_t{1} << 40}}}).ok());
}

TEST(ParameterLayout, ShardsPartitionTheBufferIntoBlocksEvenly) {
  const ParameterLayout layout = MustCreate(ExampleSpecs());  // 15 blocks
  for (const int count : {1, 2, 3, 4, 7, 15, 16, 40}) {
    int64_t end = 0, smallest = layout.size(), largest = 0;
    for (int i = 0; i < count; ++i) {
      const LayoutRange shard = layout.Shard(i, count);
      EXPECT_EQ(shard.begin, end);
      EXPECT_EQ(shard.size() % kBlockFloats, 0);
      end = shard.end;
      smallest = std::min(smallest, shard.size());
      largest = std::max(largest, shard.size());
    }
    EXPECT_EQ(end, layout.size());
    EXPECT_LE(largest - smallest, kBlockFloats) << count << " shards";
  }
  EXPECT_EQ(layout.Shard(15, 16).size(), 0);  // one shard more than there are blocks
}

TEST(ParameterLayout, AnyShardingInitializesTheSameBits) {
  const ParameterLayout layout = MustCreate(ExampleSpecs());
  const std::vector<uint32_t> whole = Bits(InitializeAll(layout, 7));
  for (const int count : {2, 3, 5, 16}) {
    std::vector<float> values(layout.size(), NAN);
    for (int i = count - 1; i >= 0; --i) {
      const LayoutRange shard = layout.Shard(i, count);
      layout.Initialize(7, shard, std::span(values).subspan(shard.begin, shard.size()));
    }
    EXPECT_EQ(Bits(values), whole) << count << " shards";
  }
  std::vector<float> odd(layout.size(), NAN);  // ranges that are no shards work too
  for (int64_t begin = 0; begin < layout.size(); begin += 7) {
    const LayoutRange range{begin, std::min(begin + 7, layout.size())};
    layout.Initialize(7, range, std::span(odd).subspan(range.begin, range.size()));
  }
  EXPECT_EQ(Bits(odd), whole);
  EXPECT_NE(Bits(InitializeAll(layout, 8)), whole);
}

TEST(ParameterLayout, PaddingAndZerosAreZero) {
  const ParameterLayout layout = MustCreate(ExampleSpecs());
  const std::vector<float> values = InitializeAll(layout, 1);
  for (int64_t i = 185; i < 208; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), 0u) << i;
  for (int64_t i = 225; i < 240; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), 0u) << i;
}

TEST(ParameterLayout, TruncatedNormalHasItsMoments) {
  constexpr int kSamples = 1 << 18;
  constexpr double kScale = 0.5;
  const ParameterLayout layout = MustCreate({{"w", {kSamples}, Initializer::kTruncatedNormal, kScale}});
  const std::vector<float> values = InitializeAll(layout, 3);
  double sum = 0, square_sum = 0;
  int within_one = 0;
  for (const float value : values) {
    ASSERT_LE(std::abs(value), 2 * kScale);
    sum += value;
    square_sum += double{value} * value;
    within_one += std::abs(value) < kScale;
  }
  // A normal truncated at two deviations has variance 0.77374 (deviation 0.8796), fourth moment 1.41619 and
  // P(|x| < 1) = 0.68269/0.95450. Five standard errors: one seed in a million would fail, and this one is
  // fixed.
  const double variance = 0.7737413 * kScale * kScale;
  EXPECT_NEAR(sum / kSamples, 0, 5 * std::sqrt(variance / kSamples));
  EXPECT_NEAR(square_sum / kSamples, variance,
              5 * std::sqrt((1.41619 - 0.59868) / kSamples) * kScale * kScale);
  const double p = 0.7152328;
  EXPECT_NEAR(1.0 * within_one / kSamples, p, 5 * std::sqrt(p * (1 - p) / kSamples));
}

TEST(ParameterLayout, UniformStaysBelowItsScale) {
  constexpr int kSamples = 1 << 16;
  const ParameterLayout layout = MustCreate({{"w", {kSamples}, Initializer::kUniform, 0.3f}});
  double sum = 0, square_sum = 0;
  for (const float value : InitializeAll(layout, 3)) {
    ASSERT_GE(value, -0.3f);
    ASSERT_LT(value, 0.3f);
    sum += value;
    square_sum += double{value} * value;
  }
  const double variance = 0.3 * 0.3 / 3;
  EXPECT_NEAR(sum / kSamples, 0, 5 * std::sqrt(variance / kSamples));
  // The variance of x^2 for x uniform in [-a, a) is a^4 (1/5 - 1/9).
  EXPECT_NEAR(square_sum / kSamples, variance, 5 * 0.09 * std::sqrt((1.0 / 5 - 1.0 / 9) / kSamples));
}

TEST(ParameterLayout, ConstantIsTheScale) {
  const ParameterLayout layout =
      MustCreate({{.name = "bias", .shape = {3}, .initializer = Initializer::kConstant, .scale = 0.1f}});
  const std::vector<float> values = InitializeAll(layout, 1);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < 3 ? 0.1f : 0) << i;
}

TEST(ParameterLayout, HashDependsOnEachField) {
  const std::vector<TensorSpec> specs = ExampleSpecs();
  std::vector<uint64_t> hashes = {MustCreate(specs).Hash()};
  const auto with = [&](auto change) {
    std::vector<TensorSpec> changed = specs;
    change(changed);
    hashes.push_back(MustCreate(changed).Hash());
  };
  with([](auto& s) { s[1].name = "hidden_0/biaS"; });
  with([](auto& s) { s[1].name += '\0'; });
  with([](auto& s) { s[0].shape = {5, 37}; });
  with([](auto& s) { s[0].shape = {185}; });
  with([](auto& s) { s[1].initializer = Initializer::kUniform; });
  with([](auto& s) { s[0].scale = std::nextafter(0.25f, 1.0f); });
  with([](auto& s) { s[3].optimizer_group = 1; });
  with([](auto& s) { std::swap(s[0], s[2]); });
  with([](auto& s) { s.pop_back(); });
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
}

// Golden values, from a second implementation (Python, by the comments of parameter_layout.cc alone): two
// builds of one cluster must agree on them, so a change here is a change of format.
TEST(ParameterLayout, HashAndFirstValuesAreTheRecordedOnes) {
  const ParameterLayout layout = MustCreate(ExampleSpecs());
  const std::vector<uint32_t> bits = Bits(InitializeAll(layout, 1));
  EXPECT_EQ(layout.Hash(), 0x97b21bc6b96f407du);
  EXPECT_THAT(std::vector<uint32_t>(bits.begin(), bits.begin() + 4),
              ::testing::ElementsAre(0xbd57bbd6u, 0xbe0e4402u, 0xbc9edd0au, 0x3ec40341u));
  EXPECT_THAT(std::vector<uint32_t>(bits.begin() + 208, bits.begin() + 212),
              ::testing::ElementsAre(0xbc6a1300u, 0xbea8b428u, 0x3ed6e52eu, 0xbe896164u));
}

}  // namespace
}  // namespace muster
