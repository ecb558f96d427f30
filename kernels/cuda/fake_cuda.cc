#include "kernels/cuda/fake_cuda.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/fake_stream.h"

namespace muster::cuda {
namespace {

constexpr size_t kAlignment = 256;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int captures_under_way = 0;  // that this thread began

std::atomic<int64_t> calls_until_failure = 0;
std::atomic<cudaError_t> failure = cudaSuccess;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// What a call that may fail begins with.
cudaError_t CountCall() {
  int64_t left = calls_until_failure;
  while (left > 0 && !calls_until_failure.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1 ? Return(failure) : cudaSuccess;
}

#define MUSTER_FAKE_CALL() \
  if (const cudaError_t error = CountCall(); error != cudaSuccess) return error

// What a GPU reaches.
struct Allocation {
  size_t bytes;
  int device;      // of the thread that asked for it
  bool is_pinned;  // the host's
};

// Where the memory of all of them lies; never destroyed, as AllStreams.
class Memory {
 public:
  static Memory& Get() {
    static Memory& memory = *new Memory;
    return memory;
  }

  cudaError_t Allocate(void** memory, size_t bytes, bool is_pinned) {
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    // Not more than asked for, so that the address sanitizer sees each byte behind it.
    if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);
    const std::lock_guard lock(mutex_);
    all_[static_cast<const std::byte*>(*memory)] = {bytes, current_device, is_pinned};
    return cudaSuccess;
  }

  cudaError_t Free(void* memory, bool is_pinned) {
    if (memory == nullptr) return cudaSuccess;
    int device = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = all_.find(static_cast<const std::byte*>(memory));
      if (found == all_.end() || found->second.is_pinned != is_pinned) return cudaErrorInvalidValue;
      device = found->second.device;
    }
    WaitForDevice(device);
    const std::lock_guard lock(mutex_);
    all_.erase(static_cast<const std::byte*>(memory));
    std::free(memory);
    return cudaSuccess;
  }

  enum class Place { kElsewhere, kPinned, kDevice, kTorn };  // kTorn: not all of it in one allocation
  Place Find(const void* memory, size_t bytes, int* device = nullptr) {
    const std::lock_guard lock(mutex_);
    const auto* const begin = static_cast<const std::byte*>(memory);
    const auto next = all_.upper_bound(begin);
    if (next != all_.begin()) {
      const auto& [start, allocation] = *std::prev(next);
      if (begin < start + allocation.bytes) {
        if (device != nullptr) *device = allocation.device;
        if (begin + bytes > start + allocation.bytes) return Place::kTorn;
        return allocation.is_pinned ? Place::kPinned : Place::kDevice;
      }
    }
    return next != all_.end() && begin + bytes > next->first ? Place::kTorn : Place::kElsewhere;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, Allocation> all_;
};

using Place = Memory::Place;

bool MayCopy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const Place target = Memory::Get().Find(to, bytes), source = Memory::Get().Find(from, bytes);
  if (target == Place::kTorn || source == Place::kTorn) return false;
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return (target == Place::kDevice) == to_device && (source == Place::kDevice) == from_device;
}

// A word is written at once, behind all that was written before, for a host that waits until it changes.
template <typename Word>
bool CopyWord(void* to, const void* from, size_t bytes) {
  if (bytes != sizeof(Word) || reinterpret_cast<uintptr_t>(to) % sizeof(Word) != 0) return false;
  Word word;
  std::memcpy(&word, from, sizeof word);
  std::atomic_ref(*static_cast<Word*>(to)).store(word, std::memory_order_release);
  return true;
}

void Copy(void* to, const void* from, size_t bytes) {
  if (CopyWord<uint32_t>(to, from, bytes) || CopyWord<uint64_t>(to, from, bytes)) return;
  std::memcpy(to, from, bytes);
}

struct FakeEvent {
  const bool is_timed;
  std::mutex mutex;
  std::shared_ptr<Milestone> milestone;  // of the last record; null: there was none, or in a capture
  bool was_captured = false;
  std::weak_ptr<Capture> capture;  // the same
  CapturedPlace place;
};

FakeStream* Of(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
    return reinterpret_cast<FakeStream*>(stream);
  }
  static FakeStream* const default_streams[] = {new FakeStream(0), new FakeStream(1), new FakeStream(2),
                                                new FakeStream(3), new FakeStream(4), new FakeStream(5),
                                                new FakeStream(6), new FakeStream(7)};
  static_assert(std::size(default_streams) == kFakeGpus);
  return default_streams[current_device];
}

