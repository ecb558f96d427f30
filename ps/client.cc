#include "ps/client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ps/encoding.h"
#include "ps/row_partition.h"
#include "ps/shard_sessions.h"
#include "ps/wire.h"

namespace muster {
namespace {

ParameterServerClientOptions WithView(ParameterServerClientOptions options) {
  if (options.view == nullptr) {
    options.view = std::make_shared<ClusterView>(options.cluster, options.task);
  }
  return options;
}

}  // namespace

ParameterServerClient::ParameterServerClient(ParameterServerClientOptions options)
    : sessions_(std::make_unique<ShardSessions>(WithView(std::move(options)))),
      config_(sessions_->options().config),
      layout_size_(sessions_->options().layout.size()),
      clocks_(sessions_->count()),
      rows_(sessions_->count()),
      next_rows_(sessions_->count()),
      encoder_(std::make_unique<GradientEncoder>(config_, layout_size_)) {}

ParameterServerClient::~ParameterServerClient() = default;

std::vector<Duration> ParameterServerClient::waiting() { return sessions_->waiting(); }
uint64_t ParameterServerClient::bytes_pushed() const { return sessions_->bytes_sent(); }
uint64_t ParameterServerClient::bytes_pulled() const { return sessions_->bytes_received(); }
uint64_t ParameterServerClient::floats_early() const { return sessions_->floats_early(); }

absl::StatusOr<JoinResult> ParameterServerClient::Join(std::span<float> parameters) {
  reads_exactly_ = false;
  encoder_->Reset();
  MUSTER_ASSIGN_OR_RETURN(const std::vector<ps::JoinReply> joined, sessions_->Join(parameters));
  for (size_t i = 0; i < joined.size(); ++i) {
    const uint64_t step = joined[i].step();
    // What all make together is made again by all when one is lost, also by those whose part is there.
    clocks_[i] = {step, config_.needs_all_workers() ? step : std::max(step, joined[i].next_step())};
  }
  MUSTER_RETURN_IF_ERROR(Align({.parameters = parameters}));
  const ps::JoinReply& first = joined[0];
  return JoinResult{.step = is_async() ? clocks_[0].version : step_,
                    .pushes = first.pushes(),
                    .all_samples = first.all_samples(),
                    .share_place = static_cast<int>(first.share_place()),
                    .share_count = static_cast<int>(first.share_count())};
}

// Shards apply a step that has been chosen one after the other, and other workers may have gone on without
// this one: until no shard's parameters are too old for the step that is to be contributed to. A backup
// worker with a slow link may be behind for long, which holds up nobody: it has a deadline only as long as
// nothing moves.
absl::Status ParameterServerClient::Align(const AnswerTarget& target) {
  if (is_async()) return absl::OkStatus();
  const Duration answer_timeout = sessions_->options().answer_timeout;
  TimePoint deadline = Now() + answer_timeout;
  while (true) {
    const uint64_t step = NextStep(clocks_);
    if (step != std::exchange(step_, step)) deadline = Now() + answer_timeout;
    ShardRequests requests(clocks_.size());
    bool aligned = true;
    for (size_t i = 0; i < clocks_.size(); ++i) {
      if (!IsTooOldFor(step_, clocks_[i], config_.staleness())) continue;
      aligned = false;
      ps::Pull* pull = requests[i].emplace().header.mutable_pull();
      pull->set_parameters(true);
      pull->set_at_least(step_ - config_.staleness());
      if (target.rows != nullptr) *pull->mutable_rows() = target.rows->rows(static_cast<int>(i));
    }
    if (aligned) return absl::OkStatus();
    if (Now() >= deadline)
      return DeadlineExceeded("the other workers' steps are faster than a pull of step %d", step_);
    MUSTER_RETURN_IF_ERROR(PullParameters(std::move(requests), target));
  }
}

absl::Status ParameterServerClient::PullParameters(ShardRequests requests, const AnswerTarget& target) {
  MUSTER_ASSIGN_OR_RETURN(const ShardAnswers answers, sessions_->Exchange(std::move(requests), target));
  for (size_t i = 0; i < clocks_.size(); ++i) {
    if (!answers.headers[i].has_pull()) continue;  // it was not asked
    clocks_[i].version = answers.headers[i].pull().step();
    clocks_[i].next_step = std::max(clocks_[i].next_step, clocks_[i].version);
  }
  return absl::OkStatus();
}

absl::StatusOr<PushResult> ParameterServerClient::PushPull(const Contribution& contribution,
                                                           std::span<float> parameters,
                                                           const RowIndex& next_rows,
                                                           std::span<float> next_row_values) {
  const TimePoint start = Now();
  const std::span<const float> row_gradients = contribution.gradient.subspan(layout_size_);
  rows_.Build(contribution.rows);
  next_rows_.Build(next_rows);
  ShardRequests requests(clocks_.size());
  ++sequence_;
  if (!encoder_->is_identity()) encoder_->Begin(contribution.gradient);
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    ShardRequest& request = requests[i].emplace();
    ps::Push* push = request.header.mutable_push();
    push->set_sequence(sequence_);
    push->set_step(step_);
    push->set_version(clocks_[i].version);
    push->set_samples(contribution.samples);
    push->set_loss_sum(contribution.loss_sum);
    *push->mutable_rows() = rows_.rows(i);
    *push->mutable_next_rows() = next_rows_.rows(i);
    const LayoutRange range = sessions_->range(i);
    const auto of_rows = std::make_shared<std::vector<float>>(rows_.size(i));
    rows_.Gather(i, row_gradients, *of_rows);
    if (encoder_->is_identity()) {
      request.borrowed = contribution.gradient.subspan(range.begin, range.size());
      request.payload.push_back(ShareFloats(of_rows));
    } else {
      EncodedFloats encoded = encoder_->Encode(range, *of_rows);
      *request.header.mutable_encoding() = std::move(encoded.encoding);
      request.payload = std::move(encoded.payload);
    }
  }
  const AnswerTarget target{.parameters = parameters, .rows = &next_rows_, .row_values = next_row_values};
  const Duration encoding = Now() - start;
  MUSTER_ASSIGN_OR_RETURN(const ShardAnswers answers, sessions_->Exchange(std::move(requests), target));
  for (size_t i = 0; i < clocks_.size(); ++i) {
    if (!answers.headers[i].has_push()) continue;
    const uint64_t version = answers.headers[i].push().step();
    clocks_[i] = {version, std::max(version, step_ + 1)};
  }
  MUSTER_RETURN_IF_ERROR(Align(target));
  ExchangeTimes times = answers.times;
  times.push += encoding;
  times.wait = std::max(Now() - start - times.push - times.pull, Duration::zero());
  const ps::PushReply& first = answers.headers[0].push();
  constexpr PushOutcome kOutcomes[] = {PushOutcome::kApplied, PushOutcome::kStale, PushOutcome::kDuplicate,
                                       PushOutcome::kHeld};
  return PushResult{.outcome = kOutcomes[std::clamp<int>(first.outcome(), 0, 3)],
                    .step = is_async() ? first.step() : step_,
                    .mean_loss = first.mean_loss(),
                    .samples = first.samples(),
                    .staleness = first.staleness(),
                    .all_samples = first.all_samples(),
                    .times = times};
}

