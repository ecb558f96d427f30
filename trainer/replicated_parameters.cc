#include "trainer/replicated_parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/crc32c.h"
#include "base/logging.h"
#include "kernels/elementwise.h"
#include "trainer/host_replica.h"

namespace muster {
namespace {

// What travels in front of the gradient, summed like it.
struct Header {
  float samples = 0;
  float loss_sum = 0;
  float step_seconds = 0;  // that the step before took
  std::array<float, kBlockFloats - 3> padding = {};
};
static_assert(sizeof(Header) == kBlockFloats * sizeof(float));

ElasticGroupOptions GroupOptions(const AllReduceOptions& options) {
  ElasticGroupOptions group{.all = {.rank = RankOf(options.cluster, options.task),
                                    .generation = options.generation,
                                    .fingerprint = options.fingerprint},
                            .view = options.view,
                            .bind_host = options.bind_host,
                            .incarnation = options.incarnation,
                            .min_ranks = options.min_workers,
                            .first_ranks = options.first_workers,
                            .connect_timeout = options.connect_timeout,
                            .operation_timeout = options.operation_timeout,
                            .shares_memory = options.shares_memory,
                            .gpus = options.gpus};
  for (int rank = 0; rank < options.cluster.rank_count(); ++rank) {
    const TaskId task = TaskOfRank(options.cluster, rank);
    group.all.members.push_back({task, options.cluster.addresses(task.role)[task.index]});
  }
  return group;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicatedParameters>> ReplicatedParameters::Create(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options) {
  ElasticGroupOptions group = GroupOptions(options);
  std::shared_ptr<TlsContext> tls;
  if (options.tls) {
    MUSTER_ASSIGN_OR_RETURN(tls, TlsContext::Create(*options.tls));
  }
  const std::string& own = group.all.members[group.all.rank].address;
  MUSTER_ASSIGN_OR_RETURN(auto listener,
                          PeerListener::Listen(ListeningAddress(own, options.bind_host), std::move(tls)));
  std::unique_ptr<Replica> host;
  if (options.replica == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                            LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
    host = std::make_unique<HostReplica>(std::move(optimizer));
  }
  return std::unique_ptr<ReplicatedParameters>(new ReplicatedParameters(
      layout, std::move(host), seed, options, std::move(group), std::move(listener)));
}

ReplicatedParameters::ReplicatedParameters(const ParameterLayout& layout, std::unique_ptr<Replica> host,
                                           uint64_t seed, const AllReduceOptions& options,
                                           ElasticGroupOptions group, std::unique_ptr<PeerListener> listener)
    : layout_(layout),
      seed_(seed),
      bucket_floats_(options.bucket_floats),
      rank_(group.all.rank),
      host_(std::move(host)),
      replica_(host_ != nullptr ? host_.get() : options.replica),
      is_started_again_(options.incarnation > 1),
      checkpoints_(options.checkpoints),
      tuner_(kBlockFloats + layout.size(), bucket_floats_),
      group_(std::move(group), std::move(listener)) {}

absl::StatusOr<GroupPlace> ReplicatedParameters::Start(std::span<float> parameters) {
  parameters_ = parameters;
  if (checkpoints_ != nullptr && !version_) MUSTER_RETURN_IF_ERROR(Restore());
  MUSTER_ASSIGN_OR_RETURN(place_, group_.Join(version_));
  if (place_.concluded) return place_;
  if (place_.source) {
    MUSTER_RETURN_IF_ERROR(CopyState());
  } else if (!version_) {
    MUSTER_RETURN_IF_ERROR(BeginAnew());
  }
  version_ = {.step = version_->step, .group = place_.number};
  if (checkpoints_ != nullptr && place_.position == 0) {
    checkpoints_->BeginGroup(place_.number, version_->step);
  }
  // What was fastest with others, or elsewhere, need not be here; and newcomers have tried out nothing.
  tuner_ = BucketTuner(kBlockFloats + layout_.size(), bucket_floats_);
  step_end_ = Now();
  step_seconds_ = 0;
  started_ = 0;
  ticket_.reset();
  gradient_status_ = absl::OkStatus();
  return place_;
}

// From a checkpoint, if there is one. What is wrong with those that there are matters only if nobody has any
// parameters.
absl::Status ReplicatedParameters::Restore() {
  auto read = checkpoints_->ReadNewest();
  restored_ = read.status();
  if (!read.ok() || !read->has_value()) return absl::OkStatus();
  const ReplicaState& state = (*read)->state;
  MUSTER_CHECK(state.parameters.size() == parameters_.size() &&
               static_cast<int>(state.slots.size()) == replica_->slot_count());
  std::copy(state.parameters.begin(), state.parameters.end(), parameters_.begin());
  MUSTER_RETURN_IF_ERROR(replica_->Load(parameters_));
  for (int slot = 0; slot < replica_->slot_count(); ++slot) {
    MUSTER_RETURN_IF_ERROR(replica_->SetSlot(slot, state.slots[slot]));
  }
  replica_->SkipTo(state.step);
  version_ = {.is_live = false, .step = state.step, .group = (*read)->digest};
  spdlog::info("there is a checkpoint of step {}", state.step);
  return absl::OkStatus();
}

// Nobody in the group has parameters.
absl::Status ReplicatedParameters::BeginAnew() {
  if (!restored_.ok()) {
    group_.Fail(std::string(restored_.message()));
    return restored_;
  }
  if (is_started_again_) spdlog::warn("no worker has any parameters left: training begins anew, at step 0");
  layout_.Initialize(seed_, {0, layout_.size()}, parameters_);
  MUSTER_RETURN_IF_ERROR(replica_->Load(parameters_));
  version_ = {.step = 0};
  return absl::OkStatus();
}

// Parameters and the optimizer's slots, of the one who has made the most steps. Whoever has some keeps them
// until all has come: with the source, those that it would have sent may be gone.
absl::Status ReplicatedParameters::CopyState() {
  const bool is_source = place_.source == place_.position;
  uint64_t step = is_source ? version_->step : 0;
  std::vector<float> received(is_source ? 0 : layout_.size());
  std::vector<std::vector<float>> slots(replica_->slot_count(), std::vector<float>(layout_.size()));
  const auto copy = [&](auto values) {
    return group_.Run(Broadcast(std::as_writable_bytes(values), *place_.source));
  };
  if (is_source) MUSTER_RETURN_IF_ERROR(replica_->Store(parameters_));
  MUSTER_RETURN_IF_ERROR(copy(std::span(&step, 1)));
  MUSTER_RETURN_IF_ERROR(copy(is_source ? parameters_ : std::span(received)));
  for (int slot = 0; slot < replica_->slot_count(); ++slot) {
    if (is_source) MUSTER_RETURN_IF_ERROR(replica_->CopySlot(slot, slots[slot]));
    MUSTER_RETURN_IF_ERROR(copy(std::span(slots[slot])));
  }
  if (is_source) return absl::OkStatus();
  std::copy(received.begin(), received.end(), parameters_.begin());
  MUSTER_RETURN_IF_ERROR(replica_->Load(parameters_));
  for (int slot = 0; slot < replica_->slot_count(); ++slot) {
    MUSTER_RETURN_IF_ERROR(replica_->SetSlot(slot, slots[slot]));
  }
  replica_->SkipTo(step);
  version_ = {.step = step};
  sums_.reset();
  return absl::OkStatus();
}

std::optional<uint64_t> ReplicatedParameters::step() const {
  return version_ ? std::optional(version_->step) : std::nullopt;
}

std::span<float> ReplicatedParameters::MakeGradientBuffer(int64_t size) {
  MUSTER_CHECK(size >= layout_.size());
  sums_.reset();
  return buffer_.emplace(kBlockFloats + size).values().subspan(kBlockFloats);
}

std::span<float> ReplicatedParameters::sums() {
  return buffer_->values().first(kBlockFloats + layout_.size());
}

void ReplicatedParameters::GradientReady(int64_t begin) {
  sums_.reset();
  // The last bucket has the header, and is reduced by this thread, which has nothing else to do then.
  const int64_t reducible = std::max(kBlockFloats + begin, tuner_.buckets().back().end);
  if (gradient_status_.ok()) gradient_status_ = StartBuckets(reducible);
}

// One rank alone has nothing to add.
bool ReplicatedParameters::AddsUpOnDevice() const {
  return !replica_->gradient().empty() && (group_.is_by_gpus() || place_.ranks.size() == 1);
}

bool ReplicatedParameters::IsFinite(LayoutRange bucket) {
  if (!replica_->gradient().empty()) return replica_->is_finite();
  return AllFinite(sums().subspan(bucket.begin, bucket.size()));
}

// The memory in which the group adds up this part of the sums. On a device it has no header.
absl::StatusOr<std::span<float>> ReplicatedParameters::ToAddUp(LayoutRange bucket) {
  const std::span<float> on_host = sums().subspan(bucket.begin, bucket.size());
  const std::span<float> gradient = replica_->gradient();
  if (gradient.empty()) return on_host;
  const LayoutRange part{std::max(bucket.begin - kBlockFloats, int64_t{0}), bucket.end - kBlockFloats};
  if (AddsUpOnDevice()) return gradient.subspan(part.begin, part.size());
  MUSTER_RETURN_IF_ERROR(replica_->ReadGradient(part, on_host.last(part.size())));
  return on_host;
}

// Those that lie at or behind `begin` of the sums. InvalidArgument: at a number that is not finite; that one,
// and what comes after it, is not sent.
absl::Status ReplicatedParameters::StartBuckets(int64_t begin) {
  const std::vector<LayoutRange>& buckets = tuner_.buckets();
  while (started_ < buckets.size() && buckets[started_].begin >= begin) {
    if (!IsFinite(buckets[started_])) return InvalidArgument("the gradient is not finite");
    MUSTER_ASSIGN_OR_RETURN(const std::span<float> bucket, ToAddUp(buckets[started_]));
    ticket_ = group_.Start(AllReduce(bucket, bucket));
    ++started_;
  }
  return absl::OkStatus();
}

absl::StatusOr<GradientSums> ReplicatedParameters::Reduce(const Contribution& contribution) {
  const std::span<float> all = sums();
  MUSTER_CHECK(contribution.gradient.data() == all.data() + kBlockFloats);
  const LayoutRange last = tuner_.buckets().back();
  const std::span<float> header_floats = all.first(kBlockFloats);
  Header& header = *reinterpret_cast<Header*>(all.data());
  header = {.samples = static_cast<float>(contribution.samples),
            .loss_sum = static_cast<float>(contribution.loss_sum),
            .step_seconds = step_seconds_};
  GradientReady(0);
  const auto behind = contribution.gradient.subspan(layout_.size());
  if (absl::IsInvalidArgument(gradient_status_) || !IsFinite(last) || !AllFinite(header_floats) ||
      !AllFinite(behind)) {
    return NotFinite();
  }
  MUSTER_RETURN_IF_ERROR(gradient_status_);
  const TimePoint start = Now();
  MUSTER_ASSIGN_OR_RETURN(const std::span<float> values, ToAddUp(last));
  // As one of the queue, it ends after all that were started, and fails if they do.
  MUSTER_RETURN_IF_ERROR(group_.Run(AllReduce(values, values)));
  if (AddsUpOnDevice()) MUSTER_RETURN_IF_ERROR(group_.Run(AllReduce(header_floats, header_floats)));
  summed_ = AddsUpOnDevice() ? replica_->gradient() : all.subspan(kBlockFloats);
  started_ = 0;
  ticket_.reset();
  sums_ = {
      .samples = static_cast<uint64_t>(header.samples), .loss_sum = header.loss_sum, .wait = Now() - start};
  Tune(header.step_seconds);
  return *sums_;
}

absl::Status ReplicatedParameters::NotFinite() {
  group_.Fail(absl::StrFormat("the gradient is not finite at step %d; its log says where", version_->step));
  // Until nobody else touches the gradient, so that its owner can say where.
  if (ticket_) (void)group_.Wait(*ticket_);
  if (!replica_->gradient().empty()) {
    MUSTER_RETURN_IF_ERROR(replica_->ReadGradient({0, layout_.size()}, sums().subspan(kBlockFloats)));
  }
  return InvalidArgument("the gradient is not finite");
}

void ReplicatedParameters::Tune(float seconds_of_step_before) {
  const TimePoint now = Now();
  step_seconds_ = static_cast<float>(ToSeconds(now - std::exchange(step_end_, now)));
  if (!tuner_.Add(seconds_of_step_before) || rank_ != 0) return;
  const std::vector<LayoutRange>& buckets = tuner_.buckets();
  spdlog::info("gradients are reduced in {} of {:.1f} MiB: a step takes {:.2f} ms",
               buckets.size() == 1 ? "one bucket" : std::to_string(buckets.size()) + " buckets",
               static_cast<double>(buckets.front().size()) * sizeof(float) / (1 << 20),
               1000 * tuner_.median_seconds() / static_cast<float>(place_.ranks.size()));
}

absl::Status ReplicatedParameters::Update() {
  MUSTER_CHECK(sums_.has_value());
  const float scale = 1.0f / static_cast<float>(sums_->samples);
  MUSTER_RETURN_IF_ERROR(replica_->Update(summed_, scale));
  ++version_->step;
  sums_.reset();
  return SaveIfDue();
}

// One of the group does it for all.
absl::Status ReplicatedParameters::SaveIfDue() {
  if (checkpoints_ == nullptr || place_.position != 0 || !checkpoints_->IsDue(version_->step)) {
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(replica_->Store(parameters_));
  ReplicaState state{.step = version_->step, .parameters = {parameters_.begin(), parameters_.end()}};
  for (int slot = 0; slot < replica_->slot_count(); ++slot) {
    MUSTER_RETURN_IF_ERROR(replica_->CopySlot(slot, state.slots.emplace_back(layout_.size())));
  }
  checkpoints_->Write(std::move(state));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> ReplicatedParameters::Gather(uint64_t own) {
  std::vector<uint64_t> all(place_.ranks.size());
  MUSTER_RETURN_IF_ERROR(
      group_.Run(AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)))));
  return all;
}

absl::Status ReplicatedParameters::CheckAgreement() {
  MUSTER_RETURN_IF_ERROR(replica_->Store(parameters_));
  const uint32_t own = Crc32c(parameters_.data(), parameters_.size_bytes());
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, Gather(own));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == own) continue;
    const absl::Status status =
        Internal("after step %d this worker has parameters with the checksum %08x, %s ones with %08x",
                 version_->step, own, group_.NameOf(place_.ranks[i]), all[i]);
    group_.Fail(std::string(status.message()));
    return status;
  }
  return absl::OkStatus();
}

absl::Status ReplicatedParameters::AwaitConclusion(uint64_t step) {
  if (rank_ == 0) return group_.Finish(step);
  MUSTER_ASSIGN_OR_RETURN(const GroupPlace place, group_.Join({}));
  return place.concluded ? absl::OkStatus() : Cancelled("the others are not done yet");
}

}  // namespace muster
