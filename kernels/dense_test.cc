#include "kernels/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cfloat>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace muster {
namespace {

// The same layer, plainly, on any scalar: float-sized errors are judged against double, and double against
// differences.
template <typename T>
struct Reference {
  DenseShape shape;
  bool relu;

  std::vector<T> Forward(const std::vector<T>& input, const std::vector<T>& weights,
                         const std::vector<T>& bias) const {
    std::vector<T> output(shape.batch * shape.outputs);
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t o = 0; o < shape.outputs; ++o) {
        T sum = bias[o];
        for (int64_t i = 0; i < shape.inputs; ++i) {
          sum += input[b * shape.inputs + i] * weights[i * shape.outputs + o];
        }
        output[b * shape.outputs + o] = relu && sum < 0 ? T{0} : sum;
      }
    }
    return output;
  }

  struct Gradients {
    std::vector<T> input, weights, bias;
  };

  Gradients Backward(const std::vector<T>& input, const std::vector<T>& weights, const std::vector<T>& output,
                     std::vector<T> output_gradient) const {
    Gradients gradients{std::vector<T>(input.size()), std::vector<T>(weights.size()),
                        std::vector<T>(shape.outputs)};
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t o = 0; o < shape.outputs; ++o) {
        const int64_t at = b * shape.outputs + o;
        const T gradient = relu && output[at] == 0 ? T{0} : output_gradient[at];
        gradients.bias[o] += gradient;
        for (int64_t i = 0; i < shape.inputs; ++i) {
          gradients.weights[i * shape.outputs + o] += input[b * shape.inputs + i] * gradient;
          gradients.input[b * shape.inputs + i] += weights[i * shape.outputs + o] * gradient;
        }
      }
    }
    return gradients;
  }
};

// Returns the loss sum; fills the gradient.
template <typename T>
T ReferenceLoss(int64_t classes, const std::vector<T>& logits, const std::vector<int32_t>& labels,
                std::vector<T>* gradient) {
  T loss = 0;
  gradient->assign(logits.size(), 0);
  for (size_t row = 0; row < labels.size(); ++row) {
    const T* x = logits.data() + row * classes;
    const T shift = *std::max_element(x, x + classes);
    T sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += std::exp(x[i] - shift);
    loss += std::log(sum) - (x[labels[row]] - shift);
    for (int64_t i = 0; i < classes; ++i) {
      (*gradient)[row * classes + i] = std::exp(x[i] - shift) / sum - (i == labels[row] ? 1 : 0);
    }
  }
  return loss;
}

std::vector<float> RandomFloats(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

std::vector<int32_t> RandomLabels(uint64_t seed, int64_t size, int64_t classes) {
  RandomStream random(seed);
  std::vector<int32_t> labels(size);
  for (int32_t& label : labels) label = static_cast<int32_t>(random.NextBelow(classes));
  return labels;
}

std::vector<double> Doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// A buffer in the middle of NaNs: reading outside of it spoils the result, writing outside of it is found at
// the end.
class Guarded {
 public:
  explicit Guarded(const std::vector<float>& values) : buffer_(values.size() + 2 * kGuard, NAN) {
    std::copy(values.begin(), values.end(), buffer_.begin() + kGuard);
  }
  explicit Guarded(int64_t size)
      : Guarded(std::vector<float>(size, NAN)) {}  // an output: its old values are NaN as well
  ~Guarded() {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_TRUE(std::isnan(buffer_[i]) && std::isnan(buffer_[buffer_.size() - 1 - i])) << "written outside";
    }
  }
  std::span<float> span() { return std::span(buffer_).subspan(kGuard, buffer_.size() - 2 * kGuard); }

 private:
  static constexpr size_t kGuard = 17;  // odd, so that no buffer is aligned
  std::vector<float> buffer_;
};

void ExpectNear(std::span<const float> actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
}

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
    const Reference<double> reference{s, relu};
    Guarded input(x), weights(w), bias(b), output(s.batch * s.outputs), output_gradient(dy);
    Guarded weights_gradient(s.inputs * s.outputs), bias_gradient(s.outputs),
        input_gradient(s.batch * s.inputs);

    DenseForward(s, input.span(), weights.span(), bias.span(), relu ? Activation::kRelu : Activation::kNone,
                 output.span());
    ExpectNear(output.span(), reference.Forward(Doubles(x), Doubles(w), Doubles(b)), SumTolerance(s.inputs));

    // From the outputs of the float version, so that a value near zero falls on the same side of ReLU.
    const std::vector<double> y(output.span().begin(), output.span().end());
    const auto expected = reference.Backward(Doubles(x), Doubles(w), y, Doubles(dy));
    if (relu) ReluBackward(output.span(), output_gradient.span());
    DenseBackwardParameters(s, input.span(), output_gradient.span(), weights_gradient.span(),
                            bias_gradient.span());
    DenseBackwardInput(s, output_gradient.span(), weights.span(), input_gradient.span());
    ExpectNear(weights_gradient.span(), expected.weights, SumTolerance(s.batch));
    ExpectNear(bias_gradient.span(), expected.bias, SumTolerance(s.batch));
    ExpectNear(input_gradient.span(), expected.input, SumTolerance(s.outputs));
  }
}

