#include "collective/fake_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "collective/nccl_library.h"
#include "kernels/cuda/fake_cuda.h"

namespace muster {
namespace {

std::atomic<int> failing_rank = -1;
std::atomic<ncclResult_t> failure = ncclSuccess;
std::atomic<int> communicators = 0;

struct Part {
  Operation::Kind kind = Operation::Kind::kBarrier;
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
  int root = 0;
};

// The ranks of one id.
class Meeting {
 public:
  void Come(int size) {
    size_ = size;
    ++come_;
  }
  bool is_complete() const { return come_ == size_; }
  void Leave() { ++left_; }
  bool have_all_left() const { return left_ == size_; }

  // The last to come does it for all. Until then, or as long as nobody has aborted.
  void Do(int rank, const Part& part, const std::atomic<bool>& is_aborted) {
    std::unique_lock lock(mutex_);
    parts_[rank] = part;
    const uint64_t round = round_;
    if (static_cast<int>(parts_.size()) == size_) {
      DoForAll();
      parts_.clear();
      ++round_;
      has_changed_.notify_all();
      return;
    }
    while (round_ == round && !is_aborted) has_changed_.wait_for(lock, std::chrono::milliseconds(1));
    if (round_ != round) return;
    parts_.erase(rank);
    // As with the real one, nothing is known of what it leaves; nor is it always a number that stands out.
    std::memset(part.to, 0x3f, part.bytes);
  }

 private:
  void DoForAll() {
    const Part& first = parts_.begin()->second;
    for (const auto& [rank, part] : parts_) {
      MUSTER_CHECK(part.kind == first.kind && part.bytes == first.bytes && part.root == first.root);
    }
    std::vector<std::byte> result(first.bytes);
    if (first.kind == Operation::Kind::kAllReduce) {
      for (const auto& [rank, part] : parts_) {
        auto* const sum = reinterpret_cast<float*>(result.data());
        const auto* const values = static_cast<const float*>(part.from);
        for (size_t i = 0; i < part.bytes / sizeof(float); ++i)
          sum[i] = rank == 0 ? values[i] : sum[i] + values[i];
      }
    } else if (first.kind == Operation::Kind::kBroadcast) {
      std::memcpy(result.data(), parts_.at(first.root).from, first.bytes);
    } else {
      result.resize(first.bytes * size_);
      for (const auto& [rank, part] : parts_) {
        std::memcpy(result.data() + rank * part.bytes, part.from, part.bytes);
      }
    }
    for (const auto& [rank, part] : parts_) std::memcpy(part.to, result.data(), result.size());
  }

  std::atomic<int> size_ = -1, come_ = 0, left_ = 0;
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::map<int, Part> parts_;  // by rank
  uint64_t round_ = 0;
};

std::shared_ptr<Meeting> MeetingOf(const ncclUniqueId& id) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Meeting>> meetings;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Meeting>& known = meetings[std::string(id.internal, sizeof(id.internal))];
  std::shared_ptr<Meeting> meeting = known.lock();
  if (meeting == nullptr) known = meeting = std::make_shared<Meeting>();
  return meeting;
}

}  // namespace
}  // namespace muster

struct ncclComm {
  std::shared_ptr<muster::Meeting> meeting;
  int rank = 0;
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);
  enum class State { kMeeting, kReady, kEnqueuing, kFinalizing } state = State::kMeeting;
  ncclResult_t result = ncclSuccess;  // of what was enqueued last
};

namespace muster {
namespace {

using State = ncclComm::State;

ncclResult_t GetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t GetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 1;
  *id = {};
  const int number = next++;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t CommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  MUSTER_CHECK(config->blocking == 0);
  *comm = new ncclComm{.meeting = MeetingOf(id), .rank = rank};
  (*comm)->meeting->Come(size);
  ++communicators;
  return ncclInProgress;
}

// What has begun is done at the first question, so that none is left out.
ncclResult_t CommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const bool is_done = comm->state == State::kMeeting      ? comm->meeting->is_complete()
                       : comm->state == State::kFinalizing ? comm->meeting->have_all_left()
                                                           : true;
  if (is_done && comm->state != State::kFinalizing) comm->state = State::kReady;
  *result = is_done ? comm->result : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t CommFinalize(ncclComm_t comm) {
  MUSTER_CHECK(comm->state == State::kReady);
  comm->state = State::kFinalizing;
  comm->meeting->Leave();
  return ncclInProgress;
}

ncclResult_t CommDestroy(ncclComm_t comm) {
  MUSTER_CHECK(comm->state == State::kFinalizing && comm->meeting->have_all_left());
  delete comm;
  --communicators;
  return ncclSuccess;
}

ncclResult_t CommAbort(ncclComm_t comm) {
  *comm->is_aborted = true;
  delete comm;
  --communicators;
  return ncclSuccess;
}

const char* GetErrorString(ncclResult_t) { return "made up"; }
const char* GetLastError(ncclComm_t) { return "by a test"; }

ncclResult_t Begin(ncclComm_t comm, cudaStream_t stream, const Part& part) {
  if (comm->state != State::kReady) return ncclInvalidArgument;  // as the real one's "before previous ..."
  comm->state = State::kEnqueuing;
  if (comm->rank == failing_rank) comm->result = failure;
  if (comm->result != ncclSuccess) return ncclInProgress;
  const cudaError_t launched =
      cuda::LaunchFake(stream, [meeting = comm->meeting, rank = comm->rank, is_aborted = comm->is_aborted,
                                part] { meeting->Do(rank, part, *is_aborted); });
  return launched == cudaSuccess ? ncclInProgress : ncclUnhandledCudaError;
}

ncclResult_t AllReduceFloats(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream) {
  MUSTER_CHECK(type == ncclFloat32 && op == ncclSum);
  return Begin(comm, stream, {Operation::Kind::kAllReduce, from, to, count * sizeof(float)});
}

ncclResult_t BroadcastBytes(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream) {
  MUSTER_CHECK(type == ncclUint8);
  return Begin(comm, stream, {Operation::Kind::kBroadcast, from, to, count, root});
}

ncclResult_t AllGatherBytes(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  MUSTER_CHECK(type == ncclUint8);
  return Begin(comm, stream, {Operation::Kind::kAllGather, from, to, count});
}

}  // namespace

void FailFakeNccl(int rank, ncclResult_t result) {
  failing_rank = result == ncclSuccess ? -1 : rank;
  failure = result;
}

int FakeCommunicators() { return communicators; }

absl::StatusOr<NcclLibrary> LoadNccl(const std::string&) {
  return NcclLibrary{.get_version = GetVersion,
                     .get_unique_id = GetUniqueId,
                     .comm_init_rank_config = CommInitRankConfig,
                     .comm_get_async_error = CommGetAsyncError,
                     .comm_finalize = CommFinalize,
                     .comm_destroy = CommDestroy,
                     .comm_abort = CommAbort,
                     .get_error_string = GetErrorString,
                     .get_last_error = GetLastError,
                     .all_reduce = AllReduceFloats,
                     .broadcast = BroadcastBytes,
                     .all_gather = AllGatherBytes};
}

}  // namespace muster
