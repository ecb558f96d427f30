#include "trainer/allreduce_exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/crc32c.h"
#include "collective/elastic_group.h"
#include "kernels/elementwise.h"
#include "kernels/layout_optimizer.h"

namespace muster {
namespace {

// What travels in front of the gradient.
struct Header {
  float samples = 0;
  float loss_sum = 0;
  std::array<float, kBlockFloats - 2> padding = {};
};
static_assert(sizeof(Header) == kBlockFloats * sizeof(float));

class AllReduceExchange final : public GradientExchange {
 public:
  AllReduceExchange(const ParameterLayout& layout, LayoutOptimizer optimizer, uint64_t seed,
                    ElasticGroupOptions options, std::unique_ptr<PeerListener> listener)
      : layout_(layout),
        seed_(seed),
        members_(options.all.members),
        rank_(options.all.rank),
        optimizer_(std::move(optimizer)),
        group_(std::move(options), std::move(listener)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    parameters_ = parameters;
    has_agreed_ = false;
    MUSTER_ASSIGN_OR_RETURN(place_, group_.Join(version_));
    if (place_.concluded) return ExchangeStart{.step = *place_.concluded};
    if (place_.source) {
      MUSTER_RETURN_IF_ERROR(CopyState());
    } else if (!version_) {
      layout_.Initialize(seed_, {0, layout_.size()}, parameters);
      version_ = {.step = 0};
    }
    version_->group = place_.number;
    return ExchangeStart{.step = version_->step,
                         .local_steps = version_->step,
                         .share = BatchShare{.place = place_.position, .count = worker_count()}};
  }

  absl::Status ReadRows(const RowIndex& rows, std::span<float>) override {
    MUSTER_CHECK(rows.size() == 0);
    return absl::OkStatus();
  }

  std::span<float> MakeGradientBuffer(int64_t size) override {
    return buffer_.emplace(kBlockFloats + size).values().subspan(kBlockFloats);
  }

  absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution, std::span<float> parameters,
                                          const RowIndex&, std::span<float>) override {
    const std::span<float> sums = buffer_->values().first(kBlockFloats + layout_.size());
    const std::span<float> gradient = sums.subspan(kBlockFloats);
    MUSTER_CHECK(contribution.gradient.data() == gradient.data());
    Header& header = *reinterpret_cast<Header*>(sums.data());
    header = {.samples = static_cast<float>(contribution.samples),
              .loss_sum = static_cast<float>(contribution.loss_sum)};
    if (!AllFinite(gradient) || !std::isfinite(header.loss_sum)) {
      group_.Fail(
          absl::StrFormat("the gradient is not finite at step %d; its log says where", version_->step));
      return InvalidArgument("the gradient is not finite");
    }
    const TimePoint start = Now();
    MUSTER_RETURN_IF_ERROR(group_.Run(AllReduce(sums, sums)));
    const Duration wait = Now() - start;
    const float scale = 1.0f / header.samples;
    optimizer_.Apply(parameters, gradient, scale, parameters);
    return ExchangeResult{.step = ++version_->step,
                          .mean_loss = static_cast<double>(header.loss_sum) / header.samples,
                          .samples = static_cast<uint64_t>(header.samples),
                          .staleness = 0,
                          .times = {.wait = wait}};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float> parameters) override {
    MUSTER_CHECK(parameters.data() == parameters_.data());
    MUSTER_RETURN_IF_ERROR(CheckAgreement());
    return ExchangeSummary{.step = version_->step};
  }

  absl::Status Finish() override {
    if (place_.concluded) return absl::OkStatus();
    if (!has_agreed_) MUSTER_RETURN_IF_ERROR(CheckAgreement());
    return group_.Finish(version_->step);
  }

  absl::Status FinishAgain(std::span<float>, uint64_t steps) override {
    if (rank_ == 0) return group_.Finish(steps);
    MUSTER_ASSIGN_OR_RETURN(const GroupPlace place, group_.Join({}));
    return place.concluded ? absl::OkStatus() : Cancelled("the others are not done yet");
  }

