#include "bench/simulator/server_simulation.h"

#include "base/random.h"
#include "bench/simulator/allreduce_times.h"
#include "bench/simulator/bounds.h"

namespace muster::simulator {
namespace {

// Updates of each asynchronous worker before it is observed.
constexpr int64_t kWarmUpRounds = 2;

ServerTraffic TrafficOf(const Scenario& scenario, const FairLinksOptions& links) {
  return {.workers = links.workers,
          .servers = links.servers,
          .servers_on_workers = links.servers_on_workers,
          .push_bytes = links.push_bytes,
          .pull_bytes = links.pull_bytes,
          .link_bytes_per_second = scenario.cluster.link_bytes_per_second};
}

// Of a worker's link, for the rows of a hybrid step whose dense gradient is reduced meanwhile. A ring keeps
// both directions busy at once, so what a push takes of one of them and a pull of the other is lost to it.
double RowsShare(const Scenario& scenario, const FairLinksOptions& links) {
  const double dense_bytes = ReducedTraffic(scenario.cluster, scenario.traffic).busiest;
  const double row_bytes = links.servers_on_workers ? SyncServersBoundSeconds(TrafficOf(scenario, links)) *
                                                          scenario.cluster.link_bytes_per_second
                                                    : links.push_bytes + links.pull_bytes;
  const bool is_shared = scenario.strategy == Strategy::kHybrid &&
                         scenario.traffic.hybrid_order == HybridOrder::kTogether && dense_bytes > 0 &&
                         row_bytes > 0;
  return is_shared ? row_bytes / (row_bytes + dense_bytes) : 1;
}

Cluster DenseCluster(const Scenario& scenario, const FairLinksOptions& links) {
  Cluster cluster = scenario.cluster;
  const double rows_share = links.worker_link_bytes_per_second / cluster.link_bytes_per_second;
  if (rows_share < 1) cluster.link_bytes_per_second *= 1 - rows_share;
  return cluster;
}

}  // namespace

FairLinksOptions ServerLinks(const Scenario& scenario) {
  const Cluster& cluster = scenario.cluster;
  const double dense_bytes = scenario.strategy == Strategy::kHybrid ? 0 : scenario.traffic.dense_bytes;
  FairLinksOptions links = {.workers = cluster.workers,
                            .servers = cluster.servers,
                            .servers_on_workers = cluster.servers_on_workers,
                            .server_link_bytes_per_second = cluster.link_bytes_per_second,
                            .push_bytes = dense_bytes + scenario.traffic.sparse_push_bytes,
                            .pull_bytes = dense_bytes + scenario.traffic.sparse_pull_bytes,
                            .large_share = cluster.large_share};
  links.worker_link_bytes_per_second = cluster.link_bytes_per_second * RowsShare(scenario, links);
  return links;
}

double AsyncStartSeconds(const Scenario& scenario, int worker) {
  const FairLinksOptions links = ServerLinks(scenario);
  const double alone = ComputeTimes(scenario.compute, scenario.seed).MeanSampleSeconds() +
                       2 * scenario.cluster.latency_seconds +
                       (links.push_bytes + links.pull_bytes) / scenario.cluster.link_bytes_per_second;
  const double round = std::max(alone, AsyncServersBoundSeconds(TrafficOf(scenario, links)));
  return round * RandomStream(scenario.seed, static_cast<uint64_t>(worker)).NextDouble();
}

Share ShareOf(const Scenario& scenario, int worker, int64_t number) {
  constexpr uint64_t kStreams = uint64_t{1} << 63;  // beside those of compute times
  const bool waits_for_all =
      scenario.strategy != Strategy::kAsyncServers && scenario.traffic.backup_workers == 0;
  if (waits_for_all) return Share::kEven;
  const uint64_t stream = kStreams | static_cast<uint64_t>(worker) << 32 | static_cast<uint64_t>(number);
  return RandomStream(scenario.seed, stream).NextBelow(2) == 0 ? Share::kEven : Share::kLarge;
}

ServerSimulation::ServerSimulation(const Scenario& scenario)
    : scenario_(scenario),
      cluster_(scenario.cluster),
      traffic_(scenario.traffic),
      compute_times_(scenario.compute, scenario.seed),
      link_options_(ServerLinks(scenario)),
      dense_cluster_(DenseCluster(scenario, link_options_)),
      links_(link_options_),
      needed_(cluster_.workers - traffic_.backup_workers),
      workers_(cluster_.workers) {
  log_.pushes.resize(cluster_.workers);
  log_.pulls.resize(cluster_.workers);
}

StepLog ServerSimulation::Run() {
  BeginAll();
  while (!is_over_) {
    if (!events_.empty() && events_.top().time <= links_.NextEnd()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      Handle(event);
      continue;
    }
    now_ = links_.NextEnd();
    for (const FairLinks::Ended& ended : links_.TakeEnded()) {
      EndTransfer(ended.direction, ended.worker, cluster_.latency_seconds);
    }
  }
  log_.all_updates = step_;
  log_.all_seconds = now_;
  return std::move(log_);
}

void ServerSimulation::Schedule(double time, EventKind kind, int worker) {
  events_.push({time, next_number_++, kind, worker});
}

void ServerSimulation::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kStart:
      return Start(event.worker);
    case EventKind::kPush:
      if (AnswersEarly()) CountPush();
      return BeginTransfer(Direction::kPush, event.worker);
    case EventKind::kArrive:
      return Arrive(event.worker);
    case EventKind::kTake:
      return Take(event.worker);
    case EventKind::kAgreed:
      return MakeStep();
    case EventKind::kUpdate:
      return IsAsync() ? UpdateAsync(event.worker) : UpdateSync();
    case EventKind::kEarly:
      for (int worker = 0; worker < cluster_.workers; ++worker) BeginTransfer(Direction::kPull, worker);
      return;
    case EventKind::kAnswer:
      workers_[event.worker].step = step_;
      if (!AnswersEarly() || step_ == 0) return BeginTransfer(Direction::kPull, event.worker);
      workers_[event.worker].last_part =
          now_ + cluster_.latency_seconds +
          PullBoundSeconds(TrafficOf(scenario_, link_options_)) / traffic_.answer_parts;
      return StartWithParts(event.worker);
  }
}