absl::StatusOr<uint64_t> ParameterServerClient::PullRows(const RowIndex& rows, std::span<float> values) {
  next_rows_.Build(rows);
  ShardRequests requests(clocks_.size());
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    ps::Pull* pull = requests[i].emplace().header.mutable_pull();
    pull->set_at_least(clocks_[i].version);
    pull->set_exact(reads_exactly_);
    *pull->mutable_rows() = next_rows_.rows(i);
  }
  const AnswerTarget target{.rows = &next_rows_, .row_values = values};
  MUSTER_ASSIGN_OR_RETURN(const ShardAnswers answers, sessions_->Exchange(std::move(requests), target));
  uint64_t newest = 0;
  for (const ps::ServerHeader& reply : answers.headers) newest = std::max(newest, reply.pull().step());
  return newest;
}

absl::StatusOr<ps::AwaitFinishedReply> ParameterServerClient::AwaitFinished() {
  ShardRequests requests(clocks_.size());
  requests[0].emplace().header.mutable_await_finished();
  MUSTER_ASSIGN_OR_RETURN(const ShardAnswers answers,
                          sessions_->Exchange(std::move(requests), {}, ShardSessions::Patience::kLife));
  return answers.headers[0].await_finished();
}

absl::StatusOr<ps::AwaitFinishedReply> ParameterServerClient::AwaitOthers(std::span<float> parameters) {
  MUSTER_ASSIGN_OR_RETURN(const ps::AwaitFinishedReply reply, AwaitFinished());
  reads_exactly_ = true;
  ShardRequests requests(clocks_.size());
  for (auto& request : requests) {
    ps::Pull* pull = request.emplace().header.mutable_pull();
    pull->set_parameters(true);
    // What this worker has contributed to is made by now, or on its way to the shards.
    pull->set_at_least(step_);
    pull->set_exact(true);
  }
  MUSTER_RETURN_IF_ERROR(PullParameters(std::move(requests), {.parameters = parameters}));
  // A bounded shard may have held contributions when the first answer came.
  if (config_.mode() == ps::BOUNDED) return AwaitFinished();
  return reply;
}

absl::Status ParameterServerClient::Finish() { return sessions_->Finish(step_); }

void ParameterServerClient::Fail(const std::string& why) { sessions_->Fail(why); }

}  // namespace muster
