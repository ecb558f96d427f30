#include "ps/shard_epoch.h"

namespace muster {

ShardEpoch::ShardEpoch(const Epoch& epoch, Shard shard, const UpdateConfig& update, UpdateRuleState state,
                       Requests* requests)
    : epoch_(epoch),
      is_async_(update.rule.mode == UpdateMode::kAsync),
      wire_type_(update.compression.wire_type),
      shard_(std::move(shard)),
      encoder_(update.compression, shard_.range().size(), state.step),
      rule_(update.rule, std::move(state)),
      requests_(requests) {}

absl::StatusOr<JoinAnswer> ShardEpoch::Join(const WorkerIdentity& worker) {
  UpdateActions actions;
  auto answer = rule_.Join(worker, &actions);
  Perform(std::move(actions));
  return answer;
}

absl::Status ShardEpoch::CheckPush(const WorkerIdentity& worker, const ps::Push& push,
                                   const ShardGradient& gradient) const {
  absl::Status status = shard_.CheckGradient(gradient);
  if (status.ok() && push.next_rows_size() > 0) {
    status = shard_.tables().CheckRows(push.next_rows()).status();
  }
  return Annotate(status, absl::StrFormat("rank %d", worker.rank));
}

void ShardEpoch::Push(const WorkerIdentity& worker, PushId request, const ps::Push& push,
                      ShardGradient gradient) {
  const PushInfo info{.id = request,
                      .sequence = push.sequence(),
                      .step = push.step(),
                      .version = push.version(),
                      .samples = push.samples(),
                      .loss_sum = push.loss_sum(),
                      .finite = gradient.finite};
  gradients_.emplace(info.id, std::move(gradient));
  Perform(rule_.Push(worker, info));
}

void ShardEpoch::VisitHeld(
    const std::function<void(const WorkerIdentity&, const ps::Push&, const ShardGradient&)>& visit) const {
  for (const auto& [worker, info] : rule_.held_pushes()) {
    ps::Push push;
    push.set_sequence(info.sequence);
    push.set_step(info.step);
    push.set_version(info.version);
    push.set_samples(info.samples);
    push.set_loss_sum(info.loss_sum);
    visit(worker, push, gradients_.at(info.id));
  }
}

absl::Status ShardEpoch::Pull(StreamId stream, uint64_t request, const ps::Pull& pull) {
  if (pull.rows_size() > 0) MUSTER_RETURN_IF_ERROR(shard_.tables().CheckRows(pull.rows()).status());
  const PushId id =
      requests_->Add({.stream = stream, .number = request, .rows = pull.rows(), .exact = pull.exact()});
  pulls_.push_back({id, pull});
  AnswerPulls();
  return absl::OkStatus();
}

void ShardEpoch::Decide(const StepDecision& decision) { Perform(rule_.Decide(decision)); }

void ShardEpoch::Perform(UpdateActions actions) {
  for (; !actions.empty(); actions = rule_.Proceed()) {
    for (const UpdateAction& action : actions) {
      std::visit([this](const auto& a) { Do(a); }, action);
    }
  }
  AnswerPulls();
}

void ShardEpoch::Do(const ApplyAction& action) {
  std::vector<const ShardGradient*> gradients;
  for (const PushId id : action.pushes) gradients.push_back(&gradients_.at(id));
  // Held only where they are compared: an update of parameters that nobody holds needs no second buffer.
  const Floats before = encoder_.compares_updates() ? shard_.parameters() : nullptr;
  shard_.Apply(gradients, action.samples, action.rate_scale);
  encoder_.OnUpdate(before != nullptr ? *before : std::span<const float>(), *shard_.parameters());
  for (const PushId id : action.pushes) gradients_.erase(id);
  if (after_update_) after_update_();
}

void ShardEpoch::Do(const AnswerAction& action) {
  ps::ServerHeader header;
  ps::PushReply* reply = header.mutable_push();
  constexpr ps::PushOutcome kOutcomes[] = {ps::APPLIED, ps::STALE, ps::DUPLICATE, ps::HELD};
  reply->set_outcome(kOutcomes[static_cast<int>(action.outcome)]);
  reply->set_step(action.step);
  reply->set_mean_loss(action.mean_loss);
  reply->set_samples(action.samples);
  reply->set_staleness(action.staleness);
  Answer(action.id, std::move(header), shard_.parameters());
}

void ShardEpoch::AnswerPulls() {
  std::erase_if(pulls_, [this](const WaitingPull& waiting) {
    if (!is_async_ && rule_.step() < waiting.pull.at_least() && requests_->Contains(waiting.id)) return false;
    ps::ServerHeader header;
    header.mutable_pull()->set_step(rule_.step());
    Answer(waiting.id, std::move(header), waiting.pull.parameters() ? shard_.parameters() : nullptr);
    return true;
  });
}

void ShardEpoch::Answer(PushId id, ps::ServerHeader header, const Floats& parameters) {
  const auto request = requests_->Take(id);
  if (!request) return;
  EncodedFloats encoded;
  if (request->exact) {
    if (parameters != nullptr) encoded.payload.push_back(ShareFloats(parameters));
  } else if (parameters != nullptr) {
    encoded = encoder_.Encode(parameters, request->version);
  } else {
    encoded.encoding.set_type(wire_type_);
  }
  if (!request->rows.empty()) {
    auto values = std::make_shared<std::vector<float>>(*shard_.tables().CheckRows(request->rows));
    shard_.tables().Read(request->rows, *values);
    encoded.payload.push_back(EncodeFloats(Floats(std::move(values)), encoded.encoding.type()));
  }
  *header.mutable_encoding() = std::move(encoded.encoding);
  requests_->Answer(*request, std::move(header), encoded.payload);
}

}  // namespace muster
