#include "bench/simulator/time_slices.h"

#include <algorithm>
#include <array>

#include "bench/simulator/server_simulation.h"

namespace muster::simulator {

TimeSlices::TimeSlices(const Scenario& scenario, double slice_seconds)
    : scenario_(scenario),
      slice_seconds_(slice_seconds),
      push_bytes_(scenario.traffic.dense_bytes + scenario.traffic.sparse_push_bytes),
      pull_bytes_(scenario.traffic.dense_bytes + scenario.traffic.sparse_pull_bytes),
      compute_times_(scenario.compute, scenario.seed),
      workers_(scenario.cluster.workers) {
  for (int worker = 0; worker < scenario.cluster.workers; ++worker) {
    if (scenario.strategy == Strategy::kAsyncServers) {
      workers_[worker].phase = Phase::kPulled;
      workers_[worker].until = AsyncStartSeconds(scenario, worker);
    } else {
      BeginTransfer(worker, Phase::kPulling, pull_bytes_);
    }
  }
}

std::vector<double> TimeSlices::Run(int updates) {
  while (static_cast<int>(updates_.size()) < updates) {
    MoveBytes();
    now_ += slice_seconds_;
    // First what the processors do: an answer behind an update in their queue has its parameters.
    if (agreed_at_ <= now_) MakeStep();
    if (update_at_ <= now_) UpdateSync();
    for (int worker = 0; worker < static_cast<int>(workers_.size()); ++worker) Advance(worker);
  }
  updates_.resize(updates);
  return updates_;
}

int TimeSlices::Needed() const { return scenario_.cluster.workers - scenario_.traffic.backup_workers; }

// Workers are hosts 0 to n - 1; servers' own hosts come behind them.
int TimeSlices::HostOf(int shard) const {
  const Cluster& cluster = scenario_.cluster;
  return cluster.servers_on_workers ? shard % cluster.workers : cluster.workers + shard;
}

void TimeSlices::BeginTransfer(int index, Phase phase, double bytes) {
  Worker& worker = workers_[index];
  worker.phase = phase;
  worker.share = 1;
  if (phase == Phase::kPulling && ShareOf(scenario_, index, worker.pulls++) == Share::kLarge) {
    worker.share = scenario_.cluster.large_share;
  }
  worker.bytes_left.assign(scenario_.cluster.servers, bytes / scenario_.cluster.servers);
  worker.has_links = false;
  for (int shard = 0; shard < scenario_.cluster.servers; ++shard) {
    if (HostOf(shard) == index) {
      worker.bytes_left[shard] = 0;
    } else {
      worker.has_links = true;
    }
  }
}

std::vector<TimeSlices::Flow> TimeSlices::ListFlows() const {
  std::vector<Flow> flows;
  for (int index = 0; index < static_cast<int>(workers_.size()); ++index) {
    const Worker& worker = workers_[index];
    if (worker.phase != Phase::kPushing && worker.phase != Phase::kPulling) continue;
    for (int shard = 0; shard < scenario_.cluster.servers; ++shard) {
      if (worker.bytes_left[shard] <= 0) continue;
      const bool is_push = worker.phase == Phase::kPushing;
      flows.push_back({.worker = index,
                       .shard = shard,
                       .from_host = is_push ? index : HostOf(shard),
                       .to_host = is_push ? HostOf(shard) : index,
                       .share = worker.share});
    }
  }
  return flows;
}

// Progressive filling: the link that gives its flows the least settles them; what they take is gone from the
// others.
void TimeSlices::Share(std::vector<Flow>* flows) const {
  const int hosts = scenario_.cluster.workers + scenario_.cluster.servers;
  std::vector<double> free(2 * hosts, scenario_.cluster.link_bytes_per_second);  // sending, then receiving
  std::vector<int> unsettled(2 * hosts);
  std::vector<double> shares(2 * hosts);  // of those
  const auto links_of = [&](const Flow& flow) { return std::array{flow.from_host, hosts + flow.to_host}; };
  for (const Flow& flow : *flows) {
    for (const int link : links_of(flow)) {
      ++unsettled[link];
      shares[link] += flow.share;
    }
  }
  for (size_t settled = 0; settled < flows->size();) {
    int least = -1;
    for (int link = 0; link < 2 * hosts; ++link) {
      if (unsettled[link] == 0) continue;
      if (least < 0 || free[link] / shares[link] < free[least] / shares[least]) least = link;
    }
    const double rate = free[least] / shares[least];  // of a share of 1
    for (Flow& flow : *flows) {
      if (flow.rate > 0 || (flow.from_host != least && hosts + flow.to_host != least)) continue;
      flow.rate = flow.share * rate;
      ++settled;
      for (const int link : links_of(flow)) {
        free[link] = std::max(0.0, free[link] - flow.rate);
        shares[link] -= flow.share;
        --unsettled[link];
      }
    }
  }
}

void TimeSlices::MoveBytes() {
  std::vector<Flow> flows = ListFlows();
  Share(&flows);
  for (const Flow& flow : flows) {
    workers_[flow.worker].bytes_left[flow.shard] -= flow.rate * slice_seconds_;
  }
}

void TimeSlices::Advance(int index) {
  Worker& worker = workers_[index];
  const bool has_sent = std::all_of(worker.bytes_left.begin(), worker.bytes_left.end(),
                                    [](double bytes) { return bytes <= 0; });
  const bool is_async = scenario_.strategy == Strategy::kAsyncServers;
  switch (worker.phase) {
    case Phase::kPulled:
      if (worker.until > now_) return;
      worker.phase = Phase::kComputing;
      worker.until = now_ + compute_times_.Seconds(index, is_async ? worker.own_step++ : worker.step);
      return;
    case Phase::kComputing:
      if (worker.until <= now_) BeginTransfer(index, Phase::kPushing, push_bytes_);
      return;
    case Phase::kPushing:
    case Phase::kPulling:
      if (!has_sent) return;
      worker.until = now_ + (worker.has_links ? scenario_.cluster.latency_seconds : 0);
      worker.phase = worker.phase == Phase::kPushing ? Phase::kPushed : Phase::kPulled;
      return;
    case Phase::kPushed:
      if (worker.until <= now_) Arrive(index);
      return;
    case Phase::kAnswered:
      if (worker.until > now_) return;
      if (is_async) updates_.push_back(worker.until);
      worker.step = step_;
      BeginTransfer(index, Phase::kPulling, pull_bytes_);
      return;
    case Phase::kWaiting:
      return;
  }
}

void TimeSlices::Arrive(int index) {
  const Cluster& cluster = scenario_.cluster;
  Worker& worker = workers_[index];
  if (scenario_.strategy == Strategy::kAsyncServers) {
    processor_free_ =
        std::max(processor_free_, now_) + push_bytes_ / cluster.servers * cluster.update_seconds_per_byte;
    worker.phase = Phase::kAnswered;
    worker.until = processor_free_;
    return;
  }
  if (worker.step < step_) {
    worker.phase = Phase::kAnswered;
    worker.until = std::max(now_, processor_free_);
    return;
  }
  worker.phase = Phase::kWaiting;
  if (is_chosen_) return;
  contributors_.push_back(index);
  if (static_cast<int>(contributors_.size()) < Needed()) return;
  is_chosen_ = true;
  agreed_at_ = now_ + (cluster.servers > 1 ? 2 * cluster.latency_seconds : 0);
}

void TimeSlices::MakeStep() {
  agreed_at_ = kNever;
  const Cluster& cluster = scenario_.cluster;
  const double summed_bytes = Needed() * push_bytes_;
  const double updated_bytes = scenario_.traffic.dense_bytes + Needed() * scenario_.traffic.sparse_push_bytes;
  processor_free_ = std::max(processor_free_, now_) + (summed_bytes * cluster.sum_seconds_per_byte +
                                                       updated_bytes * cluster.update_seconds_per_byte) /
                                                          cluster.servers;
  update_at_ = processor_free_;
}

void TimeSlices::UpdateSync() {
  updates_.push_back(update_at_);
  update_at_ = kNever;
  is_chosen_ = false;
  ++step_;
  contributors_.clear();
  for (Worker& worker : workers_) {
    if (worker.phase != Phase::kWaiting) continue;
    worker.phase = Phase::kAnswered;
    worker.until = now_;
  }
}

}  // namespace muster::simulator