FakeEvent* Of(cudaEvent_t event) { return reinterpret_cast<FakeEvent*>(event); }

// As CUDA has it, a thread that captures may not wait for anything, nor ask, nor allocate.
template <typename Call>
cudaError_t UnlessCapturing(const Call& call) {
  return Return(captures_under_way > 0 ? cudaErrorStreamCaptureUnsupported : call());
}

}  // namespace

void FailFakeCuda(int64_t call, cudaError_t error) {
  failure = error;
  calls_until_failure = call;
}

bool FakeCudaWillFail() { return calls_until_failure > 0; }

cudaError_t LaunchFake(cudaStream_t stream, std::function<void()> work) {
  MUSTER_FAKE_CALL();
  Of(stream)->Enqueue(std::move(work));
  return cudaGetLastError();
}

void CheckReachable(const void* memory, int64_t bytes) {
  if (bytes == 0) return;
  const Place place = Memory::Get().Find(memory, bytes);
  MUSTER_CHECK(
      place == Place::kDevice || place == Place::kPinned,
      absl::StrFormat("a kernel was given %d bytes at %p, which are not all in one allocation of the GPU",
                      bytes, memory));
}

}  // namespace muster::cuda

struct CUgraph_st {
  std::shared_ptr<const muster::cuda::CapturedGraph> graph;
};
struct CUgraphExec_st {
  std::shared_ptr<const muster::cuda::CapturedGraph> graph;
};

