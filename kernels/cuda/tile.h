// The product of two narrow matrices that a block of threads computes, step by step along their common side:
// the inner loop of every convolution. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace muster::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileDepth = 16;  // terms of each sum in one step

/// How the left operand of a step lies in shared memory: its rows one after the other, or its columns.
enum class TileOrder { kRowsFirst, kDepthFirst };

/// A block's part of the product: [kRows, kColumns] sums. A row of an operand in shared memory begins so far
/// behind the one before that the threads of a warp, each reading what Sums gives it, meet in no bank, and on
/// 16 bytes.
template <int kTileRows, int kTileColumns, TileOrder kTileOrder>
struct TileShape {
  static constexpr int kRows = kTileRows, kColumns = kTileColumns;
  static constexpr TileOrder kOrder = kTileOrder;
  static constexpr bool kRowsFirst = kTileOrder == TileOrder::kRowsFirst;
  static constexpr int kPitchOfA = kRowsFirst ? kTileDepth + 4 : kRows + 8;
  static constexpr int kPitchOfB = kColumns + 8;
  static constexpr int kPitchOfSums = kColumns + 4;
  // Steps whose operands are there or on their way: one that is computed, and those behind it.
  static constexpr int kStages = kRows > 64 ? 3 : 4;

  /// What one step multiplies: the rows of `a` with the columns of `b`.
  struct Operands {
    float a[kRowsFirst ? kRows : kTileDepth][kPitchOfA];
    float b[kTileDepth][kPitchOfB];
  };
  /// Shared memory of a block. The sums take the operands' place in the end.
  union Memory {
    Operands operands[kStages];
    float sums[kRows][kPitchOfSums];
  };
  static_assert(sizeof(Memory) <= 48 << 10);
};

/// Copies kFloats, 1 or as many as lie on 16 bytes, into shared memory, or zeros there if `exists` is false;
/// `source` is not read then. It is there after WaitForCopies.
template <int kFloats>
__device__ inline void CopyAsync(float* target, const float* source, bool exists) {
  static_assert(kFloats == 1 || kFloats == 4);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma unroll
  for (int i = 0; i < kFloats; ++i) target[i] = exists ? source[i] : 0;
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(target));
  const uint32_t bytes = exists ? 4 * kFloats : 0;  // the rest becomes zeros
  if constexpr (kFloats == 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source), "r"(bytes)
                 : "memory");
  }
#endif
}

/// Ends a group of copies of this thread.
__device__ inline void EndCopies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Returns when all groups of this thread but the latest `kUnderWay` are there.
template <int kUnderWay>
__device__ inline void WaitForCopies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kUnderWay) : "memory");
#endif
}

/// Where there are fewer parts of a tile's sums than threads or warps, several share a part: each adds up a
/// part of the depth. Calls store(is_first) of the sharers one after the other, so that what they add up has
/// the same bits each time. All threads of the block call.
template <int kSharers, typename Store>
__device__ void StoreInTurn(int sharer, const Store& store) {
#pragma unroll
  for (int turn = 0; turn < kSharers; ++turn) {
    if (turn > 0) __syncthreads();
    if (turn == sharer) store(turn == 0);
  }
}

