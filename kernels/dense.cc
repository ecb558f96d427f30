#include "kernels/dense.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <vector>

#include "base/nearest.h"
#include "kernels/narrow_product.h"
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

enum class Transpose : char { kNo = 'N', kYes = 'T' };

bool HasSize(std::span<const float> values, int64_t rows, int64_t columns) {
  return static_cast<int64_t>(values.size()) == rows * columns;
}

// c [m, n] = op(a) [m, k] * op(b) [k, n], where op transposes or not. Nothing of the old c is read.
void MatrixProduct(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                   const float* a, const float* b, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // oneDNN refuses leading dimensions of zero
    std::fill(c, c + m * n, 0.0f);
    return;
  }
  const int64_t a_columns = transpose_a == Transpose::kNo ? k : m;
  const int64_t b_columns = transpose_b == Transpose::kNo ? n : k;
  const dnnl_status_t status = dnnl_sgemm(static_cast<char>(transpose_a), static_cast<char>(transpose_b), m,
                                          n, k, 1.0f, a, a_columns, b, b_columns, 0.0f, c, n);
  MUSTER_CHECK(status == dnnl_success, absl::StrFormat("dnnl_sgemm: status %d", static_cast<int>(status)));
}

MUSTER_VECTORIZE void AddBias(const DenseShape& shape, const float* __restrict bias,
                              float* __restrict output) {
  for (int64_t row = 0; row < shape.batch; ++row, output += shape.outputs) {
    for (int64_t i = 0; i < shape.outputs; ++i) output[i] += bias[i];
  }
}

MUSTER_VECTORIZE void AddBiasRelu(const DenseShape& shape, const float* __restrict bias,
                                  float* __restrict output) {
  for (int64_t row = 0; row < shape.batch; ++row, output += shape.outputs) {
    for (int64_t i = 0; i < shape.outputs; ++i) {
      const float value = output[i] + bias[i];
      output[i] = value < 0 ? 0 : value;  // in this order, because NaN < 0 is false and the NaN stays
    }
  }
}

MUSTER_VECTORIZE void AddRows(const DenseShape& shape, const float* __restrict rows, float* __restrict sums) {
  for (int64_t row = 0; row < shape.batch; ++row, rows += shape.outputs) {
    for (int64_t i = 0; i < shape.outputs; ++i) sums[i] += rows[i];
  }
}

MUSTER_VECTORIZE void ZeroWhereZero(const float* __restrict activated, float* __restrict gradient,
                                    int64_t size) {
  for (int64_t i = 0; i < size; ++i) gradient[i] = activated[i] == 0 ? 0 : gradient[i];
}

}  // namespace

void DenseForward(const DenseShape& shape, std::span<const float> input, std::span<const float> weights,
                  std::span<const float> bias, Activation activation, std::span<float> output) {
  MUSTER_CHECK(HasSize(input, shape.batch, shape.inputs) && HasSize(weights, shape.inputs, shape.outputs) &&
               HasSize(bias, 1, shape.outputs) && HasSize(output, shape.batch, shape.outputs));
  MatrixProduct(Transpose::kNo, Transpose::kNo, shape.batch, shape.outputs, shape.inputs, input.data(),
                weights.data(), output.data());
  switch (activation) {
    case Activation::kNone:
      AddBias(shape, bias.data(), output.data());
      break;
    case Activation::kRelu:
      AddBiasRelu(shape, bias.data(), output.data());
      break;
  }
}

void DenseBackwardParameters(const DenseShape& shape, std::span<const float> input,
                             std::span<const float> output_gradient, std::span<float> weights_gradient,
                             std::span<float> bias_gradient) {
  MUSTER_CHECK(
      HasSize(input, shape.batch, shape.inputs) && HasSize(output_gradient, shape.batch, shape.outputs) &&
      HasSize(weights_gradient, shape.inputs, shape.outputs) && HasSize(bias_gradient, 1, shape.outputs));
  if (IsNarrow(shape)) {
    NarrowBackwardWeights(shape, input.data(), output_gradient.data(), weights_gradient.data());
  } else {
    MatrixProduct(Transpose::kYes, Transpose::kNo, shape.inputs, shape.outputs, shape.batch, input.data(),
                  output_gradient.data(), weights_gradient.data());
  }
  std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0f);
  AddRows(shape, output_gradient.data(), bias_gradient.data());
}

void DenseBackwardInput(const DenseShape& shape, std::span<const float> output_gradient,
                        std::span<const float> weights, std::span<float> input_gradient) {
  MUSTER_CHECK(HasSize(output_gradient, shape.batch, shape.outputs) &&
               HasSize(weights, shape.inputs, shape.outputs) &&
               HasSize(input_gradient, shape.batch, shape.inputs));
  MatrixProduct(Transpose::kNo, Transpose::kYes, shape.batch, shape.inputs, shape.outputs,
                output_gradient.data(), weights.data(), input_gradient.data());
}

void ReluBackward(std::span<const float> activated, std::span<float> gradient) {
  MUSTER_CHECK(activated.size() == gradient.size());
  ZeroWhereZero(activated.data(), gradient.data(), static_cast<int64_t>(gradient.size()));
}

void SetKernelThreads(int threads) { omp_set_num_threads(std::max(threads, 1)); }

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
