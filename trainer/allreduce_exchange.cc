#include "trainer/allreduce_exchange.h"

namespace muster {
namespace {

class AllReduceExchange final : public GradientExchange {
 public:
  explicit AllReduceExchange(std::unique_ptr<ReplicatedParameters> parameters)
      : parameters_(std::move(parameters)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    has_agreed_ = false;
    MUSTER_ASSIGN_OR_RETURN(place_, parameters_->Start(parameters));
    if (place_.concluded) return ExchangeStart{.step = *place_.concluded};
    return ExchangeStart{
        .step = *parameters_->step(),
        .local_steps = *parameters_->step(),
        .share = BatchShare{.place = place_.position, .count = static_cast<int>(place_.ranks.size())}};
  }

  absl::Status ReadRows(const RowIndex& rows, std::span<float>) override {
    MUSTER_CHECK(rows.size() == 0);
    return absl::OkStatus();
  }

  std::span<float> MakeGradientBuffer(int64_t size) override { return parameters_->MakeGradientBuffer(size); }
  void GradientReady(int64_t begin) override { parameters_->GradientReady(begin); }

  absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution, std::span<float>, const RowIndex&,
                                          std::span<float>) override {
    MUSTER_ASSIGN_OR_RETURN(const GradientSums sums, parameters_->Reduce(contribution));
    MUSTER_RETURN_IF_ERROR(parameters_->Update());
    return ExchangeResult{.step = *parameters_->step(),
                          .mean_loss = sums.mean_loss(),
                          .samples = sums.samples,
                          .staleness = 0,
                          .times = {.wait = sums.wait}};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float>) override {
    MUSTER_RETURN_IF_ERROR(CheckAgreement());
    return ExchangeSummary{.step = *parameters_->step()};
  }

  absl::Status Finish() override {
    if (place_.concluded) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(CheckAgreement());
    return parameters_->Conclude(*parameters_->step());
  }

  void Fail(const std::string& why) override { parameters_->Fail(why); }

  absl::Status FinishAgain(std::span<float>, uint64_t steps) override {
    return parameters_->AwaitConclusion(steps);
  }

  uint64_t bytes_pushed() const override { return parameters_->traffic().sent_bytes; }
  uint64_t bytes_pulled() const override { return parameters_->traffic().received_bytes; }

 private:
  // Once: the chief does it before it evaluates.
  absl::Status CheckAgreement() {
    if (!has_agreed_) MUSTER_RETURN_IF_ERROR(parameters_->CheckAgreement());
    has_agreed_ = true;
    return absl::OkStatus();
  }

  GroupPlace place_;
  bool has_agreed_ = false;
  const std::unique_ptr<ReplicatedParameters> parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(auto parameters, ReplicatedParameters::Create(layout, optimizers, seed, options));
  return std::make_unique<AllReduceExchange>(std::move(parameters));
}

}  // namespace muster
