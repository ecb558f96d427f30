#include "trainer/hybrid_exchange.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace muster {
namespace {

// For servers that are just making a step when workers meet again, or made it after some of these had asked:
// what was on its way from one who was cut off is all that was missing.
constexpr int kSettlingTries = 20;
constexpr Duration kSettlingPause = std::chrono::milliseconds(50);

class HybridExchange final : public GradientExchange {
 public:
  HybridExchange(int64_t dense_size, std::unique_ptr<ReplicatedParameters> dense,
                 ParameterServerClientOptions tables)
      : dense_size_(dense_size), dense_(std::move(dense)), tables_(WithInterruption(std::move(tables))) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    has_agreed_ = false;
    place_ = {};
    MUSTER_ASSIGN_OR_RETURN(const JoinResult joined, tables_.Join({}));
    // The servers have made the step, but their answer came too late.
    if (dense_->has_sums() && *dense_->step() + 1 == joined.step) MUSTER_RETURN_IF_ERROR(dense_->Update());
    MUSTER_ASSIGN_OR_RETURN(place_, dense_->Start(parameters));
    if (place_.concluded) return ExchangeStart{.step = *place_.concluded};
    MUSTER_RETURN_IF_ERROR(CheckOneStep(joined.step));
    return ExchangeStart{
        .step = joined.step,
        .local_steps = joined.step,
        .share = BatchShare{.place = place_.position, .count = static_cast<int>(place_.ranks.size())}};
  }

  absl::Status ReadRows(const RowIndex& rows, std::span<float> values) override {
    MUSTER_ASSIGN_OR_RETURN(const uint64_t step, tables_.PullRows(rows, values));
    if (step == *dense_->step()) return absl::OkStatus();
    return Cancelled("the tables are at step %d, the dense parameters at step %d", step, *dense_->step());
  }

  std::span<float> MakeGradientBuffer(int64_t size) override { return dense_->MakeGradientBuffer(size); }
  void GradientReady(int64_t begin) override { dense_->GradientReady(begin); }

  absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution, std::span<float>,
                                          const RowIndex& next_rows,
                                          std::span<float> next_row_values) override {
    MUSTER_ASSIGN_OR_RETURN(const GradientSums sums, dense_->Reduce(contribution));
    const Contribution of_rows{.samples = contribution.samples,
                               .loss_sum = contribution.loss_sum,
                               .gradient = contribution.gradient.subspan(dense_size_),
                               .rows = contribution.rows};
    MUSTER_ASSIGN_OR_RETURN(PushResult pushed, tables_.PushPull(of_rows, {}, next_rows, next_row_values));
    // Whatever the outcome: a part that is stale or a duplicate was there already, from before this worker
    // lost the others.
    if (pushed.step != *dense_->step() + 1) {
      return Internal("the tables went from step %d to step %d", *dense_->step(), pushed.step);
    }
    MUSTER_RETURN_IF_ERROR(dense_->Update());
    pushed.times.wait += sums.wait;
    return ExchangeResult{.step = pushed.step,
                          .mean_loss = sums.mean_loss(),
                          .samples = sums.samples,
                          .staleness = 0,
                          .times = pushed.times};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float>) override {
    if (!has_agreed_) {
      MUSTER_RETURN_IF_ERROR(dense_->CheckAgreement());
      MUSTER_ASSIGN_OR_RETURN(awaited_, tables_.AwaitOthers({}));
      has_agreed_ = true;
    }
    return ExchangeSummary{.step = *dense_->step(), .pushes = CountsOf(awaited_.pushes())};
  }

  absl::Status Finish() override {
    if (!place_.concluded) {
      MUSTER_RETURN_IF_ERROR(AwaitOthers({}).status());
      MUSTER_RETURN_IF_ERROR(dense_->Conclude(*dense_->step()));
    }
    has_concluded_ = true;
    return tables_.Finish();
  }

  // The servers have to be told even if the chief, who has said that all is done, has gone.
  void Fail(const std::string& why) override {
    dense_->Fail(why);
    tables_.Fail(why);
  }

  absl::Status FinishAgain(std::span<float>, uint64_t steps) override {
    const absl::Status concluded = dense_->AwaitConclusion(steps);
    if (!concluded.ok() && !absl::IsUnavailable(concluded)) return concluded;
    has_concluded_ = true;
    MUSTER_RETURN_IF_ERROR(tables_.Join({}).status());
    return tables_.Finish();
  }

  std::vector<Duration> waiting() override { return tables_.waiting(); }
  uint64_t bytes_pushed() const override { return dense_->traffic().sent_bytes + tables_.bytes_pushed(); }
  uint64_t bytes_pulled() const override { return dense_->traffic().received_bytes + tables_.bytes_pulled(); }

 private:
  // Who waits for the servers would not see that the others have met again, and wait for it.
  ParameterServerClientOptions WithInterruption(ParameterServerClientOptions options) {
    options.interruption = [this] { return is_in_group() ? dense_->group_status() : absl::OkStatus(); };
    return options;
  }
  bool is_in_group() const { return !place_.ranks.empty() && !has_concluded_; }

  // Whether tables and dense parameters, of all workers, have had as many updates.
  absl::Status CheckOneStep(uint64_t tables_step) {
    const uint64_t step = *dense_->step();
    MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, dense_->Gather(tables_step));
    const auto is_same = [&](uint64_t theirs) { return theirs == step; };
    if (std::all_of(all.begin(), all.end(), is_same)) {
      settling_ = 0;
      return absl::OkStatus();
    }
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    if (++settling_ < kSettlingTries) {
      std::this_thread::sleep_for(kSettlingPause);
      return Cancelled("the tables are at step %d to %d, the dense parameters at step %d", *least, *most,
                       step);
    }
    const absl::Status status = FailedPrecondition(
        "the tables are at step %d, the dense parameters at step %d, and there is no way back or forward: "
        "with --strategy=hybrid servers that may be lost need --durability=journal or replicated, and a job "
        "that begins anew needs new ones",
        *least, step);
    dense_->Fail(std::string(status.message()));
    return status;
  }

  const int64_t dense_size_;
  const std::unique_ptr<ReplicatedParameters> dense_;
  GroupPlace place_;
  int settling_ = 0;         // how often in a row tables and dense parameters had other steps
  bool has_agreed_ = false;  // and waited for the others
  bool has_concluded_ = false;
  ps::AwaitFinishedReply awaited_;
  ParameterServerClient tables_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeHybridExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& dense, ParameterServerClientOptions tables) {
  MUSTER_ASSIGN_OR_RETURN(auto parameters, ReplicatedParameters::Create(layout, optimizers, seed, dense));
  return std::make_unique<HybridExchange>(layout.size(), std::move(parameters), std::move(tables));
}

}  // namespace muster
