// When a cluster is given up and another one fixed, and what is written down, if it can be.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"

namespace muster::reconcile {
namespace {

// So that of many tasks that end together the record is written once.
constexpr Duration kWriteSuccessesAfter = std::chrono::seconds(1);

}  // namespace

void Reconciler::Persist() {
  persist_at_.reset();
  is_awaited_ = true;
  if (!persisted_after_) persisted_after_ = last_id_;
  actions_.push_back(PersistRecord{record_});
  if (std::exchange(is_held_, false)) TouchAll();
}

void Reconciler::NoteSuccess(Task& task) {
  if (phase_ != Phase::kRunning || std::exchange(task.success_noted, true)) return;
  record_.successes.push_back(*task.report);
  if (!persist_at_) persist_at_ = now_ + kWriteSuccessesAfter;
}

void Reconciler::BeginGathering() {
  phase_ = Phase::kGathering;
  gang_complete_ = false;
  moved_at_.reset();
  record_.fixed = false;
  Persist();
  for (Task& task : tasks_) {
    task.leased = false;
    task.attempts = 0;
    task.missing = task.displaced = false;
  }
  // A new cluster needs everybody. Who was away gets the time to come back once more.
  for (Host& host : hosts_) {
    if (host.tasks.empty() || !std::exchange(host.given_up, false)) continue;
    host.lost_since = now_;
    host.lost_for = {};
    host.connect_at = std::min(host.connect_at, now_);
  }
  TouchAll();
}

bool Reconciler::TakeRetry() {
  if (now_ - in_force_since_ >= options_.retries_forgotten_after) {
    record_.retries = 0;
    record_.lost_ports.clear();
  }
  if (record_.retries >= options_.max_retries) return false;
  ++record_.retries;
  return true;
}

void Reconciler::LosePort(Task& task) {
  const LostPort lost{task.desired.host, task.port};
  if (std::find(record_.lost_ports.begin(), record_.lost_ports.end(), lost) == record_.lost_ports.end()) {
    record_.lost_ports.push_back(lost);
  }
}

void Reconciler::FixGeneration() {
  record_.base_generation = record_.generation + 1;
  record_.departures.clear();
  record_.successes.clear();
  record_.incarnations.clear();
  for (Task& task : tasks_) {
    task.success_noted = false;
    task.note = -1;
    task.restarts = 0;
  }
  FixCluster();
  phase_ = Phase::kRunning;
  gang_complete_ = true;
  in_force_since_ = now_;
}

// Of hosts that move together, each would cost all tasks a generation.
TimePoint Reconciler::MovesUntil() const {
  return *moved_at_ + std::min(totals_.connecting * options_.moves_wait, options_.moves_wait_limit);
}

void Reconciler::FixCluster() {
  moved_at_.reset();
  auto cluster = std::make_shared<Cluster>();
  cluster->reserve(tasks_.size());
  for (Task& task : tasks_) {
    if (task.displaced) {
      if (IsNew(task)) continue;
      Member before = (*record_.cluster)[task.member];
      before.data_address = hosts_[host_index_.at(before.host)].desired.data_address;
      task.member = static_cast<int>(cluster->size());
      cluster->push_back(std::move(before));
      continue;
    }
    // What a start under it comes to at least; written down, because another launcher may not hear of it.
    const uint32_t next = task.report ? task.report->incarnation + 1 : 1;
    task.minimum_incarnation = std::max(task.minimum_incarnation, next);
    task.member = static_cast<int>(cluster->size());
    cluster->push_back({task.desired.id, task.desired.host, hosts_[task.host].desired.data_address,
                        task.leased ? task.port : 0, task.minimum_incarnation, task.restarts});
  }
  if (std::exchange(has_leavers_, false)) NoteDepartures();
  ++record_.generation;
  record_.fixed = true;
  record_.cluster = std::move(cluster);
  Persist();
  TouchAll();
}

// What runs needs no record: it runs on while what is asked of hosts waits for one that can be written.
void Reconciler::On(const RecordFailed& event) {
  if (!persisted_after_) return;
  const RequestId last_sent = *std::exchange(persisted_after_, std::nullopt);
  for (Host& host : hosts_) {
    const size_t dropped = std::erase_if(host.requests, [last_sent](const Request& request) {
      return request.id > last_sent && request.ask != Ask::kReport;
    });
    if (dropped > 0) Touch(host);
  }
  persist_at_ = now_ + Backoff(++record_failures_, "");
  if (phase_ == Phase::kEnding || !is_awaited_) return;
  if (!unwritten_since_) unwritten_since_ = now_;
  is_held_ = now_ - *unwritten_since_ < options_.lost_deadline;
  if (is_held_) return;
  BeginEnding({.result = Result::kFailed,
               .exit_code = ExitCodeFor(event.status),
               .message = absl::StrFormat("the job record cannot be written: %s", event.status.message())});
}

}  // namespace muster::reconcile
