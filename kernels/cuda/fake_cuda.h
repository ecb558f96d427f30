// CUDA's runtime made of threads and the host's memory, so that host code which uses it can be watched where
// there is no GPU, under sanitizers too. A program is linked with this instead of CUDA's library; kernels are
// functions of the host (fake_kernels.cc).
//
// What holds on a GPU and no more: streams run beside the host and beside each other, and a graph what was
// captured with no more order than its streams and events had. Calls that a capture forbids are refused.
// Memory is all ones when it is new, which for floats are NaNs, and copies and kernels reach only what was
// allocated. To free some waits for the device. The default stream and those of threads are one here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

namespace muster::cuda {

inline constexpr int kFakeGpus = 8;

/// Of all calls from now on that make, copy, enqueue, capture or wait, number `call` (from 1 on) fails with
/// this and does nothing; a wait says so at its end, as it does of what fails on a GPU. 0: none. What only
/// ends something does not fail.
void FailFakeCuda(int64_t call, cudaError_t error = cudaErrorUnknown);

/// Whether that call is still to come.
bool FakeCudaWillFail();

/// What a kernel is here: `work` runs on a thread of the stream's when its turn comes, or in graphs if the
/// stream is being captured. As cudaGetLastError after a launch.
cudaError_t LaunchFake(cudaStream_t stream, std::function<void()> work);

/// Aborts unless the bytes are of one allocation, on the device or pinned, that has not been freed.
void CheckReachable(const void* memory, int64_t bytes);

/// The array that a kernel was given. `count` may be 0, and `values` then anything.
template <typename T>
std::span<T> Reachable(T* values, int64_t count) {
  CheckReachable(values, count * static_cast<int64_t>(sizeof(T)));
  return {values, static_cast<size_t>(count)};
}

}  // namespace muster::cuda