/// The sums of a block in the registers of its threads. In float: each thread has four columns next to one
/// another, and rows far from one another.
template <typename Shape>
class FloatSums {
 public:
  __device__ void Add(const typename Shape::Operands& operands) {
#pragma unroll
    for (int i = 0; i < kTileDepth / kSharers; i += 4) {
      const int k = sharer() * (kTileDepth / kSharers) + i;
      if constexpr (Shape::kRowsFirst) {
        float4 a[kRows];
#pragma unroll
        for (int j = 0; j < kRows; ++j) a[j] = Four(&operands.a[row(j)][k]);
        AddDepth(a, &float4::x, operands.b[k]);
        AddDepth(a, &float4::y, operands.b[k + 1]);
        AddDepth(a, &float4::z, operands.b[k + 2]);
        AddDepth(a, &float4::w, operands.b[k + 3]);
      } else {
#pragma unroll
        for (int depth = k; depth < k + 4; ++depth) {
          float a[kRows];
#pragma unroll
          for (int j = 0; j < kRows; ++j) a[j] = operands.a[depth][row(j)];
          AddProducts(a, operands.b[depth]);
        }
      }
    }
  }
  __device__ void Store(typename Shape::Memory& memory) const {
    StoreInTurn<kSharers>(sharer(), [&](bool is_first) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& sum = memory.sums[row(i)][column() + j];
          sum = is_first ? sums_[i][j] : sum + sums_[i][j];
        }
      }
    });
  }

 private:
  static constexpr int kRows = Shape::kRows > 64 ? 16 : 8;  // of a thread
  static constexpr int kThreadsAcross = Shape::kColumns / 4, kThreadsDown = Shape::kRows / kRows;
  static constexpr int kSharers = kTileThreads / (kThreadsAcross * kThreadsDown);
  static_assert(kThreadsAcross * kThreadsDown * kSharers == kTileThreads && kTileDepth % (4 * kSharers) == 0);
  static __device__ int sharer() { return static_cast<int>(threadIdx.x) / (kThreadsAcross * kThreadsDown); }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % kThreadsAcross * 4; }
  // In fours next to one another where they lie so.
  static __device__ int row(int i) {
    const int thread = static_cast<int>(threadIdx.x) / kThreadsAcross % kThreadsDown;
    return Shape::kRowsFirst ? thread + kThreadsDown * i : (thread + kThreadsDown * (i / 4)) * 4 + i % 4;
  }
  static __device__ float4 Four(const float* place) { return *reinterpret_cast<const float4*>(place); }

  __device__ void AddDepth(const float4 (&rows)[kRows], float float4::*depth, const float* row_of_b) {
    float a[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) a[i] = rows[i].*depth;
    AddProducts(a, row_of_b);
  }
  __device__ void AddProducts(const float (&a)[kRows], const float* row_of_b) {
    const float4 b = Four(row_of_b + column());
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums_[i][0] += a[i] * b.x;
      sums_[i][1] += a[i] * b.y;
      sums_[i][2] += a[i] * b.z;
      sums_[i][3] += a[i] * b.w;
    }
  }

  float sums_[kRows][4] = {};
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// No TF32 there.
template <typename Shape>
class TensorCoreSums : public FloatSums<Shape> {};
#else
/// The same with products of TF32 numbers on tensor cores: a part is a warp's, and 16 or 32 columns wide.
template <typename Shape>
class TensorCoreSums {
 public:
  __device__ void Add(const typename Shape::Operands& operands) {
#pragma unroll
    for (int step = 0; step < kTileDepth / kProductDepth / kSharers; ++step) {
      const int k = (step * kSharers + sharer()) * kProductDepth;
      uint32_t a[kDown][4], b[kAcross][2];
#pragma unroll
      for (int i = 0; i < kDown; ++i) LoadA(operands, first_row() + 16 * i, k, a[i]);
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int column = first_column() + 8 * j + lane() / 4;
        b[j][0] = ToTf32(operands.b[k + lane() % 4][column]);
        b[j][1] = ToTf32(operands.b[k + lane() % 4 + 4][column]);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) AddProduct(a[i], b[j], sums_[i][j]);
      }
    }
  }
  __device__ void Store(typename Shape::Memory& memory) const {
    StoreInTurn<kSharers>(sharer(), [&](bool is_first) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
          for (int value = 0; value < 4; ++value) {
            float& sum = memory.sums[first_row() + 16 * i + lane() / 4 + value / 2 * 8]
                                    [first_column() + 8 * j + lane() % 4 * 2 + value % 2];
            sum = is_first ? sums_[i][j][value] : sum + sums_[i][j][value];
          }
        }
      }
    });
  }

 private:
  static constexpr int kProductDepth = 8;
  static constexpr int kWarps = kTileThreads / 32;
  static constexpr int kWarpRows = Shape::kRows > 64 ? 64 : 32;
  static constexpr int kWarpColumns = Shape::kRows * Shape::kColumns > 32 * 32 ? 32 : 16;
  static constexpr int kDown = kWarpRows / 16, kAcross = kWarpColumns / 8;  // products of a warp
  static constexpr int kPartsAcross = Shape::kColumns / kWarpColumns;
  static constexpr int kParts = Shape::kRows / kWarpRows * kPartsAcross;
  static constexpr int kSharers = kWarps / kParts;
  static_assert(kParts * kSharers == kWarps && kTileDepth % (kProductDepth * kSharers) == 0);

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ int part() { return static_cast<int>(threadIdx.x) / 32 % kParts; }
  static __device__ int sharer() { return static_cast<int>(threadIdx.x) / 32 / kParts; }
  static __device__ int first_row() { return part() / kPartsAcross * kWarpRows; }
  static __device__ int first_column() { return part() % kPartsAcross * kWarpColumns; }

  static __device__ uint32_t ToTf32(float value) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return rounded;
  }

  // [16, 8] of the left operand. As mma.m16n8k8 wants it (PTX ISA): lane l has rows l / 4 and 8 more, columns
  // l % 4 and 4 more.
  static __device__ void LoadA(const typename Shape::Operands& operands, int row, int k, uint32_t (&a)[4]) {
    if constexpr (Shape::kRowsFirst) {
      // Four of the pieces that ldmatrix reads, 8 rows of 16 bytes; a lane names a row of one of them.
      const int piece = lane() / 8;
      const float* const place = &operands.a[row + piece % 2 * 8 + lane() % 8][k + piece / 2 * 4];
      uint32_t values[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                   : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(place)))
                   : "memory");
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = ToTf32(__uint_as_float(values[i]));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = ToTf32(operands.a[k + lane() % 4 + i / 2 * 4][row + lane() / 4 + i % 2 * 8]);
      }
    }
  }

  // sums [16, 8] += a [16, 8] * b [8, 8].
  static __device__ void AddProduct(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sums)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  float sums_[kDown][kAcross][4] = {};
};
#endif

/// memory.sums = the sum over all steps of a * b, for the whole block. A loader's Next(operand) begins to
/// copy what its thread contributes to the operand of the next step.
template <typename Sums, typename LoadA, typename LoadB, typename Memory>
__device__ void MultiplyTiles(int steps, LoadA& load_a, LoadB& load_b, Memory& memory) {
  constexpr int kStages = static_cast<int>(std::extent_v<decltype(memory.operands)>);
  Sums sums;
  int loaded = 0;
  const auto load_next = [&] {
    if (loaded < steps) {
      load_a.Next(memory.operands[loaded % kStages].a);
      load_b.Next(memory.operands[loaded % kStages].b);
    }
    EndCopies();
    ++loaded;
  };
#pragma unroll 1
  for (int i = 0; i + 1 < kStages; ++i) load_next();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // this step's operands are there, and nobody reads those of the step before
    load_next();
    sums.Add(memory.operands[step % kStages]);
  }
  WaitForCopies<0>();
  __syncthreads();
  sums.Store(memory);
  __syncthreads();
}

}  // namespace muster::cuda
