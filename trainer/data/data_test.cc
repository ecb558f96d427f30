#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/crc32c.h"
#include "trainer/data/batch.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Samples(const SampleOrder& order, SampleRange positions) {
  std::vector<int64_t> samples;
  for (int64_t p = positions.begin; p < positions.end; ++p) samples.push_back(order.SampleAt(p));
  return samples;
}

TEST(SampleOrder, EachEpochIsAPermutationOfItsOwn) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    const SampleOrder order(7, size);
    std::vector<int64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    std::set<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> samples = Samples(order, {epoch * size, (epoch + 1) * size});
      epochs.insert(samples);
      std::sort(samples.begin(), samples.end());
      ASSERT_EQ(samples, expected) << size;
    }
    if (size >= 16) {  // three small ones may well be equal
      EXPECT_EQ(epochs.size(), 3u) << size;
    }
  }
}

TEST(SampleOrder, DependsOnTheSeed) {
  EXPECT_EQ(Samples(SampleOrder(1, 1000), {0, 1000}), Samples(SampleOrder(1, 1000), {0, 1000}));
  EXPECT_NE(Samples(SampleOrder(1, 1000), {0, 1000}), Samples(SampleOrder(2, 1000), {0, 1000}));
}

TEST(SampleOrder, LooksShuffled) {
  constexpr int64_t kSize = 10'000;
  const std::vector<int64_t> samples = Samples(SampleOrder(3, kSize), {0, kSize});
  // Where each tenth of the data lands among the ten tenths of the epoch: chi-squared with 81 degrees of
  // freedom, deviation 12.7.
  std::vector<int> counts(100);
  for (int64_t p = 0; p < kSize; ++p) ++counts[p / 1000 * 10 + samples[p] / 1000];
  double chi_squared = 0;
  for (const int count : counts) chi_squared += (count - 100.0) * (count - 100.0) / 100;
  EXPECT_NEAR(chi_squared, 81, 5 * 12.7);
  // Neighbours stay neighbours about twice in a random permutation (Poisson with mean 2).
  int runs = 0;
  for (int64_t p = 1; p < kSize; ++p) runs += std::abs(samples[p] - samples[p - 1]) == 1;
  EXPECT_LE(runs, 12);
}

TEST(BatchSlice, AnyNumberOfWorkersTakesTheSameSamples) {
  constexpr int64_t kBatch = 100;
  const SampleOrder order(5, 730);  // an epoch ends within a batch
  for (const int workers : {1, 2, 3, 7, 100, 130}) {
    for (int64_t step = 0; step < 30; ++step) {
      int64_t end = step * kBatch, smallest = kBatch, largest = 0;
      for (int worker = 0; worker < workers; ++worker) {
        const SampleRange slice = BatchSlice(step, kBatch, worker, workers);
        ASSERT_EQ(slice.begin, end);
        end = slice.end;
        smallest = std::min(smallest, slice.size());
        largest = std::max(largest, slice.size());
      }
      ASSERT_EQ(end, (step + 1) * kBatch);
      ASSERT_LE(largest - smallest, 1);
    }
  }
  EXPECT_EQ(BatchSlice(2, 100, 0, 3), (SampleRange{200, 234}));  // the remainder goes to the first
  EXPECT_EQ(BatchSlice(2, 100, 2, 3), (SampleRange{267, 300}));
}

TEST(BatchBuffer, FillsFromPositionsAndInOrder) {
  const Dataset dataset = MakeSyntheticDigits(1, 20);
  BatchBuffer buffer(7, kMnistPixels);
  const auto expect = [&](const Batch& batch, const std::vector<int64_t>& indices) {
    ASSERT_EQ(batch.size(), static_cast<int64_t>(indices.size()));
    ASSERT_EQ(batch.features.size(), indices.size() * kMnistPixels);
    for (size_t i = 0; i < indices.size(); ++i) {
      EXPECT_EQ(batch.labels[i], dataset.labels[indices[i]]);
      for (int64_t p = 0; p < kMnistPixels; ++p) {
        ASSERT_FLOAT_EQ(batch.features[i * kMnistPixels + p], dataset.sample_bytes(indices[i])[p] / 255.0f);
      }
    }
  };
  const SampleOrder order(9, dataset.size());
  expect(buffer.Fill(dataset, order, {17, 24}), Samples(order, {17, 24}));  // over the end of an epoch
  expect(buffer.FillInOrder(dataset, {13, 20}), {13, 14, 15, 16, 17, 18, 19});
  expect(buffer.Fill(dataset, order, {3, 3}), {});
}

TEST(BatchBuffer, TakesFloatsAndIdsAsTheyAre) {
  const Dataset dataset{.feature_count = 2,
                        .id_count = 3,
                        .features = {0.5f, -1, 7, 1e9f},
                        .ids = {1, 2, 3, 4, 5, 6},
                        .labels = {1, 0}};
  BatchBuffer buffer(2, 2, 3);
  const Batch batch = buffer.FillInOrder(dataset, {1, 2});
  EXPECT_THAT(batch.features, ElementsAre(7, 1e9f));
  EXPECT_THAT(batch.ids, ElementsAre(4, 5, 6));
  EXPECT_THAT(batch.labels, ElementsAre(0));
}

TEST(BatchBuffer, PixelsSpanZeroToOne) {
  Dataset dataset{.feature_count = kMnistPixels, .bytes = std::vector<uint8_t>(kMnistPixels), .labels = {0}};
  dataset.bytes[1] = 255;
  BatchBuffer buffer(1, kMnistPixels);
  const Batch batch = buffer.FillInOrder(dataset, {0, 1});
  EXPECT_EQ(batch.features[0], 0.0f);
  EXPECT_EQ(batch.features[1], 1.0f);
}

TEST(SyntheticDigits, EachSampleDependsOnItsIndexOnly) {
  const Dataset few = MakeSyntheticDigits(4, 10), more = MakeSyntheticDigits(4, 500);
  EXPECT_TRUE(std::equal(few.bytes.begin(), few.bytes.end(), more.bytes.begin()));
  EXPECT_TRUE(std::equal(few.labels.begin(), few.labels.end(), more.labels.begin()));
  EXPECT_NE(MakeSyntheticDigits(5, 10).bytes, few.bytes);
  const std::set<uint8_t> labels(more.labels.begin(), more.labels.end());
  EXPECT_EQ(labels.size(), 10u);
  EXPECT_EQ(*labels.rbegin(), 9);
}

// Golden value, made by this code: hosts that make their own data must make the same.
TEST(SyntheticDigits, HasTheRecordedBits) {
  const Dataset dataset = MakeSyntheticDigits(1, 100);
  EXPECT_EQ(Crc32c(dataset.bytes.data(), dataset.bytes.size()), 0x4a7ace6du);
  const TrainTestData mnist = MakeSyntheticMnist(1, 10, 5);
  EXPECT_EQ(mnist.train.size(), 10);
  EXPECT_EQ(mnist.test.size(), 5);
  EXPECT_FALSE(std::equal(mnist.test.bytes.begin(), mnist.test.bytes.end(), mnist.train.bytes.begin()));
}

}  // namespace
}  // namespace muster
