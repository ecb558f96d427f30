// The threads that kernels may use, and loops shared out among them.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>

namespace muster {

/// Threads that kernels called from this thread may use, at least 1; OpenMP keeps the number per calling
/// thread. Where it was never set, products take OpenMP's default, loops one thread.
void SetKernelThreads(int threads);

/// A part of a loop over fewer floats than this is not worth a thread: it takes about as long as waking one.
inline constexpr int64_t kSmallestPart = 16 << 10;

/// Shares [0, count) out among the kernel threads of the calling one: work(begin, end) runs at the same time
/// for parts that follow each other and differ by at most one. Each has at least kSmallestPart floats, of
/// which one of `count` stands for `floats` (at least 1); otherwise there are fewer. Returns when all have.
///
/// The parts depend on the number of threads, so where results must not, no part's may depend on where it
/// begins and ends.
void ForEachPart(int64_t count, int64_t floats, absl::FunctionRef<void(int64_t begin, int64_t end)> work);

}  // namespace muster
