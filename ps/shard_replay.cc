#include "ps/shard_replay.h"

#include <algorithm>

namespace muster {
namespace {

// Steps that the slowest shard can be behind, beyond the staleness: a worker has every shard's answer to one
// step before it contributes to the next.
constexpr uint64_t kDecisionsKept = 64;

}  // namespace

journal::Record JoinRecord(const WorkerIdentity& worker) {
  journal::Record record;
  record.mutable_join()->set_rank(static_cast<uint32_t>(worker.rank));
  record.mutable_join()->set_worker_uuid(worker.uuid);
  record.mutable_join()->set_incarnation(static_cast<uint32_t>(worker.incarnation));
  return record;
}

journal::Record PushRecord(const WorkerIdentity& worker, const ps::Push& push,
                           const ShardGradient& gradient) {
  journal::Record record;
  record.mutable_push()->set_rank(static_cast<uint32_t>(worker.rank));
  record.mutable_push()->set_worker_uuid(worker.uuid);
  *record.mutable_push()->mutable_push() = push;
  *record.mutable_push()->mutable_push()->mutable_rows() = gradient.rows;
  record.mutable_push()->mutable_push()->clear_next_rows();
  return record;
}

journal::Record DecisionRecord(const StepDecision& decision) {
  journal::Record record;
  record.mutable_decision()->set_step(decision.step);
  for (const int rank : decision.ranks) record.mutable_decision()->add_ranks(static_cast<uint32_t>(rank));
  return record;
}

journal::Record EndRecord() {
  journal::Record record;
  record.mutable_end();
  return record;
}

journal::Record CommonRecord(uint64_t checkpoint) {
  journal::Record record;
  record.mutable_common()->set_checkpoint(checkpoint);
  return record;
}

journal::Record FinishRecord(int rank, uint64_t next_step) {
  journal::Record record;
  record.mutable_finish()->set_rank(static_cast<uint32_t>(rank));
  record.mutable_finish()->set_next_step(next_step);
  return record;
}

absl::StatusOr<std::unique_ptr<ShardReplay>> ShardReplay::Begin(const ps::JobConfig& config,
                                                                const Epoch& epoch, Shard base,
                                                                UpdateRuleState rule, int rank_count,
                                                                FrameServer* frames, Outbox* outbox) {
  MUSTER_ASSIGN_OR_RETURN(UpdateConfig update, UpdateOf(config));
  if (update.rule.worker_count != rank_count) {
    return FailedPrecondition("the job has %d workers, the cluster %d", update.rule.worker_count, rank_count);
  }
  auto replay = std::make_unique<ShardReplay>();
  replay->config = config;
  replay->update = std::move(update);
  replay->newest_common = epoch.step;
  replay->requests = std::make_unique<Requests>(frames, outbox);
  replay->shard.emplace(epoch, std::move(base), replay->update, std::move(rule), replay->requests.get());
  return replay;
}

absl::Status ShardReplay::Replay(const journal::Record& record, FloatPayload payload) {
  const auto is_rank = [this](uint32_t rank) {
    return rank < static_cast<uint32_t>(update.rule.worker_count);
  };
  const absl::Status bad = DataLoss("there is something that the job cannot have");
  if (record.has_join()) {
    const journal::Join& join = record.join();
    if (!is_rank(join.rank())) return bad;
    finished.erase(static_cast<int>(join.rank()));
    return shard->Join({static_cast<int>(join.rank()), join.worker_uuid(), join.incarnation()}).status();
  }
  if (record.has_push()) {
    const journal::Push& push = record.push();
    const WorkerIdentity worker{.rank = static_cast<int>(push.rank()), .uuid = push.worker_uuid()};
    ShardGradient gradient{.values = std::move(payload), .rows = push.push().rows(), .finite = true};
    if (!is_rank(push.rank()) || !shard->CheckPush(worker, push.push(), gradient).ok()) return bad;
    shard->Push(worker, requests->AddNobody(), push.push(), std::move(gradient));
  } else if (record.has_decision()) {
    const journal::Decision& decision = record.decision();
    std::vector<int> ranks(decision.ranks().begin(), decision.ranks().end());
    if (ranks.empty() || !std::all_of(decision.ranks().begin(), decision.ranks().end(), is_rank)) return bad;
    const auto known = decisions.find(decision.step());
    if (known != decisions.end() && known->second != ranks) return bad;
    shard->Decide({decision.step(), ranks});
    decisions[decision.step()] = std::move(ranks);
    const uint64_t kept = kDecisionsKept + update.rule.staleness;
    const uint64_t step = shard->rule().step();
    if (step > kept) decisions.erase(decisions.begin(), decisions.lower_bound(step - kept));
  } else if (record.has_finish()) {
    if (!is_rank(record.finish().rank())) return bad;
    finished[static_cast<int>(record.finish().rank())] = record.finish().next_step();
  } else if (record.has_common()) {
    newest_common = std::max(newest_common, record.common().checkpoint());
  } else if (record.has_end()) {
    finished.clear();
  }
  return absl::OkStatus();
}

uint64_t ShardReplay::next_decision() const {
  return std::max(shard->rule().step(), decisions.empty() ? 0 : decisions.rbegin()->first + 1);
}

}  // namespace muster
