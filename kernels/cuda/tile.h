// The product of two narrow matrices that a block of threads computes, step by step along their common side:
// the inner loop of every convolution. For .cu files.
#pragma once

#include <cuda_runtime.h>
#include <mma.h>

namespace muster::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileRows = 64;
inline constexpr int kTileDepth = 16;  // terms of each sum in one step
// So that rows of a tile begin in other banks of shared memory; a multiple of 4, as wmma wants it.
inline constexpr int kTilePadding = 4;

/// What one step multiplies: the columns of `a` with the rows of `b`.
template <int kColumns>
struct TileOperands {
  float a[kTileDepth][kTileRows + kTilePadding];
  float b[kTileDepth][kColumns + kTilePadding];
};

/// Shared memory of a block. The operands of one step are read while those of the next are written; the sums
/// take their place in the end.
template <int kColumns>
struct TileMemory {
  union {
    TileOperands<kColumns> operands[2];
    float sums[kTileRows][kColumns + kTilePadding];
  };
};

/// The sums of a block, [kTileRows, kColumns], in the registers of its threads. In float.
template <int kColumns>
class FloatSums {
 public:
  __device__ void Add(const TileOperands<kColumns>& operands) {
#pragma unroll
    for (int k = 0; k < kTileDepth; ++k) {
      float a[kRows], b[4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) a[i] = operands.a[k][first_row() + i];
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j] = operands.b[k][first_column() + j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums_[i][j] += a[i] * b[j];
      }
    }
  }
  __device__ void Store(float (*sums)[kColumns + kTilePadding]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[first_row() + i][first_column() + j] = sums_[i][j];
    }
  }

 private:
  static constexpr int kThreadsAcross = kColumns / 4;                      // each with four columns
  static constexpr int kRows = kTileRows * kThreadsAcross / kTileThreads;  // of a thread
  static __device__ int first_row() { return static_cast<int>(threadIdx.x) / kThreadsAcross * kRows; }
  static __device__ int first_column() { return static_cast<int>(threadIdx.x) % kThreadsAcross * 4; }

  float sums_[kRows][4] = {};
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// No TF32 there.
template <int kColumns>
class TensorCoreSums : public FloatSums<kColumns> {};
#else
/// The same with products of TF32 numbers on tensor cores: each of the four warps computes 32 of the columns.
template <int kColumns>
class TensorCoreSums {
 public:
  __device__ TensorCoreSums() {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) nvcuda::wmma::fill_fragment(sums_[i][j], 0.0f);
    }
  }
  __device__ void Add(const TileOperands<kColumns>& operands) {
    namespace wmma = nvcuda::wmma;
#pragma unroll
    for (int k = 0; k < kTileDepth; k += kFragmentDepth) {
      wmma::fragment<wmma::matrix_a, 16, 16, kFragmentDepth, wmma::precision::tf32, wmma::col_major> a[kDown];
      wmma::fragment<wmma::matrix_b, 16, 16, kFragmentDepth, wmma::precision::tf32, wmma::row_major> b[2];
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        wmma::load_matrix_sync(a[i], &operands.a[k][first_row() + 16 * i], kTileRows + kTilePadding);
        Round(a[i]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        wmma::load_matrix_sync(b[j], &operands.b[k][first_column() + 16 * j], kColumns + kTilePadding);
        Round(b[j]);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sums_[i][j], a[i], b[j], sums_[i][j]);
      }
    }
  }
  __device__ void Store(float (*sums)[kColumns + kTilePadding]) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        nvcuda::wmma::store_matrix_sync(&sums[first_row() + 16 * i][first_column() + 16 * j], sums_[i][j],
                                        kColumns + kTilePadding, nvcuda::wmma::mem_row_major);
      }
    }
  }

 private:
  static constexpr int kFragmentDepth = 8;
  static constexpr int kWarps = kTileThreads / 32;
  static constexpr int kWarpsAcross = kColumns / 32;
  static constexpr int kWarpRows = kTileRows * kWarpsAcross / kWarps;
  static constexpr int kDown = kWarpRows / 16;  // fragments, below one another
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int first_row() { return warp() / kWarpsAcross * kWarpRows; }
  static __device__ int first_column() { return warp() % kWarpsAcross * 32; }

  template <typename Fragment>
  static __device__ void Round(Fragment& fragment) {
#pragma unroll
    for (int i = 0; i < fragment.num_elements; ++i)
      fragment.x[i] = nvcuda::wmma::__float_to_tf32(fragment.x[i]);
  }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, kFragmentDepth, float> sums_[kDown][2];
};
#endif

/// memory.sums = the sum over all steps of a_step * b_step, for the whole block. A loader's Fetch(step) reads
/// what its thread contributes to an operand of that step into registers; its Store writes it into shared
/// memory.
template <typename Sums, int kColumns, typename LoadA, typename LoadB>
__device__ void MultiplyTiles(int steps, LoadA& load_a, LoadB& load_b, TileMemory<kColumns>& memory) {
  Sums sums;
  const auto store = [&](int step) {
    TileOperands<kColumns>& operands = memory.operands[step % 2];
    load_a.Store(operands.a);
    load_b.Store(operands.b);
  };
  if (steps > 0) {
    load_a.Fetch(0);
    load_b.Fetch(0);
    store(0);
  }
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const bool is_last = step + 1 == steps;
    if (!is_last) {  // on its way while this step is computed
      load_a.Fetch(step + 1);
      load_b.Fetch(step + 1);
    }
    sums.Add(memory.operands[step % 2]);
    if (!is_last) store(step + 1);
    __syncthreads();
  }
  sums.Store(memory.sums);
  __syncthreads();
}

}  // namespace muster::cuda
