#include "kernels/cuda/runtime.h"

namespace muster::cuda {

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // whoever goes on without what failed would take it for a later call's
  const absl::StatusCode code =
      error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrFormat("%s: %s: %s", what, cudaGetErrorName(error), cudaGetErrorString(error)));
}

absl::StatusOr<void*> AllocateDevice(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaSuccess) return memory;
  return ToStatus(error, absl::StrFormat("%d bytes on the GPU", bytes).c_str());
}

absl::StatusOr<void*> AllocatePinned(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocHost(&memory, bytes);
  if (error == cudaSuccess) return memory;
  return ToStatus(error, absl::StrFormat("%d bytes of pinned memory", bytes).c_str());
}

absl::StatusOr<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

absl::StatusOr<Event> MakeEvent(bool timed) {
  cudaEvent_t event = nullptr;
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return Event(event);
}

absl::StatusOr<Graph> Capture(cudaStream_t stream, const std::function<absl::Status()>& work) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::Status enqueued = work();
  cudaGraph_t graph = nullptr;
  const absl::Status ended = ToStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, cudaError_t (*)(cudaGraph_t)> owner(
      graph, cudaGraphDestroy);
  MUSTER_RETURN_IF_ERROR(enqueued);
  MUSTER_RETURN_IF_ERROR(ended);
  cudaGraphExec_t executable = nullptr;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(&executable, graph, 0));
  return Graph(executable);
}

}  // namespace muster::cuda
