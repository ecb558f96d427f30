#include "trainer/gradient_exchange.h"

#include "kernels/layout_optimizer.h"

namespace muster {
namespace {

class LocalExchange final : public GradientExchange {
 public:
  LocalExchange(const ParameterLayout& layout, LayoutOptimizer optimizer, uint64_t seed)
      : layout_(layout), seed_(seed), optimizer_(std::move(optimizer)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    layout_.Initialize(seed_, {0, layout_.size()}, parameters);
    return ExchangeStart{};
  }

  absl::StatusOr<ExchangeResult> Exchange(uint64_t samples, double loss_sum, std::span<const float> gradient,
                                          std::span<float> parameters) override {
    optimizer_.Apply(parameters, gradient, 1.0f / static_cast<float>(samples), parameters);
    return ExchangeResult{.step = ++step_,
                          .mean_loss = loss_sum / static_cast<double>(samples),
                          .samples = samples,
                          .staleness = 0};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float>) override {
    return ExchangeSummary{.step = step_};
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  uint64_t bytes_pushed() const override { return 0; }
  uint64_t bytes_pulled() const override { return 0; }

 private:
  const ParameterLayout layout_;
  const uint64_t seed_;
  LayoutOptimizer optimizer_;
  uint64_t step_ = 0;
};

class ParameterServerExchange final : public GradientExchange {
 public:
  explicit ParameterServerExchange(ParameterServerClientOptions options) : client_(std::move(options)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(const JoinResult joined, client_.Join(parameters));
    return ExchangeStart{.step = joined.step, .local_steps = joined.pushes};
  }

  absl::StatusOr<ExchangeResult> Exchange(uint64_t samples, double loss_sum, std::span<const float> gradient,
                                          std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(const PushResult result,
                            client_.PushPull(samples, loss_sum, gradient, parameters));
    return ExchangeResult{.step = result.step,
                          .mean_loss = result.mean_loss,
                          .samples = result.samples,
                          .staleness = result.staleness};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(const ps::AwaitFinishedReply reply, client_.AwaitOthers(parameters));
    return ExchangeSummary{.step = reply.step(),
                           .pushes = {.received = reply.pushes().received(),
                                      .applied = reply.pushes().applied(),
                                      .stale = reply.pushes().stale(),
                                      .duplicate = reply.pushes().duplicate(),
                                      .rejected = reply.pushes().rejected()}};
  }

  absl::Status Finish() override { return client_.Finish(); }
  uint64_t bytes_pushed() const override { return client_.bytes_pushed(); }
  uint64_t bytes_pulled() const override { return client_.bytes_pulled(); }

 private:
  ParameterServerClient client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeLocalExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed) {
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                          LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
  return std::make_unique<LocalExchange>(layout, std::move(optimizer), seed);
}

std::unique_ptr<GradientExchange> MakeParameterServerExchange(ParameterServerClientOptions options) {
  return std::make_unique<ParameterServerExchange>(std::move(options));
}

}  // namespace muster
