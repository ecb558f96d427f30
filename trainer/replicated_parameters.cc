#include "trainer/replicated_parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/crc32c.h"
#include "base/logging.h"
#include "kernels/elementwise.h"

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
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                          LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
  return std::unique_ptr<ReplicatedParameters>(new ReplicatedParameters(
      layout, std::move(optimizer), seed, options.bucket_floats, std::move(group), std::move(listener)));
}

ReplicatedParameters::ReplicatedParameters(const ParameterLayout& layout, LayoutOptimizer optimizer,
                                           uint64_t seed, std::optional<int64_t> bucket_floats,
                                           ElasticGroupOptions options,
                                           std::unique_ptr<PeerListener> listener)
    : layout_(layout),
      seed_(seed),
      bucket_floats_(bucket_floats),
      rank_(options.all.rank),
      optimizer_(std::move(optimizer)),
      tuner_(kBlockFloats + layout.size(), bucket_floats),
      group_(std::move(options), std::move(listener)) {}

absl::StatusOr<GroupPlace> ReplicatedParameters::Start(std::span<float> parameters) {
  parameters_ = parameters;
  MUSTER_ASSIGN_OR_RETURN(place_, group_.Join(version_));
  if (place_.concluded) return place_;
  if (place_.source) {
    MUSTER_RETURN_IF_ERROR(CopyState());
  } else if (!version_) {
    layout_.Initialize(seed_, {0, layout_.size()}, parameters);
    version_ = {.step = 0};
  }
  version_->group = place_.number;
  // What was fastest with others, or elsewhere, need not be here; and newcomers have tried out nothing.
  tuner_ = BucketTuner(kBlockFloats + layout_.size(), bucket_floats_);
  step_end_ = Now();
  step_seconds_ = 0;
  started_ = 0;
  ticket_.reset();
  is_finite_ = true;
  return place_;
}

// Parameters and the optimizer's slots, of the one who has made the most steps. Whoever has some keeps them
// until all has come: with the source, those that it would have sent may be gone.
absl::Status ReplicatedParameters::CopyState() {
  const bool is_source = place_.source == place_.position;
  uint64_t step = is_source ? version_->step : 0;
  std::vector<float> received(is_source ? 0 : layout_.size());
  std::vector<std::vector<float>> slots(optimizer_.slot_count(), std::vector<float>(layout_.size()));
  const auto copy = [&](auto values) {
    return group_.Run(Broadcast(std::as_writable_bytes(values), *place_.source));
  };
  MUSTER_RETURN_IF_ERROR(copy(std::span(&step, 1)));
  MUSTER_RETURN_IF_ERROR(copy(is_source ? parameters_ : std::span(received)));
  for (int slot = 0; slot < optimizer_.slot_count(); ++slot) {
    if (is_source) optimizer_.CopySlot(slot, slots[slot]);
    MUSTER_RETURN_IF_ERROR(copy(std::span(slots[slot])));
  }
  if (is_source) return absl::OkStatus();
  std::copy(received.begin(), received.end(), parameters_.begin());
  for (int slot = 0; slot < optimizer_.slot_count(); ++slot) optimizer_.SetSlot(slot, slots[slot]);
  optimizer_.SkipTo(step);
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
  if (is_finite_) is_finite_ = StartBuckets(reducible);
}

// Those that lie at or behind `begin` of the sums. False: at a number that is not finite; that one, and what
// comes after it, is not sent.
bool ReplicatedParameters::StartBuckets(int64_t begin) {
  const std::vector<LayoutRange>& buckets = tuner_.buckets();
  while (started_ < buckets.size() && buckets[started_].begin >= begin) {
    const std::span<float> bucket = sums().subspan(buckets[started_].begin, buckets[started_].size());
    if (!AllFinite(bucket)) return false;
    ticket_ = group_.Start(AllReduce(bucket, bucket));
    ++started_;
  }
  return true;
}

absl::StatusOr<GradientSums> ReplicatedParameters::Reduce(const Contribution& contribution) {
  const std::span<float> all = sums();
  MUSTER_CHECK(contribution.gradient.data() == all.data() + kBlockFloats);
  const std::span<float> last = all.first(tuner_.buckets().back().size());
  Header& header = *reinterpret_cast<Header*>(all.data());
  header = {.samples = static_cast<float>(contribution.samples),
            .loss_sum = static_cast<float>(contribution.loss_sum),
            .step_seconds = step_seconds_};
  GradientReady(0);
  const auto behind = contribution.gradient.subspan(layout_.size());
  if (!is_finite_ || !AllFinite(last) || !AllFinite(behind)) return NotFinite();
  const TimePoint start = Now();
  // As one of the queue, it ends after all that were started, and fails if they do.
  MUSTER_RETURN_IF_ERROR(group_.Run(AllReduce(last, last)));
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

void ReplicatedParameters::Update() {
  MUSTER_CHECK(sums_.has_value());
  const float scale = 1.0f / static_cast<float>(sums_->samples);
  optimizer_.Apply(parameters_, sums().subspan(kBlockFloats), scale, parameters_);
  ++version_->step;
  sums_.reset();
}

absl::StatusOr<std::vector<uint64_t>> ReplicatedParameters::Gather(uint64_t own) {
  std::vector<uint64_t> all(place_.ranks.size());
  MUSTER_RETURN_IF_ERROR(
      group_.Run(AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)))));
  return all;
}

absl::Status ReplicatedParameters::CheckAgreement() {
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
