#include "kernels/threads.h"

#include <omp.h>

#include <algorithm>

namespace muster {
namespace {

// Beside OpenMP's own number, whose default is all cores: the threads of a server update shards at the same
// time, and never ask for more.
thread_local int kernel_threads = 1;

}  // namespace

void SetKernelThreads(int threads) {
  kernel_threads = std::max(threads, 1);
  omp_set_num_threads(kernel_threads);
}

void ForEachPart(int64_t count, int64_t floats, absl::FunctionRef<void(int64_t, int64_t)> work) {
  const int64_t parts = std::min<int64_t>({count, count * floats / kSmallestPart, kernel_threads});
  if (parts <= 1) return work(0, count);
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t i = 0; i < parts; ++i) work(count * i / parts, count * (i + 1) / parts);
}

}  // namespace muster
