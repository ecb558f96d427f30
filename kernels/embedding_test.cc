#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include <cfloat>

#include "kernels/embedding_reference.h"
#include "kernels/kernel_testing.h"

namespace muster {
namespace {

struct EmbeddingCase {
  int64_t samples, rows;
  EmbeddingShape shape;
};

// The widths that have code of their own, and those around them.
const EmbeddingCase kCases[] = {
    {0, 1, {.width = 1, .stride = 1}},
    {1, 1, {.width = 1, .stride = 1}},
    {33, 5, {.width = 1, .stride = 1}},
    {200, 7, {.width = 7, .stride = 20, .begin = 13}},
    {64, 64, {.width = 8, .stride = 8}},
    {65, 9, {.width = 8, .stride = 53, .begin = 5}},
    {31, 3, {.width = 9, .stride = 10}},
    {17, 40, {.width = 16, .stride = 17, .begin = 1}},
    {40, 2, {.width = 17, .stride = 40, .begin = 2}},
};

std::vector<int32_t> Offsets(const EmbeddingCase& c) {
  std::vector<int32_t> offsets = RandomLabels(1, c.samples, c.rows);
  for (int32_t& offset : offsets) offset *= static_cast<int32_t>(c.shape.width);
  return offsets;
}

TEST(EmbeddingSum, MatchesTheReference) {
  for (const EmbeddingCase& c : kCases) {
    const std::vector<int32_t> offsets = Offsets(c);
    const std::vector<float> x = RandomFloats(2, c.rows * c.shape.width),
                             before = RandomFloats(3, c.samples * c.shape.stride);
    Guarded rows(x), output(before);
    EmbeddingSum(c.shape, offsets, rows.span(), output.span());
    // One sum of two numbers below 1.
    ExpectNear(output.span(), ReferenceEmbeddingSum(c.shape, offsets, Doubles(x), Doubles(before)),
               FLT_EPSILON);
  }
}

TEST(EmbeddingSum, GradientMatchesTheReference) {
  for (const EmbeddingCase& c : kCases) {
    const std::vector<int32_t> offsets = Offsets(c);
    const std::vector<float> gradient = RandomFloats(4, c.samples * c.shape.stride),
                             before = RandomFloats(5, c.rows * c.shape.width);
    Guarded output_gradient(gradient), rows_gradient(before);
    EmbeddingSumBackward(c.shape, offsets, output_gradient.span(), rows_gradient.span());
    // At most all samples name one row: sums of samples + 1 numbers below 1, each rounded by half an epsilon
    // of what has come together.
    const double terms = static_cast<double>(c.samples) + 1;
    ExpectNear(rows_gradient.span(),
               ReferenceEmbeddingSumBackward(c.shape, offsets, Doubles(gradient), Doubles(before)),
               terms * terms * FLT_EPSILON / 2);
  }
}

TEST(EmbeddingSum, GradientIsTheAdjointOfTheSum) {
  // <EmbeddingSum(rows), g> = <rows, EmbeddingSumBackward(g)>, exactly in whole numbers.
  for (const EmbeddingCase& c : kCases) {
    const std::vector<int32_t> offsets = Offsets(c);
    const std::vector<float> rows = RandomIntegers(6, c.rows * c.shape.width),
                             gradient = RandomIntegers(7, c.samples * c.shape.stride);
    std::vector<float> output(gradient.size()), rows_gradient(rows.size());
    EmbeddingSum(c.shape, offsets, rows, output);
    EmbeddingSumBackward(c.shape, offsets, gradient, rows_gradient);
    double left = 0, right = 0;
    for (size_t i = 0; i < output.size(); ++i) left += output[i] * gradient[i];
    for (size_t i = 0; i < rows.size(); ++i) right += rows[i] * rows_gradient[i];
    EXPECT_EQ(left, right);
  }
}

TEST(EmbeddingSum, NanStaysWhereItIs) {
  const EmbeddingShape shape{.width = 2, .stride = 2};
  std::vector<float> output(4);
  EmbeddingSum(shape, std::vector<int32_t>{0, 2}, std::vector<float>{1, 2, NAN, 4}, output);
  EXPECT_EQ(output[0], 1);
  EXPECT_EQ(output[1], 2);
  EXPECT_TRUE(std::isnan(output[2]));
  EXPECT_EQ(output[3], 4);
}

TEST(OneHot, SetsOneOfEachSamplesPlaces) {
  std::vector<float> output(2 * 5);
  OneHot({.width = 3, .stride = 5, .begin = 1}, std::vector<int32_t>{2, 9, 0}, 2, output);
  EXPECT_EQ(output, (std::vector<float>{0, 0, 0, 1, 0, 0, 1, 0, 0, 0}));
  OneHot({.width = 3, .stride = 5}, {}, 2, {});
}

TEST(EmbeddingDeathTest, IdsOutOfRangeAreABug) {
  std::vector<float> rows(6), output(2);
  const EmbeddingShape shape{.width = 2, .stride = 2};
  for (const int32_t offset : {-1, 5, 6}) {
    EXPECT_DEATH(EmbeddingSum(shape, std::vector<int32_t>{offset}, rows, output), "offset");
    EXPECT_DEATH(EmbeddingSumBackward(shape, std::vector<int32_t>{offset}, output, rows), "offset");
  }
  for (const int32_t id : {-1, 2}) {
    EXPECT_DEATH(OneHot(shape, std::vector<int32_t>{id}, 1, output), "out of range");
  }
}

}  // namespace
}  // namespace muster
