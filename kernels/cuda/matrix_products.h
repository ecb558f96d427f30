// Matrix products on a CUDA device, by cuBLAS.
#pragma once

#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cuda/math.h"
#include "kernels/cuda/runtime.h"

namespace muster::cuda {

/// Row-major without gaps: c [m, n] = op(a) [m, k] * op(b) [k, n], where op transposes or not, so that a
/// transposed a is [k, m] in memory.
struct ProductShape {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

/// Products that are enqueued on different streams need different lanes, each with memory of its own.
enum class Lane : uint8_t { kMain = 0, kSide = 1 };

/// Asks cuBLAS once for each shape how to compute it, and keeps the answer: the same bits at every call, on
/// one model of GPU and one version of cuBLAS. One thread at a time.
class MatrixProducts {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(Math math);
  ~MatrixProducts();

  /// c = op(a) * op(b), and bias [n] added to each row unless it is null; nothing of the old c is read. A sum
  /// of no terms is zero, a bias then ignored.
  absl::Status Multiply(const ProductShape& shape, const float* a, const float* b, const float* bias,
                        float* c, Lane lane, cudaStream_t stream);

 private:
  struct Plan;
  struct Key {
    ProductShape shape;
    bool bias = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  explicit MatrixProducts(Math math);
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const Key& key, const float* bias) const;

  const Math math_;
  cublasLtHandle_t handle_ = nullptr;
  std::array<DeviceArray<uint8_t>, 2> workspaces_;  // by lane
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace muster::cuda
