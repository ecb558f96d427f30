#include "kernels/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/dense_reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/threads.h"

namespace muster {
namespace {

// A sum of `terms` products of values up to 1, in any order, is wrong by at most (terms + 1) roundings of a
// value up to `terms` (Higham, "Accuracy and stability of numerical algorithms", 3.1); the bias is one term
// more.
double SumTolerance(int64_t terms) { return (terms + 2.0) * (terms + 1.0) * FLT_EPSILON / 2; }

// Buffers of one layer and batch, each in the middle of NaNs.
struct Pass {
  explicit Pass(const DenseShape& s)
      : input(RandomFloats(1, s.batch * s.inputs)),
        weights(RandomFloats(2, s.inputs * s.outputs)),
        bias(RandomFloats(3, s.outputs)),
        output(s.batch * s.outputs),
        output_gradient(RandomFloats(4, s.batch * s.outputs)),
        weights_gradient(s.inputs * s.outputs),
        bias_gradient(s.outputs),
        input_gradient(s.batch * s.inputs) {}

  void Run(int64_t samples, Dense& dense) {
    dense.Forward(samples, input.span(), weights.span(), bias.span(), output.span());
    dense.Backward(samples, input.span(), weights.span(), output.span(), output_gradient.span(),
                   weights_gradient.span(), bias_gradient.span(), input_gradient.span());
  }

  Guarded input, weights, bias, output, output_gradient, weights_gradient, bias_gradient, input_gradient;
};

std::vector<float> Floats(std::span<const float> values) { return {values.begin(), values.end()}; }

class DenseTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  DenseShape shape() const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())};
  }
};

TEST_P(DenseTest, MatchesTheReferenceAndStaysInside) {
  const DenseShape s = shape();
  for (const int threads : {1, 2}) {
    SetKernelThreads(threads);
    for (const bool relu : {false, true}) {
      // Planned for a larger batch: of its scratch memory, NaN at first, nothing may show that was not
      // written.
      Dense dense({.batch = s.batch + 3, .inputs = s.inputs, .outputs = s.outputs},
                  relu ? Activation::kRelu : Activation::kNone);
      Pass pass(s);
      const std::vector<double> x = Doubles(pass.input.span()), w = Doubles(pass.weights.span()),
                                b = Doubles(pass.bias.span());
      std::vector<double> gradient = Doubles(pass.output_gradient.span());
      pass.Run(s.batch, dense);

      std::vector<double> expected_output = ReferenceDenseForward(s, x, w, b);
      if (relu) ReferenceRelu(expected_output);
      ExpectNear(pass.output.span(), expected_output, SumTolerance(s.inputs));

      // From the outputs of the float version, so that a value near zero falls on the same side of ReLU.
      if (relu) ReferenceReluBackward(Doubles(pass.output.span()), gradient);
      const ReferenceGradients expected = ReferenceDenseBackward(s, x, w, gradient);
      ExpectNear(pass.weights_gradient.span(), expected.weights, SumTolerance(s.batch));
      ExpectNear(pass.bias_gradient.span(), expected.bias, SumTolerance(s.batch));
      ExpectNear(pass.input_gradient.span(), expected.input, SumTolerance(s.outputs));
    }
  }
  SetKernelThreads(1);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, DenseTest,
    ::testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 7), std::tuple(33, 17, 10),
                      std::tuple(100, 784, 10), std::tuple(64, 100, 33), std::tuple(0, 5, 3),
                      std::tuple(7, 129, 1),
                      // over one part of the inputs, and around the widest narrow product
                      std::tuple(3, 1031, 15), std::tuple(5, 31, 16), std::tuple(5, 31, 17),
                      // rows that are copied and rows that are not, of each matrix
                      std::tuple(40, 512, 496), std::tuple(40, 512, 512), std::tuple(40, 512, 528),
                      std::tuple(33, 500, 1024), std::tuple(40, 300, 256), std::tuple(128, 512, 10),
                      // around the batch from which weights are copied
                      std::tuple(31, 40, 512), std::tuple(32, 40, 512), std::tuple(0, 256, 512)));

TEST(Dense, ABatchMayBeSmallerThanTheOneBefore) {
  const DenseShape s{.batch = 64, .inputs = 256, .outputs = 512}, few{5, 256, 512};
  Dense dense(s, Activation::kRelu), fresh(few, Activation::kRelu);
  Pass first(s), second(few), expected(few);
  first.Run(s.batch, dense);
  second.Run(few.batch, dense);
  expected.Run(few.batch, fresh);
  EXPECT_EQ(Floats(second.output.span()), Floats(expected.output.span()));
  EXPECT_EQ(Floats(second.weights_gradient.span()), Floats(expected.weights_gradient.span()));
  EXPECT_EQ(Floats(second.input_gradient.span()), Floats(expected.input_gradient.span()));
}

TEST(Dense, TheFirstLayerNeedsNoInputGradient) {
  const DenseShape s{4, 3, 2};
  Dense dense(s, Activation::kNone);
  Pass pass(s), expected(s);
  expected.Run(s.batch, dense);
  dense.Backward(s.batch, pass.input.span(), pass.weights.span(), expected.output.span(),
                 pass.output_gradient.span(), pass.weights_gradient.span(), pass.bias_gradient.span(), {});
  EXPECT_EQ(Floats(pass.weights_gradient.span()), Floats(expected.weights_gradient.span()));
  EXPECT_EQ(Floats(pass.bias_gradient.span()), Floats(expected.bias_gradient.span()));
}

TEST(Dense, NotFiniteStaysVisible) {
  for (const int64_t outputs : {3, 256}) {  // in place, and into a copy
    const DenseShape s{1, 2, outputs};
    for (const float bad : {NAN, INFINITY}) {
      Dense dense(s, Activation::kRelu);
      std::vector<float> output(outputs);
      dense.Forward(1, std::vector<float>{bad, 1}, std::vector<float>(2 * outputs, 1.0f),
                    std::vector<float>(outputs), output);
      for (const float value : output) EXPECT_FALSE(std::isfinite(value));
    }
    Dense dense(s, Activation::kRelu);
    std::vector<float> output(outputs), gradient(outputs, 1.0f), weights_gradient(2 * outputs),
        bias_gradient(outputs);
    output[0] = NAN;
    output[1] = 1;
    gradient[1] = NAN;
    dense.Backward(1, std::vector<float>{1, 1}, std::vector<float>(2 * outputs), output, gradient,
                   weights_gradient, bias_gradient, {});
    EXPECT_EQ(bias_gradient[0], 1);
    EXPECT_TRUE(std::isnan(bias_gradient[1]));
    EXPECT_TRUE(std::isnan(weights_gradient[1]));
    EXPECT_EQ(bias_gradient[2], 0);
  }
}

TEST(Dense, SameBitsOnEachCall) {
  const DenseShape s{100, 784, 512};
  SetKernelThreads(2);
  Dense dense(s, Activation::kRelu);
  Pass first(s);
  first.Run(s.batch, dense);
  for (int i = 0; i < 10; ++i) {
    Pass again(s);
    again.Run(s.batch, dense);
    ASSERT_EQ(Floats(again.output.span()), Floats(first.output.span()));
    ASSERT_EQ(Floats(again.weights_gradient.span()), Floats(first.weights_gradient.span()));
    ASSERT_EQ(Floats(again.bias_gradient.span()), Floats(first.bias_gradient.span()));
    ASSERT_EQ(Floats(again.input_gradient.span()), Floats(first.input_gradient.span()));
  }
  SetKernelThreads(1);
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
