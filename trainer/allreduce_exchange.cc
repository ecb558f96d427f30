#include "trainer/allreduce_exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/crc32c.h"
#include "collective/native.h"
#include "kernels/elementwise.h"
#include "kernels/layout_optimizer.h"

namespace muster {
namespace {

// What travels in front of the gradient. Each worker whose gradient is not finite sets a bit of its own, so
// that the sum names them all: a float holds 24 exactly.
struct Header {
  static constexpr int kBits = 20;
  static constexpr int kMasks = kBlockFloats - 2;
  float samples = 0;
  float loss_sum = 0;
  std::array<float, kMasks> not_finite = {};

  void Mark(int rank) { not_finite[rank / kBits] = static_cast<float>(1 << rank % kBits); }
  bool IsMarked(int rank) const {
    return (static_cast<int>(not_finite[rank / kBits]) >> rank % kBits & 1) != 0;
  }
};
static_assert(sizeof(Header) == kBlockFloats * sizeof(float) &&
              Header::kBits * Header::kMasks == kMaxAllReduceWorkers);

class AllReduceExchange final : public GradientExchange {
 public:
  AllReduceExchange(const ParameterLayout& layout, LayoutOptimizer optimizer, uint64_t seed,
                    NativeOptions options, std::unique_ptr<PeerListener> listener)
      : layout_(layout),
        seed_(seed),
        options_(std::move(options)),
        listener_(std::move(listener)),
        optimizer_(std::move(optimizer)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(group_, MakeNative(options_, *listener_, interrupt_));
    layout_.Initialize(seed_, {0, layout_.size()}, parameters);
    parameters_ = parameters;
    return ExchangeStart{};
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
    if (!AllFinite(gradient) || !std::isfinite(header.loss_sum)) return TellNotFinite(sums.size());
    const TimePoint start = Now();
    MUSTER_RETURN_IF_ERROR(group_->Run(AllReduce(sums, sums)));
    const Duration wait = Now() - start;
    MUSTER_RETURN_IF_ERROR(CheckMarks(header));
    const float scale = 1.0f / header.samples;
    optimizer_.Apply(parameters, gradient, scale, parameters);
    return ExchangeResult{.step = ++step_,
                          .mean_loss = static_cast<double>(header.loss_sum) / header.samples,
                          .samples = static_cast<uint64_t>(header.samples),
                          .staleness = 0,
                          .times = {.wait = wait}};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float> parameters) override {
    MUSTER_CHECK(parameters.data() == parameters_.data());
    MUSTER_RETURN_IF_ERROR(CheckAgreement());
    return ExchangeSummary{.step = step_};
  }

  absl::Status Finish() override { return has_agreed_ ? absl::OkStatus() : CheckAgreement(); }

  uint64_t bytes_pushed() const override { return group_ == nullptr ? 0 : group_->traffic().sent_bytes; }
  uint64_t bytes_pulled() const override { return group_ == nullptr ? 0 : group_->traffic().received_bytes; }

 private:
  // The others learn it in place of a gradient; this one's own stays as it is, for whoever looks where.
  absl::Status TellNotFinite(size_t size) {
    std::vector<float> instead(size);
    reinterpret_cast<Header*>(instead.data())->Mark(group_->rank());
    MUSTER_RETURN_IF_ERROR(group_->Run(AllReduce(instead, instead)));
    return InvalidArgument("the gradient is not finite");
  }

  absl::Status CheckMarks(const Header& header) const {
    std::string names;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (!header.IsMarked(rank)) continue;
      names += (names.empty() ? "" : ", ") + Describe(options_.identity.members[rank]);
    }
    if (names.empty()) return absl::OkStatus();
    return FailedPrecondition("the gradient of %s is not finite at step %d; its log says where", names,
                              step_);
  }

  // Whether all workers have the same bits: the last thing that they do together.
  absl::Status CheckAgreement() {
    const uint32_t own = Crc32c(parameters_.data(), parameters_.size_bytes());
    std::vector<uint32_t> all(group_->size());
    MUSTER_RETURN_IF_ERROR(
        group_->Run(AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)))));
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (all[rank] == own) continue;
      return Internal("after step %d this worker has parameters with the checksum %08x, %s ones with %08x",
                      step_, own, Describe(options_.identity.members[rank]), all[rank]);
    }
    has_agreed_ = true;
    return absl::OkStatus();
  }

  const ParameterLayout layout_;
  const uint64_t seed_;
  const NativeOptions options_;
  const std::unique_ptr<PeerListener> listener_;
  LayoutOptimizer optimizer_;
  std::optional<FlatBuffer> buffer_;   // a header, and the gradient
  std::span<const float> parameters_;  // the caller's
  bool has_agreed_ = false;
  uint64_t step_ = 0;
  Interrupt interrupt_;
  std::unique_ptr<Collective> group_;  // the last member: it uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options) {
  NativeOptions native{.identity = {.rank = RankOf(options.cluster, options.task),
                                    .generation = options.generation,
                                    .fingerprint = options.fingerprint},
                       .connect_timeout = options.connect_timeout,
                       .operation_timeout = options.operation_timeout,
                       .shares_memory = options.shares_memory};
  for (int rank = 0; rank < options.cluster.rank_count(); ++rank) {
    const TaskId task = TaskOfRank(options.cluster, rank);
    native.identity.members.push_back({task, options.cluster.addresses(task.role)[task.index]});
  }
  std::shared_ptr<TlsContext> tls;
  if (options.tls) {
    MUSTER_ASSIGN_OR_RETURN(tls, TlsContext::Create(*options.tls));
  }
  const std::string& own = native.identity.members[native.identity.rank].address;
  const std::string bound = options.bind_host.empty() ? own : options.bind_host + own.substr(own.rfind(':'));
  MUSTER_ASSIGN_OR_RETURN(auto listener, PeerListener::Listen(bound, std::move(tls)));
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                          LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
  return std::make_unique<AllReduceExchange>(layout, std::move(optimizer), seed, std::move(native),
                                             std::move(listener));
}

}  // namespace muster
