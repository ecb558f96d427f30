#include "kernels/dense.h"

#include <dnnl.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "base/nearest.h"
#include "kernels/narrow_product.h"
#include "kernels/threads.h"
#include "kernels/vectorize.h"

namespace muster {
namespace {

struct InstructionSet {
  const char* name;
  dnnl_cpu_isa_t value;
};

constexpr InstructionSet kInstructionSets[] = {
    {"sse41", dnnl_cpu_isa_sse41},
    {"avx", dnnl_cpu_isa_avx},
    {"avx2", dnnl_cpu_isa_avx2},
    {"avx2_vnni", dnnl_cpu_isa_avx2_vnni},
    {"avx512_core", dnnl_cpu_isa_avx512_core},
    {"avx512_core_vnni", dnnl_cpu_isa_avx512_core_vnni},
    {"avx512_core_bf16", dnnl_cpu_isa_avx512_core_bf16},
    {"avx512_core_amx", dnnl_cpu_isa_avx512_core_amx},
};

// Rows that begin a multiple of 2,048 bytes apart share two of the 64 sets of a first-level cache (of 1,024
// bytes: four), in which oneDNN's products keep as many rows at a time as their blocks have. Copies with rows
// one cache line longer spread over all of them. Measured with AVX2 on one thread (bench/RESULTS.md): the
// forward product gains a factor of 1.2 to 1.7, copy included, with weights in rows of 512, 1,024 and 2,048
// floats and batches of 32 and more, and nothing in other rows, those of 256 and 768 included; the weights'
// gradient, whose copies are smaller, gains up to 1.9 with rows of a multiple of 256; the input's gradient
// gains nothing. Weights that do not begin at a cache line, unlike a model's, would spread over twice
// as many sets by themselves and gain nothing either. oneDNN's matmul and inner product, free to choose the
// layout of the weights, choose plain rows too with AVX2, and take as long as dnnl_sgemm without a copy.
constexpr int64_t kCriticalWeightsRow = 512, kCriticalBatchRow = 256;
// With fewer samples the copy of the weights costs what it gains.
constexpr int64_t kSmallestPaddedBatch = 32;
constexpr int64_t kGap = 16;

enum class Transpose : char { kNo = 'N', kYes = 'T' };

// Rows that begin `stride` floats apart.
struct ConstMatrix {
  const float* values = nullptr;
  int64_t stride = 0;
};

struct Matrix {
  float* values = nullptr;
  int64_t stride = 0;
  operator ConstMatrix() const { return {values, stride}; }
};

AlignedFloats PaddedScratch(int64_t rows, int64_t columns, int64_t critical_row) {
  return AlignedFloats(columns % critical_row == 0 ? rows * (columns + kGap) : 0, NAN);
}

bool HasSize(std::span<const float> values, int64_t rows, int64_t columns) {
  return static_cast<int64_t>(values.size()) == rows * columns;
}

// c [m, n] = op(a) [m, k] * op(b) [k, n], where op transposes or not. Nothing of the old c is read.
void MatrixProduct(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                   const ConstMatrix& a, const ConstMatrix& b, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) return std::fill(c, c + m * n, 0.0f);  // oneDNN refuses it
  const dnnl_status_t status = dnnl_sgemm(static_cast<char>(transpose_a), static_cast<char>(transpose_b), m,
                                          n, k, 1.0f, a.values, a.stride, b.values, b.stride, 0.0f, c, n);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();  // it packs the matrices
  MUSTER_CHECK(status == dnnl_success, absl::StrFormat("dnnl_sgemm: status %d", static_cast<int>(status)));
}

void CopyRows(int64_t rows, int64_t columns, const ConstMatrix& from, const Matrix& to) {
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(from.values + row * from.stride, columns, to.values + row * to.stride);
  }
}

// The matrix [rows, columns], or its copy in `padded`, if that has memory.
ConstMatrix Pad(int64_t rows, int64_t columns, const float* values, AlignedFloats& padded) {
  if (padded.empty()) return {values, columns};
  const Matrix copy{padded.data(), columns + kGap};
  ForEachPart(rows, columns, [&](int64_t begin, int64_t end) {
    CopyRows(end - begin, columns, {values + begin * columns, columns},
             {copy.values + begin * copy.stride, copy.stride});
  });
  return copy;
}

MUSTER_VECTORIZE void AddBias(int64_t rows, int64_t columns, const float* __restrict bias,
                              float* __restrict output) {
  for (int64_t row = 0; row < rows; ++row, output += columns) {
    for (int64_t i = 0; i < columns; ++i) output[i] += bias[i];
  }
}

MUSTER_VECTORIZE void AddBiasRelu(int64_t rows, int64_t columns, const float* __restrict bias,
                                  float* __restrict output) {
  for (int64_t row = 0; row < rows; ++row, output += columns) {
    for (int64_t i = 0; i < columns; ++i) {
      const float value = output[i] + bias[i];
      output[i] = value < 0 ? 0 : value;  // in this order, because NaN < 0 is false and the NaN stays
    }
  }
}

// gradient = that of the values before ReLU, from `from`, that of `activated`. The two may be the same.
MUSTER_VECTORIZE void ReluBackward(int64_t rows, int64_t columns, ConstMatrix activated, ConstMatrix from,
                                   Matrix gradient) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i) {
      gradient.values[i] = activated.values[i] == 0 ? 0 : from.values[i];
    }
    activated.values += activated.stride;
    from.values += from.stride;
    gradient.values += gradient.stride;
  }
}

