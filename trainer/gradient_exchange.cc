#include "trainer/gradient_exchange.h"

#include "kernels/layout_optimizer.h"

namespace muster {
namespace {

class LocalExchange final : public GradientExchange {
 public:
  LocalExchange(const ParameterLayout& layout, LayoutOptimizer optimizer, std::vector<ParameterTable> tables,
                uint64_t seed)
      : layout_(layout), seed_(seed), optimizer_(std::move(optimizer)), tables_(std::move(tables)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    layout_.Initialize(seed_, {0, layout_.size()}, parameters);
    return ExchangeStart{};
  }

  absl::Status ReadRows(const RowIndex& rows, std::span<float> values) override {
    MUSTER_CHECK(rows.table_count() == static_cast<int>(tables_.size()));
    for (int t = 0; t < rows.table_count(); ++t) {
      tables_[t].Read(rows.ids(t), values.subspan(rows.range(t).begin, rows.range(t).size()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution, std::span<float> parameters,
                                          const RowIndex& next_rows,
                                          std::span<float> next_row_values) override {
    const auto& [samples, loss_sum, gradient, rows] = contribution;
    const float scale = 1.0f / static_cast<float>(samples);
    optimizer_.Apply(parameters, gradient.first(layout_.size()), scale, parameters);
    const std::span<const float> row_gradients = gradient.subspan(layout_.size());
    for (int t = 0; t < rows.table_count(); ++t) {
      tables_[t].Apply(rows.ids(t), row_gradients.subspan(rows.range(t).begin, rows.range(t).size()), scale);
    }
    MUSTER_RETURN_IF_ERROR(ReadRows(next_rows, next_row_values));
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
  std::vector<ParameterTable> tables_;
  uint64_t step_ = 0;
};

class ParameterServerExchange final : public GradientExchange {
 public:
  explicit ParameterServerExchange(ParameterServerClientOptions options) : client_(std::move(options)) {}

  absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(const JoinResult joined, client_.Join(parameters));
    ExchangeStart start{.step = joined.step, .local_steps = joined.pushes, .all_samples = joined.all_samples};
    if (joined.share_count > 0) start.share = BatchShare{joined.share_place, joined.share_count};
    return start;
  }

  absl::Status ReadRows(const RowIndex& rows, std::span<float> values) override {
    return client_.PullRows(rows, values).status();
  }

  absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution, std::span<float> parameters,
                                          const RowIndex& next_rows,
                                          std::span<float> next_row_values) override {
    MUSTER_ASSIGN_OR_RETURN(const PushResult result,
                            client_.PushPull(contribution, parameters, next_rows, next_row_values));
    return ExchangeResult{.step = result.step,
                          .mean_loss = result.mean_loss,
                          .samples = result.samples,
                          .all_samples = result.all_samples,
                          .staleness = result.staleness,
                          .times = result.times};
  }

  absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float> parameters) override {
    MUSTER_ASSIGN_OR_RETURN(const ps::AwaitFinishedReply reply, client_.AwaitOthers(parameters));
    return ExchangeSummary{
        .step = reply.step(), .all_samples = reply.all_samples(), .pushes = CountsOf(reply.pushes())};
  }

  absl::Status Finish() override { return client_.Finish(); }
  void Fail(const std::string& why) override { client_.Fail(why); }
  std::vector<Duration> waiting() override { return client_.waiting(); }
  uint64_t bytes_pushed() const override { return client_.bytes_pushed(); }
  uint64_t bytes_pulled() const override { return client_.bytes_pulled(); }

 private:
  ParameterServerClient client_;
};

}  // namespace

PushCounts CountsOf(const ps::PushCounts& counts) {
  return {.received = counts.received(),
          .applied = counts.applied(),
          .stale = counts.stale(),
          .duplicate = counts.duplicate(),
          .rejected = counts.rejected()};
}

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeLocalExchange(
    const ParameterLayout& layout, std::span<const TableSpec> tables,
    std::span<const OptimizerConfig> optimizers, uint64_t seed) {
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer,
                          LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers));
  MUSTER_ASSIGN_OR_RETURN(std::vector<ParameterTable> made, MakeTables(tables, optimizers, seed));
  return std::make_unique<LocalExchange>(layout, std::move(optimizer), std::move(made), seed);
}

absl::Status GradientExchange::FinishAgain(std::span<float> parameters, uint64_t steps) {
  MUSTER_ASSIGN_OR_RETURN(const ExchangeStart start, Start(parameters));
  if (start.step < steps) return Cancelled("the servers have gone back to step %d", start.step);
  return Finish();
}

std::unique_ptr<GradientExchange> MakeParameterServerExchange(ParameterServerClientOptions options) {
  return std::make_unique<ParameterServerExchange>(std::move(options));
}

}  // namespace muster
