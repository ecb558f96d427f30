#include "collective/nccl.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "collective/nccl_library.h"
#include "kernels/cuda/runtime.h"

namespace muster {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(GpuGroupId));

// Ranges are staged in pieces of this size, two at a time: the host copies one while the GPU has the other.
constexpr size_t kSlotBytes = size_t{4} << 20;
constexpr size_t kAlignment = 64;
constexpr Duration kFinalizeTimeout = std::chrono::seconds(3);
constexpr Duration kEndTimeout = std::chrono::seconds(10);
constexpr Duration kMemoryTimeout = std::chrono::minutes(1);  // where it adds up memory of the caller's

// Between two looks at what the GPU does. Most operations take less than the first part.
class Pause {
 public:
  void operator()() {
    if (Now() < start_ + kYielding) return std::this_thread::yield();
    std::this_thread::sleep_for(kSleep);
  }

 private:
  static constexpr Duration kYielding = std::chrono::microseconds(500);
  static constexpr Duration kSleep = std::chrono::microseconds(50);
  const TimePoint start_ = Now();
};

struct Slot {
  cuda::PinnedArray<std::byte> host;
  cuda::DeviceArray<std::byte> device;
  cuda::Event is_done;
  size_t begin = 0, bytes = 0;  // of the operation's range; no bytes: it is free
};

// What NCCL and the GPU may use for longer than anybody waits for them.
struct Resources {
  NcclLibrary nccl;
  int device = 0;
  ncclComm_t communicator = nullptr;
  Slot slots[2];
  cuda::Stream stream;
};

// `in_peace`: with the others, for whom something may still be under way.
void EndCommunicator(Resources& resources, bool in_peace) {
  const NcclLibrary& nccl = resources.nccl;
  (void)cudaSetDevice(resources.device);
  if (resources.communicator == nullptr) return;
  if (in_peace) {
    ncclResult_t state = nccl.comm_finalize(resources.communicator);
    Pause pause;
    for (const TimePoint deadline = Now() + kFinalizeTimeout; state == ncclInProgress && Now() < deadline;) {
      pause();
      if (nccl.comm_get_async_error(resources.communicator, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess) return (void)nccl.comm_destroy(resources.communicator);
  }
  (void)nccl.comm_abort(resources.communicator);
}

class NcclBackend final : public CollectiveBackend {
 public:
  NcclBackend(const GpuGroupOptions& options, std::unique_ptr<Resources> resources,
              const Interrupt& interrupt)
      : options_(options), interrupt_(interrupt), resources_(std::move(resources)) {}
  ~NcclBackend() override { End(/*in_peace=*/!interrupt_.is_set()); }

  absl::Status Meet(const GpuGroupId& id);

  int rank() const override { return options_.rank; }
  int size() const override { return static_cast<int>(options_.names.size()); }
  Traffic traffic() const override { return traffic_; }
  absl::Status Perform(const Operation& operation) override;
  void Stop() override { is_stopped_ = true; }

 private:
  absl::Status Do(const Operation& operation);
  absl::Status DoInPieces(const Operation& operation);
  absl::Status Begin(const Operation& operation, Slot& slot);
  absl::Status Finish(const Operation& operation, Slot& slot);
  absl::Status Enqueue(const Operation& operation, const void* from, void* to, size_t bytes);
  absl::Status AwaitNccl(ncclResult_t result);
  absl::Status AwaitGpu(cudaEvent_t event);
  absl::Status CheckWait() const;
  absl::Status ToStatus(ncclResult_t result) const;
  absl::StatusOr<bool> IsOnGpu(const Operation& operation) const;
  void Count(const Operation& operation);
  void End(bool in_peace);

  const GpuGroupOptions options_;
  const Interrupt& interrupt_;
  std::unique_ptr<Resources> resources_;  // null: it has ended
  absl::Status status_;                   // why
  std::atomic<bool> is_stopped_ = false;
  bool uses_callers_memory_ = false;  // of the GPU, rather than the slots
  TimePoint start_, deadline_;        // of what is under way
  Traffic traffic_;
};

absl::Status NcclBackend::Meet(const GpuGroupId& id) {
  start_ = Now();
  deadline_ = start_ + options_.connect_timeout;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId unique_id;
  std::memcpy(&unique_id, id.data(), sizeof(unique_id));
  const ncclResult_t result =
      resources_->nccl.comm_init_rank_config(&resources_->communicator, size(), unique_id, rank(), &config);
  absl::Status status = AwaitNccl(result);
  // What is connected at the first operation only is part of meeting, too.
  if (status.ok()) status = Do(Barrier());
  if (!status.ok()) End(/*in_peace=*/false);
  return status;
}

absl::Status NcclBackend::Perform(const Operation& operation) {
  if (resources_ == nullptr) return status_;
  start_ = Now();
  deadline_ = start_ + options_.operation_timeout;
  const auto do_it = [&]() -> absl::Status {
    MUSTER_RETURN_IF_ERROR(CheckWait());
    MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(resources_->device));  // of this thread
    return Do(operation);
  };
  status_ = do_it();
  if (status_.ok()) {
    Count(operation);
  } else {
    End(/*in_peace=*/false);
  }
  return status_;
}

absl::Status NcclBackend::Do(const Operation& operation) {
  Slot& slot = resources_->slots[0];
  if (operation.kind == Operation::Kind::kBarrier) {
    const Operation sum = {.kind = Operation::Kind::kAllReduce};
    MUSTER_RETURN_IF_ERROR(Enqueue(sum, slot.device.data(), slot.device.data(), sizeof(float)));
  } else if (operation.output.empty()) {
    return absl::OkStatus();
  } else {
    MUSTER_ASSIGN_OR_RETURN(const bool is_on_gpu, IsOnGpu(operation));
    if (!is_on_gpu) return DoInPieces(operation);
    uses_callers_memory_ = true;
    const size_t bytes =
        operation.kind == Operation::Kind::kAllGather ? operation.input.size() : operation.output.size();
    MUSTER_RETURN_IF_ERROR(Enqueue(operation, operation.input.data(), operation.output.data(), bytes));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.is_done.get(), resources_->stream.get()));
  return AwaitGpu(slot.is_done.get());
}