MUSTER_VECTORIZE void SumRows(int64_t rows, int64_t columns, ConstMatrix from, float* __restrict sums) {
  for (int64_t i = 0; i < columns; ++i) sums[i] = 0;
  for (int64_t row = 0; row < rows; ++row, from.values += from.stride) {
    for (int64_t i = 0; i < columns; ++i) sums[i] += from.values[i];
  }
}

}  // namespace

Dense::Dense(const DenseShape& shape, Activation activation)
    : shape_(shape),
      activation_(activation),
      padded_weights_(PaddedScratch(shape.inputs, shape.outputs, kCriticalWeightsRow)),
      padded_input_(PaddedScratch(IsNarrow(shape) ? 0 : shape.batch, shape.inputs, kCriticalBatchRow)),
      padded_gradient_(PaddedScratch(shape.batch, shape.outputs, kCriticalBatchRow)) {}

void Dense::Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                    std::span<const float> bias, std::span<float> output) {
  const int64_t inputs = shape_.inputs, outputs = shape_.outputs;
  MUSTER_CHECK(samples <= shape_.batch && HasSize(input, samples, inputs) &&
               HasSize(weights, inputs, outputs) && HasSize(bias, 1, outputs) &&
               HasSize(output, samples, outputs));
  const ConstMatrix w = samples < kSmallestPaddedBatch
                            ? ConstMatrix{weights.data(), outputs}
                            : Pad(inputs, outputs, weights.data(), padded_weights_);
  MatrixProduct(Transpose::kNo, Transpose::kNo, samples, outputs, inputs, {input.data(), inputs}, w,
                output.data());
  const auto add_bias = activation_ == Activation::kRelu ? AddBiasRelu : AddBias;
  ForEachPart(samples, outputs, [&](int64_t begin, int64_t end) {
    add_bias(end - begin, outputs, bias.data(), output.data() + begin * outputs);
  });
}

void Dense::Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                     std::span<const float> output, std::span<float> output_gradient,
                     std::span<float> weights_gradient, std::span<float> bias_gradient,
                     std::span<float> input_gradient) {
  const int64_t inputs = shape_.inputs, outputs = shape_.outputs;
  MUSTER_CHECK(samples <= shape_.batch && HasSize(input, samples, inputs) &&
               HasSize(weights, inputs, outputs) && HasSize(output, samples, outputs) &&
               HasSize(output_gradient, samples, outputs) && HasSize(weights_gradient, inputs, outputs) &&
               HasSize(bias_gradient, 1, outputs));
  MUSTER_CHECK(input_gradient.empty() || HasSize(input_gradient, samples, inputs));

  const bool is_padded = !padded_gradient_.empty();
  const Matrix g =
      is_padded ? Matrix{padded_gradient_.data(), outputs + kGap} : Matrix{output_gradient.data(), outputs};
  // By columns, so that the sums over the samples do not depend on the number of threads.
  ForEachPart(outputs, samples, [&](int64_t begin, int64_t end) {
    const ConstMatrix from{output_gradient.data() + begin, outputs};
    const Matrix to{g.values + begin, g.stride};
    if (activation_ == Activation::kRelu) {
      ReluBackward(samples, end - begin, {output.data() + begin, outputs}, from, to);
    } else if (is_padded) {
      CopyRows(samples, end - begin, from, to);
    }
    SumRows(samples, end - begin, to, bias_gradient.data() + begin);
  });
  if (IsNarrow(shape_)) {
    NarrowBackwardWeights({.batch = samples, .inputs = inputs, .outputs = outputs}, input.data(), g.values,
                          weights_gradient.data());
  } else {
    const ConstMatrix x = Pad(samples, inputs, input.data(), padded_input_);
    MatrixProduct(Transpose::kYes, Transpose::kNo, inputs, outputs, samples, x, g, weights_gradient.data());
  }
  if (input_gradient.empty()) return;
  MatrixProduct(Transpose::kNo, Transpose::kYes, samples, inputs, outputs, g, {weights.data(), outputs},
                input_gradient.data());
}

std::string InstructionSetName() {
  const dnnl_cpu_isa_t effective = dnnl_get_effective_cpu_isa();
  for (const InstructionSet& set : kInstructionSets) {
    if (set.value == effective) return set.name;
  }
  return absl::StrFormat("onednn_%#x", static_cast<unsigned>(effective));
}

absl::Status PinInstructionSet(const std::string& name) {
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets) names.push_back(set.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::string nearest = NearestWord(name, names);
    return InvalidArgument("no instruction set '%s'%s", name,
                           nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest));
  }
  const dnnl_status_t status = dnnl_set_max_cpu_isa(kInstructionSets[found - names.begin()].value);
  const std::string effective = InstructionSetName();
  if (effective == name) return absl::OkStatus();
  if (status != dnnl_success) {
    return FailedPrecondition("instruction set '%s': already computing with '%s'", name, effective);
  }
  return FailedPrecondition("instruction set '%s': this CPU has only '%s'; pin that one on all hosts", name,
                            effective);
}

}  // namespace muster