void ServerSimulation::BeginAll() {
  for (int worker = 0; worker < cluster_.workers; ++worker) {
    if (IsAsync()) {
      Schedule(AsyncStartSeconds(scenario_, worker), EventKind::kStart, worker);
    } else {
      Schedule(Occupy(cluster_.message_seconds), EventKind::kAnswer, worker);
    }
  }
}

void ServerSimulation::Start(int index) {
  Worker& worker = workers_[index];
  worker.start = now_;
  worker.compute_seconds = compute_times_.Seconds(index, IsAsync() ? worker.async_step++ : worker.step);
  worker.computed = now_ + worker.compute_seconds;
  if (!IsHybrid() || traffic_.hybrid_order == HybridOrder::kTogether) {
    Schedule(worker.computed + WorkerMessagesSeconds(), EventKind::kPush, index);
  }
  if (IsHybrid() && ++started_ == cluster_.workers) ReduceDense();
}

// All workers have begun the step, and none can have the sum before the last one has: it is later than now.
void ServerSimulation::ReduceDense() {
  started_ = 0;
  if (step_ > 0) {
    EndStep();
  } else {
    last_step_time_ = now_;
  }
  std::vector<double> starts;
  std::vector<double> compute_seconds;
  for (const Worker& worker : workers_) {
    starts.push_back(worker.start);
    compute_seconds.push_back(worker.compute_seconds);
  }
  const std::vector<double> done = ReduceBuckets(dense_cluster_, traffic_, starts, compute_seconds);
  for (int index = 0; index < cluster_.workers; ++index) {
    workers_[index].dense_done = done[index];
    if (traffic_.hybrid_order == HybridOrder::kDenseThenRows) {
      Schedule(done[index] + WorkerMessagesSeconds(), EventKind::kPush, index);
    }
  }
}

// The first part of the last push is there when it has had its part of the time.
void ServerSimulation::CountPush() {
  if (++pushing_ < cluster_.workers) return;
  pushing_ = 0;
  const double part = PushBoundSeconds(TrafficOf(scenario_, link_options_)) / traffic_.answer_parts;
  Schedule(now_ + part + cluster_.latency_seconds, EventKind::kEarly, -1);
}

void ServerSimulation::StartWithParts(int index) {
  Worker& worker = workers_[index];
  if (!worker.pulled || !worker.last_part) return;
  Schedule(std::max(*worker.pulled, *worker.last_part) + WorkerMessagesSeconds(), EventKind::kStart, index);
  worker.pulled.reset();
  worker.last_part.reset();
}

void ServerSimulation::BeginTransfer(Direction direction, int worker) {
  const Share share =
      direction == Direction::kPull ? ShareOf(scenario_, worker, workers_[worker].pulls++) : Share::kEven;
  if (OwnShare(link_options_, worker) == 1) return EndTransfer(direction, worker, 0);
  links_.Begin(direction, worker, now_, share);
}

