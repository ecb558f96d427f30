// ReplicatedParameters: every worker has all dense parameters and the optimizer's state, and makes the same
// update from the sum of all gradients.
//
// A worker that is lost, or comes back, ends the group (IsGoneBack). Start makes the next one of those who
// are there, and whoever lacks the parameters of the last step gets them, with the optimizer's state, from
// one who has them. Until all of that has come it keeps what it had: the source may be lost in between.
// Where nobody is left who has any, they are those of the newest checkpoint of one of these workers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "cluster/tls_identity.h"
#include "collective/elastic_group.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "ps/client.h"
#include "trainer/flat_buffer.h"
#include "trainer/gradient_buckets.h"
#include "trainer/models/replica.h"
#include "trainer/replica_checkpoints.h"

namespace muster {

struct AllReduceOptions {
  ClusterSpec cluster;
  std::shared_ptr<const ClusterView> view;  // null: all stay where `cluster` says
  TaskId task;
  uint64_t generation = 0;
  uint64_t incarnation = 0;
  std::string bind_host;  // where this task listens; empty: at its address in the cluster
  std::optional<TlsIdentity> tls;
  bool shares_memory = true;  // among the tasks of a host
  GpuPreference gpus;
  // Where parameters, optimizers and gradients are, and are added up; it lives longer. Null: with the host.
  Replica* replica = nullptr;
  std::shared_ptr<ReplicaCheckpoints> checkpoints;  // null: there are none
  uint64_t fingerprint = 0;                         // of all that workers have to agree on
  std::optional<int> first_workers;                 // as RendezvousOptions has ranks
  std::optional<int> min_workers;        // below that they wait for the others; unset: as RendezvousOptions
  std::optional<int64_t> bucket_floats;  // unset: whatever turns out to be fastest
  Duration connect_timeout = std::chrono::minutes(5);     // until all have come
  Duration operation_timeout = std::chrono::minutes(10);  // how long a step, or too few, wait for anybody
};

/// Of the gradients of all workers.
struct GradientSums {
  uint64_t samples = 0;
  double loss_sum = 0;
  Duration wait{};  // after the gradient was there
  double mean_loss() const { return loss_sum / static_cast<double>(samples); }
};

/// One thread at a time. Everything that waits may fail with IsGoneBack; then Start.
class ReplicatedParameters {
 public:
  /// Listens at once. AlreadyExists: the port is taken; fails as LayoutOptimizer::Create does.
  static absl::StatusOr<std::unique_ptr<ReplicatedParameters>> Create(
      const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
      const AllReduceOptions& options);

  /// Joins the next group, and writes the parameters of the last step of any worker in it, or of a
  /// checkpoint, or initial ones, to `parameters` [layout.size()], which stay in this place.
  /// FailedPrecondition: checkpoints that cannot be used, where there is nothing else.
  absl::StatusOr<GroupPlace> Start(std::span<float> parameters);

  /// Updates that the parameters have had. Unset: this worker has none.
  std::optional<uint64_t> step() const;

  /// Where gradients are computed: [size], `size` at least layout.size(), until the next call. What a replica
  /// on a device has of it is only written here where the group adds it up here, or where it is not finite.
  std::span<float> MakeGradientBuffer(int64_t size);

  /// The gradient there is final from float `begin` on: what can be reduced already is, in the background.
  void GradientReady(int64_t begin);

  /// Sums the gradients of all workers in that buffer. `contribution` is of it, and what lies behind the
  /// layout is checked, too: a gradient or loss that is not finite fails this on all workers, before
  /// anything is updated: InvalidArgument where it is, FailedPrecondition with the name of that worker on
  /// the others.
  absl::StatusOr<GradientSums> Reduce(const Contribution& contribution);

  /// There are sums that no update was made from, and nothing was written over them.
  bool has_sums() const { return sums_.has_value(); }

  /// The update from these sums.
  absl::Status Update();

  /// `own` of all workers of the group, by position.
  absl::StatusOr<std::vector<uint64_t>> Gather(uint64_t own);

  /// Writes the parameters, and whether all workers have the same bits: the last thing that they do together.
  /// Internal: who has others.
  absl::Status CheckAgreement();

  /// OK, or IsGoneBack: the group is over, though nobody here waits for it.
  absl::Status group_status() { return group_.status(); }

  /// No worker can go on, because of this one: all fail with FailedPrecondition, and this text.
  void Fail(const std::string& why) { group_.Fail(why); }

  /// Rank 0: says that all is done, in `step` steps. Others: wait until it has.
  absl::Status Conclude(uint64_t step) { return group_.Finish(step); }

  /// Of a worker whose part is done, from a new process: IsGoneBack if not all is done.
  absl::Status AwaitConclusion(uint64_t step);

  Traffic traffic() const { return group_.traffic(); }

 private:
  ReplicatedParameters(const ParameterLayout& layout, std::unique_ptr<Replica> host, uint64_t seed,
                       const AllReduceOptions& options, ElasticGroupOptions group,
                       std::unique_ptr<PeerListener> listener);

  absl::Status Restore();
  absl::Status BeginAnew();
  absl::Status CopyState();
  absl::Status SaveIfDue();
  std::span<float> sums();
  bool AddsUpOnDevice() const;
  bool IsFinite(LayoutRange bucket);
  absl::StatusOr<std::span<float>> ToAddUp(LayoutRange bucket);
  absl::Status StartBuckets(int64_t begin);
  absl::Status NotFinite();
  void Tune(float seconds_of_step_before);

  const ParameterLayout layout_;
  const uint64_t seed_;
  const std::optional<int64_t> bucket_floats_;
  const int rank_;
  const std::unique_ptr<Replica> host_;  // unless another one is given
  Replica* const replica_;
  const bool is_started_again_;
  const std::shared_ptr<ReplicaCheckpoints> checkpoints_;  // null: there are none
  absl::Status restored_;                                  // why none of them can be used
  std::optional<FlatBuffer> buffer_;                       // a header, and the gradient
  std::span<float> parameters_;                            // the caller's
  std::optional<ParametersVersion> version_;               // of the replica
  GroupPlace place_;
  BucketTuner tuner_;
  size_t started_ = 0;            // buckets of this step
  std::optional<Ticket> ticket_;  // of the last of them
  absl::Status gradient_status_;  // as far as it was looked at; InvalidArgument: it is not finite
  std::optional<GradientSums> sums_;
  std::span<const float> summed_;  // where they lie
  TimePoint step_end_;             // of the step before
  float step_seconds_ = 0;         // that it took
  ElasticGroup group_;             // the last member: what it does uses the others
};

}  // namespace muster