absl::Status NcclBackend::DoInPieces(const Operation& operation) {
  // A slot has room for what all ranks gather.
  const size_t piece = operation.kind == Operation::Kind::kAllGather
                           ? kSlotBytes / options_.names.size() / kAlignment * kAlignment
                           : kSlotBytes;
  int number = 0;
  for (size_t begin = 0; begin < operation.input.size(); begin += piece) {
    Slot& slot = resources_->slots[number++ % 2];
    MUSTER_RETURN_IF_ERROR(Finish(operation, slot));
    slot.begin = begin;
    slot.bytes = std::min(piece, operation.input.size() - begin);
    MUSTER_RETURN_IF_ERROR(Begin(operation, slot));
  }
  for (Slot& slot : resources_->slots) MUSTER_RETURN_IF_ERROR(Finish(operation, slot));
  return absl::OkStatus();
}

absl::Status NcclBackend::Begin(const Operation& operation, Slot& slot) {
  const bool gathers = operation.kind == Operation::Kind::kAllGather;
  const bool is_root = operation.kind == Operation::Kind::kBroadcast && operation.root == rank();
  const bool sends = operation.kind != Operation::Kind::kBroadcast || is_root;
  std::byte* const host = slot.host.data() + (gathers ? rank() * slot.bytes : 0);
  std::byte* const device = slot.device.data() + (gathers ? rank() * slot.bytes : 0);
  cudaStream_t const stream = resources_->stream.get();
  if (sends) {
    std::memcpy(host, operation.input.data() + slot.begin, slot.bytes);
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(device, host, slot.bytes, cudaMemcpyHostToDevice, stream));
  }
  MUSTER_RETURN_IF_ERROR(Enqueue(operation, device, slot.device.data(), slot.bytes));
  if (!is_root) {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(slot.host.data(), slot.device.data(),
                                                gathers ? size() * slot.bytes : slot.bytes,
                                                cudaMemcpyDeviceToHost, stream));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.is_done.get(), stream));
  return absl::OkStatus();
}