void ServerSimulation::EndTransfer(Direction direction, int index, double latency_seconds) {
  const double there = now_ + latency_seconds;
  if (direction == Direction::kPush) {
    ++log_.pushes[index];
    return Schedule(there, EventKind::kArrive, index);
  }
  ++log_.pulls[index];
  // Without a step before, its parameters come by themselves.
  if (AnswersEarly() && log_.pulls[index] > 1) {
    workers_[index].pulled = there;
    return StartWithParts(index);
  }
  Schedule(std::max(there + WorkerMessagesSeconds(), workers_[index].dense_done), EventKind::kStart, index);
}

void ServerSimulation::Arrive(int worker) {
  const double message = cluster_.message_seconds;
  if (IsAsync()) {
    Schedule(Occupy(message + UpdateSeconds(1)), EventKind::kUpdate, worker);
    return Schedule(Occupy(message), EventKind::kAnswer, worker);
  }
  const bool is_summed = traffic_.sums_on_arrival && workers_[worker].step == step_ && !is_chosen_;
  Schedule(Occupy(message + (is_summed ? SumSeconds(1) : 0)), EventKind::kTake, worker);
}

void ServerSimulation::Take(int worker) {
  if (workers_[worker].step < step_) {
    ++log_.stale;
    return Schedule(Occupy(cluster_.message_seconds), EventKind::kAnswer, worker);
  }
  unanswered_.push_back(worker);
  if (is_chosen_) {
    ++log_.stale;
    return;
  }
  contributors_.push_back(worker);
  if (static_cast<int>(contributors_.size()) == needed_) AgreeOnStep();
}

void ServerSimulation::AgreeOnStep() {
  is_chosen_ = true;
  const double agree =
      cluster_.servers > 1 ? 2 * (cluster_.latency_seconds + cluster_.servers * cluster_.message_seconds) : 0;
  Schedule(now_ + agree, EventKind::kAgreed, -1);
}

void ServerSimulation::MakeStep() {
  double last_computed = 0;
  for (const int index : contributors_) last_computed = std::max(last_computed, workers_[index].computed);
  for (const int index : contributors_) {
    log_.compute_seconds += workers_[index].compute_seconds;
    log_.waiting_seconds += last_computed - workers_[index].computed;
  }
  log_.cycles += needed_;
  log_.gradients += needed_;
  const double sum = traffic_.sums_on_arrival ? 0 : SumSeconds(needed_);
  Schedule(Occupy(sum + UpdateSeconds(needed_)), EventKind::kUpdate, -1);
}

void ServerSimulation::UpdateSync() {
  ++step_;
  is_chosen_ = false;
  contributors_.clear();
  for (const int worker : unanswered_) {
    Schedule(Occupy(cluster_.message_seconds), EventKind::kAnswer, worker);
  }
  unanswered_.clear();
  if (!IsHybrid()) EndStep();
}

void ServerSimulation::EndStep() {
  log_.step_seconds.push_back(now_ - last_step_time_);
  log_.update_seconds += now_ - last_step_time_;
  last_step_time_ = now_;
  ++log_.updates;
  is_over_ = log_.updates == scenario_.steps;
}

void ServerSimulation::UpdateAsync(int index) {
  ++step_;
  Worker& worker = workers_[index];
  const int64_t warm_up = kWarmUpRounds * cluster_.workers;
  if (step_ > warm_up) {
    ++log_.updates;
    ++log_.gradients;
    log_.update_seconds += now_ - last_step_time_;
    if (worker.last_gradient) {
      log_.step_seconds.push_back(now_ - *worker.last_gradient);
      log_.compute_seconds += worker.compute_seconds;
      ++log_.cycles;
    }
  }
  last_step_time_ = now_;
  worker.last_gradient = now_;
  is_over_ = log_.updates == static_cast<int64_t>(scenario_.steps) * cluster_.workers;
}

double ServerSimulation::SumSeconds(int gradients) const {
  return gradients * link_options_.push_bytes / cluster_.servers * cluster_.sum_seconds_per_byte;
}

double ServerSimulation::UpdateSeconds(int gradients) const {
  const double dense_bytes = IsHybrid() ? 0 : traffic_.dense_bytes;
  return (dense_bytes + gradients * traffic_.sparse_push_bytes) / cluster_.servers *
         cluster_.update_seconds_per_byte;
}

}  // namespace muster::simulator
