#include "kernels/cuda/dense.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/matrix_products.h"
#include "kernels/dense_reference.h"
#include "kernels/kernel_testing.h"

namespace muster::cuda {
namespace {

// As in kernels/dense_test.cc; factors with fewer bits, to which they may be cut off instead of rounded, add
// two such errors to each product.
double SumTolerance(int64_t terms, Math math) {
  const double unit = math == Math::kFloat32 ? 0 : math == Math::kTf32 ? 0x1p-10 : 0x1p-7;
  const double count = static_cast<double>(terms);
  return (count + 2) * (count + 1) * FLT_EPSILON / 2 + count * (2 * unit + unit * unit);
}

class DenseTest : public CudaTest, public ::testing::WithParamInterface<std::tuple<int, int, int>> {};

TEST_P(DenseTest, MatchesTheReferenceAndStaysInside) {
  const auto [batch, inputs, outputs] = GetParam();
  const DenseShape s{batch, inputs, outputs};
  const std::vector<float> x = RandomFloats(1, s.batch * s.inputs), w = RandomFloats(2, s.inputs * s.outputs),
                           b = RandomFloats(3, s.outputs), dy = RandomFloats(4, s.batch * s.outputs);
  for (const Math math : {Math::kFloat32, Math::kTf32, Math::kBfloat16}) {
    const auto products = MatrixProducts::Create(math);
    ASSERT_TRUE(products.ok()) << products.status();
    const auto multiply = [&](const ProductShape& shape, const float* left, const float* right,
                              const float* bias, float* result) {
      const absl::Status status =
          (*products)->Multiply(shape, left, right, bias, result, Lane::kMain, cudaStreamPerThread);
      ASSERT_TRUE(status.ok()) << status;
    };
    for (const bool relu : {false, true}) {
      const GuardedFloats input(x), weights(w), bias(b), output(s.batch * s.outputs), output_gradient(dy);
      const GuardedFloats weights_gradient(s.inputs * s.outputs), bias_gradient(s.outputs),
          input_gradient(s.batch * s.inputs);

      multiply({.m = s.batch, .n = s.outputs, .k = s.inputs}, input.data(), weights.data(),
               relu ? nullptr : bias.data(), output.data());
      if (relu) {
        ASSERT_EQ(AddBiasRelu(s.batch, s.outputs, bias.data(), output.data(), cudaStreamPerThread),
                  cudaSuccess);
      }
      std::vector<double> expected_output = ReferenceDenseForward(s, Doubles(x), Doubles(w), Doubles(b));
      if (relu) ReferenceRelu(expected_output);
      const std::vector<float> y = output.Read();
      ExpectNear(y, expected_output, SumTolerance(s.inputs, math));

      // From the outputs of the float version, so that a value near zero falls on the same side of ReLU.
      std::vector<double> expected_gradient = Doubles(dy);
      if (relu) ReferenceReluBackward(Doubles(y), expected_gradient);
      const ReferenceGradients expected =
          ReferenceDenseBackward(s, Doubles(x), Doubles(w), expected_gradient);
      ASSERT_EQ(ReluBackwardAndColumnSums(s.batch, s.outputs, relu ? output.data() : nullptr,
                                          output_gradient.data(), bias_gradient.data(), cudaStreamPerThread),
                cudaSuccess);
      multiply({.transpose_a = true, .m = s.inputs, .n = s.outputs, .k = s.batch}, input.data(),
               output_gradient.data(), nullptr, weights_gradient.data());
      multiply({.transpose_b = true, .m = s.batch, .n = s.inputs, .k = s.outputs}, output_gradient.data(),
               weights.data(), nullptr, input_gradient.data());
      EXPECT_EQ(Doubles(output_gradient.Read()), expected_gradient);
      ExpectNear(bias_gradient.Read(), expected.bias, SumTolerance(s.batch, Math::kFloat32));
      ExpectNear(weights_gradient.Read(), expected.weights, SumTolerance(s.batch, math));
      ExpectNear(input_gradient.Read(), expected.input, SumTolerance(s.outputs, math));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DenseTest,
                         ::testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 7), std::tuple(33, 17, 10),
                                           std::tuple(100, 784, 10), std::tuple(64, 100, 33),
                                           std::tuple(0, 5, 3), std::tuple(7, 129, 1), std::tuple(5, 31, 32),
                                           std::tuple(17, 36, 68)));

using DenseOnDevice = CudaTest;

TEST_F(DenseOnDevice, NotFiniteStaysVisible) {
  for (const int64_t columns : {3, 4}) {
    const GuardedFloats bias(std::vector<float>(columns, 0.0f)), output(std::vector<float>(columns, NAN));
    ASSERT_EQ(AddBiasRelu(1, columns, bias.data(), output.data(), cudaStreamPerThread), cudaSuccess);
    for (const float value : output.Read()) EXPECT_TRUE(std::isnan(value));
  }
  const GuardedFloats activated(std::vector<float>{NAN, 1, 0}), gradient(std::vector<float>{1, NAN, 3}),
      sums(3);
  ASSERT_EQ(
      ReluBackwardAndColumnSums(1, 3, activated.data(), gradient.data(), sums.data(), cudaStreamPerThread),
      cudaSuccess);
  const std::vector<float> masked = gradient.Read();
  EXPECT_EQ(masked[0], 1);
  EXPECT_TRUE(std::isnan(masked[1]));
  EXPECT_EQ(masked[2], 0);
  EXPECT_TRUE(std::isnan(sums.Read()[1]));
}

TEST_F(DenseOnDevice, ReluBackwardZeroesWhereNothingPassed) {
  const GuardedFloats activated(std::vector<float>{0, 2, NAN, 0, -1}),
      gradient(std::vector<float>{1, 2, 3, NAN, 5});
  ASSERT_EQ(ReluBackward(5, activated.data(), gradient.data(), cudaStreamPerThread), cudaSuccess);
  EXPECT_EQ(gradient.Read(), (std::vector<float>{0, 2, 3, 0, 5}));
}

}  // namespace
}  // namespace muster::cuda