absl::Status NcclBackend::Finish(const Operation& operation, Slot& slot) {
  if (slot.bytes == 0) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(AwaitGpu(slot.is_done.get()));
  std::byte* const output = operation.output.data() + slot.begin;
  if (operation.kind == Operation::Kind::kAllGather) {
    for (int i = 0; i < size(); ++i) {
      std::memcpy(output + i * operation.input.size(), slot.host.data() + i * slot.bytes, slot.bytes);
    }
  } else if (operation.kind == Operation::Kind::kAllReduce || operation.root != rank()) {
    std::memcpy(output, slot.host.data(), slot.bytes);
  }
  slot.bytes = 0;
  return absl::OkStatus();
}

// Between memory of the GPU; `bytes` of one rank. Once NCCL has put it on the stream, what follows there
// comes behind it.
absl::Status NcclBackend::Enqueue(const Operation& operation, const void* from, void* to, size_t bytes) {
  const NcclLibrary& nccl = resources_->nccl;
  ncclComm_t const communicator = resources_->communicator;
  cudaStream_t const stream = resources_->stream.get();
  switch (operation.kind) {
    case Operation::Kind::kAllReduce:
      return AwaitNccl(
          nccl.all_reduce(from, to, bytes / sizeof(float), ncclFloat32, ncclSum, communicator, stream));
    case Operation::Kind::kBroadcast:
      return AwaitNccl(nccl.broadcast(from, to, bytes, ncclUint8, operation.root, communicator, stream));
    case Operation::Kind::kAllGather:
      return AwaitNccl(nccl.all_gather(from, to, bytes, ncclUint8, communicator, stream));
    case Operation::Kind::kBarrier:
      break;
  }
  return Internal("an operation of kind %d", static_cast<int>(operation.kind));
}

absl::Status NcclBackend::AwaitNccl(ncclResult_t result) {
  Pause pause;
  while (result == ncclInProgress) {
    MUSTER_RETURN_IF_ERROR(CheckWait());
    pause();
    const ncclResult_t asked = resources_->nccl.comm_get_async_error(resources_->communicator, &result);
    if (asked != ncclSuccess) result = asked;
  }
  return ToStatus(result);
}

absl::Status NcclBackend::AwaitGpu(cudaEvent_t event) {
  Pause pause;
  while (true) {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return absl::OkStatus();
    if (error != cudaErrorNotReady) return cuda::ToStatus(error, "an operation by NCCL");
    (void)cudaGetLastError();  // not ready would be the next call's error
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = resources_->nccl.comm_get_async_error(resources_->communicator, &state);
    if (asked != ncclSuccess) return ToStatus(asked);
    if (state != ncclInProgress) MUSTER_RETURN_IF_ERROR(ToStatus(state));
    MUSTER_RETURN_IF_ERROR(CheckWait());
    pause();
  }
}

absl::Status NcclBackend::CheckWait() const {
  if (is_stopped_ || interrupt_.is_set()) return Cancelled("the group is over");
  const TimePoint now = Now();
  if (now < deadline_) return absl::OkStatus();
  std::vector<std::string> others = options_.names;
  others.erase(others.begin() + rank());
  return DeadlineExceeded("NCCL has waited for %.1f s%s%s", ToSeconds(now - start_),
                          others.empty()       ? ""
                          : others.size() == 1 ? " for "
                                               : " for one or more of ",
                          absl::StrJoin(others, ", "));
}

absl::Status NcclBackend::ToStatus(ncclResult_t result) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrFormat("NCCL: %s (%s); NCCL_DEBUG=INFO says more", resources_->nccl.get_error_string(result),
                      resources_->nccl.get_last_error(resources_->communicator));
  // Of sockets, and of what came through them.
  if (result == ncclRemoteError || result == ncclSystemError) return Unavailable("%s", text);
  return Internal("%s", text);
}

absl::StatusOr<bool> NcclBackend::IsOnGpu(const Operation& operation) const {
  cudaPointerAttributes attributes{};
  MUSTER_CUDA_RETURN_IF_ERROR(cudaPointerGetAttributes(&attributes, operation.output.data()));
  return attributes.type == cudaMemoryTypeDevice && attributes.device == resources_->device;
}

