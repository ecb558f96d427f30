// ReplicaCheckpoints: checkpoints of an allreduce job. All workers have the same parameters and optimizer's
// state: one of them writes these down, as the only parameter server of a job would, and whoever starts when
// none is left that has them goes on from there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpointer.h"

namespace muster {

struct ReplicaCheckpointsOptions {
  std::filesystem::path folder;  // this worker's, or of all together
  uint64_t every = 1000;         // steps
  int keep = 3;                  // checkpoints
  std::string name;              // for its log: "worker:0"
  ps::JobConfig config;          // a checkpoint of a job that differs is refused
  FileOperationHook hook;        // for tests
};

/// All of it that updates are made from. `parameters` and each of `slots`: [layout.size()].
struct ReplicaState {
  uint64_t step = 0;
  std::vector<float> parameters;
  std::vector<std::vector<float>> slots;  // of LayoutOptimizer
};

/// One thread at a time. Files are written in the background by a thread of its own; what fails there is
/// logged and is no checkpoint, and training goes on.
class ReplicaCheckpoints {
 public:
  explicit ReplicaCheckpoints(ReplicaCheckpointsOptions options);
  ~ReplicaCheckpoints();

  /// The newest checkpoint that is whole, and a number that tells it from others of its step; nothing: there
  /// is none. FailedPrecondition or DataLoss: there are some, of which none can be used, or of another job,
  /// with the difference; then nothing is written over them either.
  struct Restored {
    ReplicaState state;
    uint64_t digest = 0;
  };
  absl::StatusOr<std::optional<Restored>> ReadNewest();

  /// This worker writes those of the group of this number, which goes on from `step`. Later ones in the
  /// folder are what will be done again.
  void BeginGroup(uint64_t number, uint64_t step);

  /// After BeginGroup: whether the parameters of this step are to be written.
  bool IsDue(uint64_t step) const { return checkpointer_ != nullptr && step % options_.every == 0; }
  void Write(ReplicaState state);

 private:
  void CommitWritten();

  const ReplicaCheckpointsOptions options_;
  uint64_t group_ = 0;  // number
  absl::Status opened_;
  std::unique_ptr<Checkpointer> checkpointer_;  // null: the folder cannot be used, for opened_
};

}  // namespace muster
