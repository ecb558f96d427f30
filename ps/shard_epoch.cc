#include "ps/shard_epoch.h"

#include <numeric>

namespace muster {
namespace {

// Of numbers that travel as they are: what is compressed depends on what its receiver has, as a whole.
bool MakesEarly(const UpdateConfig& update) {
  return update.rule.mode == UpdateMode::kSync && update.aggregate == update.rule.worker_count &&
         update.compression.wire_type == ps::FLOAT32 && update.compression.top_k == 0;
}

}  // namespace

ShardEpoch::ShardEpoch(const Epoch& epoch, Shard shard, const UpdateConfig& update, UpdateRuleState state,
                       Requests* requests)
    : epoch_(epoch),
      is_async_(update.rule.mode == UpdateMode::kAsync),
      makes_early_(MakesEarly(update)),
      wire_type_(update.compression.wire_type),
      shard_(std::move(shard)),
      encoder_(update.compression, shard_.range().size(), state.step),
      rule_(update.rule, std::move(state)),
      requests_(requests),
      early_(shard_.range().size()),
      last_ranks_(update.rule.worker_count) {
  std::iota(last_ranks_.begin(), last_ranks_.end(), 0);
}

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
  gradients_.emplace(info.id, Held{worker.rank, std::move(gradient)});
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
    visit(worker, push, gradients_.at(info.id).gradient);
  }
}

void ShardEpoch::Arrive(const WorkerIdentity& worker, const ps::Push& push, const EarlyUpdate::Push& arrival,
                        int64_t begin, const FloatPayload& values) {
  if (!makes_early_ || push.step() != rule_.step() || !rule_.CheckNewest(worker).ok()) return;
  if (early_.step() != rule_.step()) {
    GiveUpEarly();
    early_.Begin(rule_.step(), last_ranks_);
  }
  early_.Add(arrival, begin, values);
  if (early_.made() == 0) shard_.DropPrepared();  // it may have been given up
  while (const auto part = early_.Next()) {
    shard_.Prepare(part->range, part->gradients, part->samples);
    const std::span<const float> made =
        std::span(*shard_.prepared()).subspan(part->range.begin, part->range.size());
    for (const EarlyUpdate::Recipient& recipient : early_.recipients()) {
      ps::ServerHeader header;
      header.set_request(recipient.request);
      header.mutable_part()->set_begin(static_cast<uint64_t>(part->range.begin));
      requests_->SendNow(recipient.stream, std::move(header), {BorrowFloats(made, shard_.prepared())});
    }
  }
}

void ShardEpoch::GiveUpEarly() {
  early_.GiveUp();
  shard_.DropPrepared();
}

ShardSnapshot ShardEpoch::Snapshot() {
  GiveUpEarly();
  return shard_.Snapshot();
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
  std::vector<uint64_t> arrivals;
  last_ranks_.clear();
  for (const PushId id : action.pushes) {
    const Held& held = gradients_.at(id);
    gradients.push_back(&held.gradient);
    arrivals.push_back(held.gradient.arrival);
    last_ranks_.push_back(held.rank);
  }
  if (!early_.IsOf(arrivals)) GiveUpEarly();
  // Held only where they are compared: an update of parameters that nobody holds needs no second buffer.
  const Floats before = encoder_.compares_updates() ? shard_.parameters() : nullptr;
  shard_.Apply(gradients, action.samples, action.rate_scale);
  early_.End();
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
  reply->set_all_samples(action.all_samples);
  Answer(action.id, std::move(header), shard_.parameters());
}

// Floats that have been sent, and that are right: this is the answer to a push of the step that was made of
// them.
int64_t ShardEpoch::EarlyOf(const Request& request, const ps::ServerHeader& answer) const {
  const bool is_of_step = answer.has_push() && answer.push().outcome() == ps::APPLIED && early_.step() &&
                          answer.push().step() == *early_.step() + 1;
  return is_of_step ? early_.SentTo({request.stream, request.number}) : 0;
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
  if (const int64_t early = EarlyOf(*request, header); early > 0) {
    header.mutable_push()->set_early(static_cast<uint64_t>(early));
    encoded.payload[0] = encoded.payload[0].sub(early * sizeof(float), encoded.payload[0].size());
  }
  *header.mutable_encoding() = std::move(encoded.encoding);
  requests_->Answer(*request, std::move(header), encoded.payload);
}

}  // namespace muster
