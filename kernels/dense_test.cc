#include "kernels/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cfloat>
#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/dense_reference.h"
#include "kernels/kernel_testing.h"

namespace muster {
namespace {

// A sum of `terms` products of values up to 1, in any order, is wrong by at most (terms + 1) roundings of a
// value up to `terms` (Higham, "Accuracy and stability of numerical algorithms", 3.1); the bias is one term
// more.
double SumTolerance(int64_t terms) { return (terms + 2.0) * (terms + 1.0) * FLT_EPSILON / 2; }

class DenseTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  DenseShape shape() const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())};
  }
};

TEST_P(DenseTest, MatchesTheReferenceAndStaysInside) {
  const DenseShape s = shape();
  const std::vector<float> x = RandomFloats(1, s.batch * s.inputs), w = RandomFloats(2, s.inputs * s.outputs),
                           b = RandomFloats(3, s.outputs), dy = RandomFloats(4, s.batch * s.outputs);
  for (const bool relu : {false, true}) {
    Guarded input(x), weights(w), bias(b), output(s.batch * s.outputs), output_gradient(dy);
    Guarded weights_gradient(s.inputs * s.outputs), bias_gradient(s.outputs),
        input_gradient(s.batch * s.inputs);

    DenseForward(s, input.span(), weights.span(), bias.span(), relu ? Activation::kRelu : Activation::kNone,
                 output.span());
    std::vector<double> expected_output = ReferenceDenseForward(s, Doubles(x), Doubles(w), Doubles(b));
    if (relu) ReferenceRelu(expected_output);
    ExpectNear(output.span(), expected_output, SumTolerance(s.inputs));

    // From the outputs of the float version, so that a value near zero falls on the same side of ReLU.
    const std::vector<double> y(output.span().begin(), output.span().end());
    std::vector<double> expected_gradient = Doubles(dy);
    if (relu) ReferenceReluBackward(y, expected_gradient);
    const ReferenceGradients expected = ReferenceDenseBackward(s, Doubles(x), Doubles(w), expected_gradient);
    if (relu) ReluBackward(output.span(), output_gradient.span());
    DenseBackwardParameters(s, input.span(), output_gradient.span(), weights_gradient.span(),
                            bias_gradient.span());
    DenseBackwardInput(s, output_gradient.span(), weights.span(), input_gradient.span());
    ExpectNear(weights_gradient.span(), expected.weights, SumTolerance(s.batch));
    ExpectNear(bias_gradient.span(), expected.bias, SumTolerance(s.batch));
    ExpectNear(input_gradient.span(), expected.input, SumTolerance(s.outputs));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, DenseTest,
    ::testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 7), std::tuple(33, 17, 10),
                      std::tuple(100, 784, 10), std::tuple(64, 100, 33), std::tuple(0, 5, 3),
                      std::tuple(7, 129, 1),
                      // over one part of the inputs, and around the widest narrow product
                      std::tuple(3, 1031, 15), std::tuple(5, 31, 16), std::tuple(5, 31, 17)));

TEST(Dense, NotFiniteStaysVisible) {
  const DenseShape s{1, 2, 3};
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> output(3);
    DenseForward(s, std::vector<float>{bad, 1}, std::vector<float>(6, 1.0f), std::vector<float>(3),
                 Activation::kRelu, output);
    for (const float value : output) EXPECT_FALSE(std::isfinite(value));
  }
  std::vector<float> gradient = {1, NAN, 3};
  ReluBackward(std::vector<float>{NAN, 1, 0}, gradient);
  EXPECT_EQ(gradient[0], 1);
  EXPECT_TRUE(std::isnan(gradient[1]));
  EXPECT_EQ(gradient[2], 0);
}

TEST(Dense, SameBitsOnEachCall) {
  const DenseShape s{100, 784, 100};
  const std::vector<float> x = RandomFloats(1, s.batch * s.inputs), w = RandomFloats(2, s.inputs * s.outputs),
                           b = RandomFloats(3, s.outputs);
  SetKernelThreads(2);
  std::vector<float> first(s.batch * s.outputs), again(s.batch * s.outputs);
  DenseForward(s, x, w, b, Activation::kRelu, first);
  for (int i = 0; i < 10; ++i) {
    DenseForward(s, x, w, b, Activation::kRelu, again);
    ASSERT_EQ(again, first);
  }
}

TEST(Kernels, ThreadsAreAtLeastOne) {
  SetKernelThreads(2);
  EXPECT_EQ(omp_get_max_threads(), 2);
  SetKernelThreads(0);
  EXPECT_EQ(omp_get_max_threads(), 1);
}

// In children, because the instruction set of a process can be chosen once.
TEST(KernelsDeathTest, InstructionSetCanBePinnedOnceAndBeforeTheFirstProduct) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& text) {
    fprintf(stderr, "%s\n", status.ToString().c_str());
    exit(status.code() == code && status.message().find(text) != std::string::npos ? 0 : 1);
  };
  EXPECT_EXIT(
      {
        const absl::Status status = PinInstructionSet("sse41");
        expect(InstructionSetName() == "sse41" ? status : Internal("%s", InstructionSetName()),
               absl::StatusCode::kOk, "");
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        InstructionSetName();
        expect(PinInstructionSet(InstructionSetName() == "sse41" ? "avx2" : "sse41"),
               absl::StatusCode::kFailedPrecondition, "already");
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(expect(PinInstructionSet("axv2"), absl::StatusCode::kInvalidArgument, "did you mean 'avx2'?"),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace muster
