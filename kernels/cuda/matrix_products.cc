#include "kernels/cuda/matrix_products.h"

namespace muster::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr uint32_t kAlignment = 16;                   // of every operand; tensors have 64

absl::Status ToStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Internal("%s: %s", what, cublasLtGetStatusString(status));
}

#define MUSTER_CUBLAS_RETURN_IF_ERROR(expression) MUSTER_RETURN_IF_ERROR(ToStatus((expression), #expression))

cublasComputeType_t ComputeType(Math math) {
  switch (math) {
    case Math::kFloat32:
      return CUBLAS_COMPUTE_32F;
    case Math::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Math::kBfloat16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  MUSTER_CHECK(false, "a kind of math without a case");
}

}  // namespace

// cuBLAS counts columns first. So its matrices are the transposes of ours: c^T = op(b)^T op(a)^T, and our b
// is its first operand.
struct MatrixProducts::Plan {
  ~Plan() {
    cublasLtMatrixLayoutDestroy(first);
    cublasLtMatrixLayoutDestroy(second);
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatmulDescDestroy(operation);
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

MatrixProducts::MatrixProducts(Math math) : math_(math) {}

MatrixProducts::~MatrixProducts() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(Math math) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts(math));
  MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtCreate(&products->handle_));
  for (DeviceArray<uint8_t>& workspace : products->workspaces_) {
    MUSTER_ASSIGN_OR_RETURN(workspace, DeviceArray<uint8_t>::Create(kWorkspaceBytes));
  }
  return products;
}

absl::StatusOr<std::unique_ptr<MatrixProducts::Plan>> MatrixProducts::MakePlan(const Key& key,
                                                                               const float* bias) const {
  const ProductShape& shape = key.shape;
  auto plan = std::make_unique<Plan>();
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return cublasLtMatmulDescSetAttribute(plan->operation, attribute, &value, sizeof value);
  };
  const auto make_layout = [](cublasLtMatrixLayout_t* layout, bool transpose, int64_t rows, int64_t columns) {
    // As it lies in memory, columns first.
    const int64_t stored_rows = transpose ? columns : rows, stored_columns = transpose ? rows : columns;
    return cublasLtMatrixLayoutCreate(layout, CUDA_R_32F, stored_rows, stored_columns, stored_rows);
  };
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulDescCreate(&plan->operation, ComputeType(math_), CUDA_R_32F));
  MUSTER_CUBLAS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.transpose_b)));
  MUSTER_CUBLAS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.transpose_a)));
  if (key.bias) {
    MUSTER_CUBLAS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    MUSTER_CUBLAS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }
  MUSTER_CUBLAS_RETURN_IF_ERROR(make_layout(&plan->first, shape.transpose_b, shape.n, shape.k));
  MUSTER_CUBLAS_RETURN_IF_ERROR(make_layout(&plan->second, shape.transpose_a, shape.k, shape.m));
  MUSTER_CUBLAS_RETURN_IF_ERROR(make_layout(&plan->result, false, shape.n, shape.m));

  cublasLtMatmulPreference_t created = nullptr;
  MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulPreferenceCreate(&created));
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        cublasStatus_t (*)(cublasLtMatmulPreference_t)>
      preference(created, cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value);
  };
  MUSTER_CUBLAS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    MUSTER_CUBLAS_RETURN_IF_ERROR(prefer(attribute, kAlignment));
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation, plan->first,
                                                               plan->second, plan->result, plan->result,
                                                               preference.get(), 1, &found, &count));
  if (count == 0) {
    return absl::UnimplementedError(absl::StrFormat("cuBLAS has no product [%d, %d] x [%d, %d] for this GPU",
                                                    shape.m, shape.k, shape.k, shape.n));
  }
  plan->algorithm = found.algo;
  return plan;
}

absl::Status MatrixProducts::Multiply(const ProductShape& shape, const float* a, const float* b,
                                      const float* bias, float* c, Lane lane, cudaStream_t stream) {
  if (shape.m == 0 || shape.n == 0) return absl::OkStatus();
  if (shape.k == 0) {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(c, 0, shape.m * shape.n * sizeof(float), stream));
    return absl::OkStatus();
  }
  const Key key{shape, bias != nullptr};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    MUSTER_ASSIGN_OR_RETURN(auto plan, MakePlan(key, bias));
    found = plans_.emplace(key, std::move(plan)).first;
  }
  const Plan& plan = *found->second;
  if (bias != nullptr) {
    MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulDescSetAttribute(
        plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
  }
  const float one = 1, zero = 0;
  const DeviceArray<uint8_t>& workspace = workspaces_[static_cast<size_t>(lane)];
  MUSTER_CUBLAS_RETURN_IF_ERROR(cublasLtMatmul(handle_, plan.operation, &one, b, plan.first, a, plan.second,
                                               &zero, c, plan.result, c, plan.result, &plan.algorithm,
                                               workspace.data(), workspace.bytes(), stream));
  return absl::OkStatus();
}

}  // namespace muster::cuda