  uint64_t bytes_pushed() const override { return group_.traffic().sent_bytes; }
  uint64_t bytes_pulled() const override { return group_.traffic().received_bytes; }

 private:
  int worker_count() const { return static_cast<int>(place_.ranks.size()); }

  // Parameters and the optimizer's slots, of the one who has made the most steps.
  absl::Status CopyState() {
    const bool is_source = place_.source == place_.position;
    uint64_t step = is_source ? version_->step : 0;
    if (!is_source) version_.reset();  // until all is there
    const auto copy = [&](auto values) {
      return group_.Run(Broadcast(std::as_writable_bytes(values), *place_.source));
    };
    MUSTER_RETURN_IF_ERROR(copy(std::span(&step, 1)));
    MUSTER_RETURN_IF_ERROR(copy(parameters_));
    std::vector<float> values(layout_.size());
    for (int slot = 0; slot < optimizer_.slot_count(); ++slot) {
      if (is_source) optimizer_.CopySlot(slot, values);
      MUSTER_RETURN_IF_ERROR(copy(std::span(values)));
      if (!is_source) optimizer_.SetSlot(slot, values);
    }
    if (!is_source) optimizer_.SkipTo(step);
    version_ = {.step = step};
    return absl::OkStatus();
  }

  // Whether all workers have the same bits: the last thing that they do together.
  absl::Status CheckAgreement() {
    const uint32_t own = Crc32c(parameters_.data(), parameters_.size_bytes());
    std::vector<uint32_t> all(worker_count());
    MUSTER_RETURN_IF_ERROR(
        group_.Run(AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)))));
    for (int i = 0; i < worker_count(); ++i) {
      if (all[i] == own) continue;
      const absl::Status status =
          Internal("after step %d this worker has parameters with the checksum %08x, %s ones with %08x",
                   version_->step, own, Describe(members_[place_.ranks[i]]), all[i]);
      group_.Fail(std::string(status.message()));
      return status;
    }
    has_agreed_ = true;
    return absl::OkStatus();
  }

  const ParameterLayout layout_;
  const uint64_t seed_;
  const std::vector<GroupMember> members_;  // by rank
  const int rank_;
  LayoutOptimizer optimizer_;
  std::optional<FlatBuffer> buffer_;          // a header, and the gradient
  std::span<float> parameters_;               // the caller's
  std::optional<ParametersVersion> version_;  // of these, and of the optimizer's state
  GroupPlace place_;
  bool has_agreed_ = false;
  ElasticGroup group_;  // the last member: what it does uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options) {
  ElasticGroupOptions elastic{.all = {.rank = RankOf(options.cluster, options.task),
                                      .generation = options.generation,
                                      .fingerprint = options.fingerprint},
                              .incarnation = options.incarnation,
                              .min_ranks = options.min_workers,
                              .connect_timeout = options.connect_timeout,
                              .operation_timeout = options.operation_timeout,
                              .shares_memory = options.shares_memory};
  for (int rank = 0; rank < options.cluster.rank_count(); ++rank) {
    const TaskId task = TaskOfRank(options.cluster, rank);
    elastic.all.members.push_back({task, options.cluster.addresses(task.role)[task.index]});
  }
  std::shared_ptr<TlsContext> tls;
  if (options.tls) {
    MUSTER_ASSIGN_OR_RETURN(tls, TlsContext::Create(*options.tls));
  }
  const std::string& own = elastic.all.members[elastic.all.rank].address;
  const std::string bound = options.bind_host.empty() ? own : options.bind_host + own.substr(own.rfind(':'));
  MUSTER_ASSIGN_OR_RETURN(auto listener, PeerListener::Listen(bound, std::move(tls)));
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                          LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
  return std::make_unique<AllReduceExchange>(layout, std::move(optimizer), seed, std::move(elastic),
                                             std::move(listener));
}

}  // namespace muster