void NcclBackend::Count(const Operation& operation) {
  const uint64_t others = options_.names.size() - 1;
  const uint64_t bytes = operation.input.size();
  switch (operation.kind) {
    case Operation::Kind::kAllReduce:
      traffic_.sent_bytes += 2 * others * bytes / options_.names.size();
      traffic_.received_bytes += 2 * others * bytes / options_.names.size();
      return;
    case Operation::Kind::kBroadcast:
      // The one before the root has nobody to pass it on to.
      if (others > 0 && (rank() + 1) % size() != operation.root) traffic_.sent_bytes += bytes;
      if (rank() != operation.root) traffic_.received_bytes += bytes;
      return;
    case Operation::Kind::kAllGather:
      traffic_.sent_bytes += others * bytes;
      traffic_.received_bytes += others * bytes;
      return;
    case Operation::Kind::kBarrier:
      return;
  }
}

// None of the calls that end a communicator, and that free memory which a kernel uses, knows a deadline. So
// another thread makes them; if it takes too long, it keeps what it holds, and nobody waits for it.
void NcclBackend::End(bool in_peace) {
  if (resources_ == nullptr) return;
  std::promise<void> promise;
  const std::future<void> has_ended = promise.get_future();
  std::thread([resources = std::move(resources_), in_peace, promise = std::move(promise)]() mutable {
    EndCommunicator(*resources, in_peace);
    resources.reset();
    promise.set_value();
  }).detach();
  // In peace nothing is under way. Else it might change gradients of later steps, which nobody would notice.
  const bool keeps_memory = uses_callers_memory_ && !in_peace;
  const auto outcome = has_ended.wait_for(keeps_memory ? kMemoryTimeout : kEndTimeout);
  MUSTER_CHECK(outcome == std::future_status::ready || !keeps_memory,
               "NCCL does not let go of the GPU's memory");
}

class Nccl final : public GpuCollectives {
 public:
  Nccl(NcclLibrary nccl, int device, std::string gpu) : nccl_(nccl), device_(device), gpu_(std::move(gpu)) {}

  const std::string& gpu() const override { return gpu_; }

  absl::StatusOr<GpuGroupId> MakeGroupId() override {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ncclUniqueId unique_id;
    const ncclResult_t result = nccl_.get_unique_id(&unique_id);
    if (result != ncclSuccess) {
      return Internal("NCCL makes no id for a group: %s (%s)", nccl_.get_error_string(result),
                      nccl_.get_last_error(nullptr));
    }
    GpuGroupId id;
    std::memcpy(id.data(), &unique_id, sizeof(unique_id));
    return id;
  }

  absl::StatusOr<std::unique_ptr<CollectiveBackend>> Meet(const GpuGroupOptions& options,
                                                          const GpuGroupId& id,
                                                          const Interrupt& interrupt) override {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    auto resources = std::make_unique<Resources>();
    resources->nccl = nccl_;
    resources->device = device_;
    MUSTER_ASSIGN_OR_RETURN(resources->stream, cuda::MakeStream());
    for (Slot& slot : resources->slots) {
      MUSTER_ASSIGN_OR_RETURN(slot.host, cuda::PinnedArray<std::byte>::Create(kSlotBytes));
      MUSTER_ASSIGN_OR_RETURN(slot.device, cuda::DeviceArray<std::byte>::Create(kSlotBytes));
      MUSTER_ASSIGN_OR_RETURN(slot.is_done, cuda::MakeEvent(/*timed=*/false));
    }
    auto backend = std::make_unique<NcclBackend>(options, std::move(resources), interrupt);
    MUSTER_RETURN_IF_ERROR(backend->Meet(id));
    return backend;
  }

 private:
  const NcclLibrary nccl_;
  const int device_;
  const std::string gpu_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuCollectives>> MakeNccl(int device) {
  MUSTER_ASSIGN_OR_RETURN(const NcclLibrary nccl, LoadNccl());
  char gpu[32] = {};
  MUSTER_CUDA_RETURN_IF_ERROR(cudaDeviceGetPCIBusId(gpu, sizeof(gpu), device));
  return std::make_unique<Nccl>(nccl, device, gpu);
}

}  // namespace muster