TEST_P(DenseTest, LossMatchesTheReference) {
  const auto [batch, unused, classes] = GetParam();
  std::vector<float> x = RandomFloats(5, batch * classes);
  for (float& value : x) value *= 20;
  const std::vector<int32_t> labels = RandomLabels(6, batch, classes);
  std::vector<double> expected_gradient;
  const double expected = ReferenceLoss(classes, Doubles(x), labels, &expected_gradient);

  Guarded logits(x), gradient(batch * classes);
  const LossResult result = SoftmaxCrossEntropy(classes, logits.span(), labels, gradient.span());
  // The difference of logits, up to 40, is rounded once to a float; exp turns that into a relative error of
  // 20 epsilon, its own rounding and two products add less than 4. A gradient is at most 1, one sample's loss
  // is the logarithm of the sum.
  const double tolerance = 24 * FLT_EPSILON;
  ExpectNear(gradient.span(), expected_gradient, tolerance);
  EXPECT_NEAR(result.loss_sum, expected, batch * tolerance);

  EXPECT_EQ(SoftmaxCrossEntropy(classes, logits.span(), labels, {}).loss_sum, result.loss_sum);
  SoftmaxCrossEntropy(classes, logits.span(), labels, logits.span());  // in place
  EXPECT_TRUE(std::equal(logits.span().begin(), logits.span().end(), gradient.span().begin()));
}

INSTANTIATE_TEST_SUITE_P(Sizes, DenseTest,
                         ::testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 7), std::tuple(33, 17, 10),
                                           std::tuple(100, 784, 10), std::tuple(64, 100, 33),
                                           std::tuple(0, 5, 3), std::tuple(7, 129, 1)));

TEST(Reference, GradientsAgreeWithCentralDifferences) {
  const DenseShape s{4, 6, 5};
  const Reference<double> reference{s, true};
  const std::vector<int32_t> labels = RandomLabels(1, s.batch, s.outputs);
  std::vector<double> x = Doubles(RandomFloats(2, s.batch * s.inputs)),
                      w = Doubles(RandomFloats(3, s.inputs * s.outputs)),
                      b = Doubles(RandomFloats(4, s.outputs));
  std::vector<double> loss_gradient;
  const auto loss = [&] {
    return ReferenceLoss(s.outputs, reference.Forward(x, w, b), labels, &loss_gradient);
  };
  loss();
  const auto gradients = reference.Backward(x, w, reference.Forward(x, w, b), loss_gradient);
  const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient) {
    constexpr double kStep = 1e-5;  // truncation and rounding both near 1e-10
    for (size_t i = 0; i < values.size(); ++i) {
      const double saved = values[i];
      values[i] = saved + kStep;
      const double above = loss();
      values[i] = saved - kStep;
      const double below = loss();
      values[i] = saved;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-6) << i;
    }
  };
  check(x, gradients.input);
  check(w, gradients.weights);
  check(b, gradients.bias);
}

TEST(SoftmaxCrossEntropy, IsStableForLargeLogits) {
  const std::vector<float> logits = {FLT_MAX / 2, -FLT_MAX / 2, 0, 1000, 999, -1000};
  std::vector<float> gradient(6);
  const LossResult result = SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{0, 0}, gradient);
  EXPECT_NEAR(result.loss_sum, std::log1p(std::exp(-1)), FLT_EPSILON);
  EXPECT_EQ(result.correct, 2);
  EXPECT_EQ(gradient[0], 0);
  EXPECT_NEAR(gradient[4], 1 / (1 + std::exp(1)), FLT_EPSILON);
}

TEST(SoftmaxCrossEntropy, CountsTheFirstOfEqualLogits) {
  const std::vector<float> logits = {0, 0, 0, 0, 1, 1};
  EXPECT_EQ(SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{0, 1}, {}).correct, 2);
  EXPECT_EQ(SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{2, 2}, {}).correct, 0);
}

TEST(Dense, NotFiniteStaysVisible) {
  const DenseShape s{1, 2, 3};
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> output(3), gradient(3);
    DenseForward(s, std::vector<float>{bad, 1}, std::vector<float>(6, 1.0f), std::vector<float>(3),
                 Activation::kRelu, output);
    for (const float value : output) EXPECT_FALSE(std::isfinite(value));
    const LossResult result = SoftmaxCrossEntropy(3, output, std::vector<int32_t>{0}, gradient);
    EXPECT_TRUE(std::isnan(result.loss_sum));
    EXPECT_EQ(result.correct, 0);
    for (const float value : gradient) EXPECT_TRUE(std::isnan(value));
  }
  for (int position = 0; position < 3;
       ++position) {  // wherever the NaN is, the search for the largest must not hide it
    std::vector<float> logits = {1, 2, 3};
    logits[position] = NAN;
    EXPECT_TRUE(std::isnan(SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{2}, {}).loss_sum));
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