// CUDA's own, which are the same functions in whatever namespace they are.
namespace muster::cuda {
extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "made up"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kFakeGpus;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  MUSTER_FAKE_CALL();
  if (device < 0 || device >= kFakeGpus) return Return(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "made up");
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return UnlessCapturing([] {
    WaitForDevice(current_device);
    return CountCall();
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  MUSTER_FAKE_CALL();
  return UnlessCapturing([&] { return Memory::Get().Allocate(memory, bytes, /*is_pinned=*/false); });
}
cudaError_t cudaFree(void* memory) {
  return UnlessCapturing([&] { return Memory::Get().Free(memory, /*is_pinned=*/false); });
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  MUSTER_FAKE_CALL();
  return UnlessCapturing([&] { return Memory::Get().Allocate(memory, bytes, /*is_pinned=*/true); });
}
cudaError_t cudaFreeHost(void* memory) {
  return UnlessCapturing([&] { return Memory::Get().Free(memory, /*is_pinned=*/true); });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  *attributes = {.type = cudaMemoryTypeUnregistered, .device = -2};
  const Place place = Memory::Get().Find(memory, 1, &attributes->device);
  if (place == Place::kDevice) attributes->type = cudaMemoryTypeDevice;
  if (place == Place::kPinned) attributes->type = cudaMemoryTypeHost;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  MUSTER_FAKE_CALL();
  if (!MayCopy(to, from, bytes, kind)) return Return(cudaErrorInvalidValue);
  Of(stream)->Enqueue([=] { Copy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  MUSTER_FAKE_CALL();
  if (bytes > 0 && Memory::Get().Find(memory, bytes) != Place::kDevice) return Return(cudaErrorInvalidValue);
  Of(stream)->Enqueue([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
// To the device it may return with the last bytes still under way, and here always does.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  MUSTER_FAKE_CALL();
  return UnlessCapturing([&] {
    if (!MayCopy(to, from, bytes, kind)) return cudaErrorInvalidValue;
    if (kind == cudaMemcpyHostToDevice) {
      const auto* const begin = static_cast<const std::byte*>(from);
      Of(cudaStreamLegacy)->Enqueue([to, staged = std::vector<std::byte>(begin, begin + bytes)] {
        std::copy(staged.begin(), staged.end(), static_cast<std::byte*>(to));
      });
      return cudaSuccess;
    }
    Of(cudaStreamLegacy)->Enqueue([=] { Copy(to, from, bytes); });
    Of(cudaStreamLegacy)->Mark()->Wait();
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return UnlessCapturing([&] { return cudaMemsetAsync(memory, value, bytes, cudaStreamLegacy); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  MUSTER_FAKE_CALL();
  // The others wait for the default stream, and it for them.
  if (flags != cudaStreamNonBlocking) return Return(cudaErrorNotSupported);
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream(current_device));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete Of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return UnlessCapturing([&] {
    Of(stream)->Mark()->Wait();
    return CountCall();
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return UnlessCapturing([&] { return Of(stream)->is_idle() ? cudaSuccess : cudaErrorNotReady; });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  MUSTER_FAKE_CALL();
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{.is_timed = (flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  MUSTER_FAKE_CALL();
  FakeStream* const on = Of(stream);
  const std::lock_guard lock(Of(event)->mutex);
  Of(event)->was_captured = on->capture != nullptr;
  Of(event)->capture = on->capture;
  if (on->capture != nullptr) {
    Of(event)->place = on->capture->PlaceOf(on);
  } else {
    Of(event)->milestone = on->Mark();
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  MUSTER_FAKE_CALL();
  FakeStream* const waiting = Of(stream);
  const std::lock_guard lock(Of(event)->mutex);
  if (Of(event)->was_captured) {
    const std::shared_ptr<Capture> capture = Of(event)->capture.lock();
    if (capture == nullptr) return Return(cudaErrorCapturedEvent);
    if (waiting->capture != nullptr && waiting->capture != capture) {
      return Return(cudaErrorStreamCaptureMerge);
    }
    capture->Wait(waiting, Of(event)->place);
    waiting->capture = capture;
    return cudaSuccess;
  }
  if (Of(event)->milestone == nullptr) return cudaSuccess;
  if (waiting->capture != nullptr) return Return(cudaErrorStreamCaptureIsolation);
  waiting->Enqueue([milestone = Of(event)->milestone] { milestone->Wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return UnlessCapturing([&] {
    std::shared_ptr<Milestone> milestone;
    {
      const std::lock_guard lock(Of(event)->mutex);
      if (Of(event)->was_captured) return cudaErrorCapturedEvent;
      milestone = Of(event)->milestone;
    }
    if (milestone != nullptr) milestone->Wait();
    return CountCall();
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return UnlessCapturing([&] {
    const std::lock_guard lock(Of(event)->mutex);
    if (Of(event)->was_captured) return cudaErrorCapturedEvent;
    const bool is_done = Of(event)->milestone == nullptr || Of(event)->milestone->reached();
    return is_done ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  MUSTER_FAKE_CALL();
  std::optional<TimePoint> times[2];
  for (int i = 0; i < 2; ++i) {
    FakeEvent* const event = Of(i == 0 ? begin : end);
    const std::lock_guard lock(event->mutex);
    if (!event->is_timed || event->milestone == nullptr) return Return(cudaErrorInvalidResourceHandle);
    times[i] = event->milestone->reached();
    if (!times[i]) return Return(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(1000 * ToSeconds(*times[1] - *times[0]));
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  MUSTER_FAKE_CALL();
  FakeStream* const origin = Of(stream);
  if (mode != cudaStreamCaptureModeThreadLocal) return Return(cudaErrorNotSupported);
  if (origin->capture != nullptr) return Return(cudaErrorIllegalState);
  origin->capture = std::make_shared<Capture>(origin);
  ++captures_under_way;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = Of(stream)->capture;
  if (capture == nullptr) return Return(cudaErrorIllegalState);
  if (!capture->began_with(Of(stream))) return Return(cudaErrorStreamCaptureUnmatched);
  for (FakeStream* const captured : capture->streams()) captured->capture = nullptr;
  --captures_under_way;
  MUSTER_FAKE_CALL();
  auto captured = std::make_shared<const CapturedGraph>(capture->TakeGraph());
  if (!captured->is_joined()) return Return(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(captured)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  MUSTER_FAKE_CALL();
  *executable = new CUgraphExec_st{graph->graph};
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  MUSTER_FAKE_CALL();
  Of(stream)->Enqueue([graph = executable->graph] { graph->Run(); });
  return cudaSuccess;
}
}
}  // namespace muster::cuda
