// A CUDA device for host code: errors as Status, and owners of memory, streams and graphs.
//
// This folder is built only where nvcc is found; for tests its host code also with a made-up CUDA, where the
// headers are (fake_cuda.h). Its headers mirror those of kernels/: contracts are the same but for what they
// say. Pointers are into the memory of the current device, tensors on 64-byte boundaries; functions that take
// a stream enqueue and return, and what they return is what the enqueuing gave: whatever goes wrong on the
// device comes back from a later call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>

#include "base/status.h"

namespace muster::cuda {

/// OK, or "WHAT: NAME: what CUDA says". ResourceExhausted: the device's or the host's memory is used up.
/// Internal: anything else; most leave nothing of this process's device state to go on with.
absl::Status ToStatus(cudaError_t error, const char* what);

#define MUSTER_CUDA_RETURN_IF_ERROR(expression) \
  MUSTER_RETURN_IF_ERROR(::muster::cuda::ToStatus((expression), #expression))

/// Bytes on the device, on a 256-byte boundary.
absl::StatusOr<void*> AllocateDevice(int64_t bytes);

/// Pinned bytes on the host, which the device reads and writes by itself.
absl::StatusOr<void*> AllocatePinned(int64_t bytes);

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

/// `size` elements whose values are not set. Null if empty.
template <typename T, typename Free, absl::StatusOr<void*> (*kAllocate)(int64_t bytes)>
class OwnedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  OwnedArray() = default;
  static absl::StatusOr<OwnedArray> Create(int64_t size) {
    OwnedArray array;
    if (size == 0) return array;
    MUSTER_ASSIGN_OR_RETURN(void* const memory, kAllocate(size * static_cast<int64_t>(sizeof(T))));
    array.data_.reset(static_cast<T*>(memory));
    array.size_ = size;
    return array;
  }
  T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  std::span<T> values() const { return {data_.get(), static_cast<size_t>(size_)}; }  // pinned memory only

 private:
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

template <typename T>
using DeviceArray = OwnedArray<T, FreeDevice, AllocateDevice>;
template <typename T>
using PinnedArray = OwnedArray<T, FreePinned, AllocatePinned>;

/// to [values.size()], on the device, = values, whatever streams do. Returns when they are there.
template <typename T>
absl::Status WriteToDevice(T* to, std::span<const T> values) {
  if (values.empty()) return absl::OkStatus();
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpy(to, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaStreamSynchronize(cudaStreamLegacy));  // the call may end while the last bytes are under way
  return absl::OkStatus();
}

/// A copy of `values` on the device. Returns when it is there.
template <typename T>
absl::StatusOr<DeviceArray<T>> CopyToDevice(std::span<const T> values) {
  MUSTER_ASSIGN_OR_RETURN(DeviceArray<T> array, DeviceArray<T>::Create(static_cast<int64_t>(values.size())));
  MUSTER_RETURN_IF_ERROR(WriteToDevice(array.data(), values));
  return array;
}

/// `size` elements of zero bytes. Returns when they are there.
template <typename T>
absl::StatusOr<DeviceArray<T>> ZerosOnDevice(int64_t size) {
  MUSTER_ASSIGN_OR_RETURN(DeviceArray<T> array, DeviceArray<T>::Create(size));
  if (size == 0) return array;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemset(array.data(), 0, array.bytes()));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
  return array;
}

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

/// One that does not wait for the default stream.
absl::StatusOr<Stream> MakeStream();

/// `timed`: cudaEventElapsedTime may be asked of it.
absl::StatusOr<Event> MakeEvent(bool timed);

/// What `work` enqueues on `stream`, and on streams that wait for it and that it waits for, as a graph; none
/// of it runs. `work` must have run once before outside of a capture, since what is loaded at its first use
/// cannot be loaded in one.
absl::StatusOr<Graph> Capture(cudaStream_t stream, const std::function<absl::Status()>& work);

}  // namespace muster::cuda
