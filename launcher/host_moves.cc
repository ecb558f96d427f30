#include "launcher/host_moves.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <set>
#include <utility>

namespace muster {

HostMoves::Incarnations HostMoves::IncarnationsOf(const reconcile::View& view) {
  Incarnations incarnations;
  for (const reconcile::TaskView& task : view.tasks) {
    if (task.report) incarnations[task.task] = task.report->incarnation;
  }
  return incarnations;
}

size_t HostMoves::kept_states() const {
  std::set<const Incarnations*> kept = {incarnations_.get()};
  for (const auto* const moves : {&lost_, &moves_}) {
    for (const auto& [host, move] : *moves) kept.insert(move.incarnations.get());
  }
  return kept.size();
}

std::vector<HostMove> HostMoves::OnView(const reconcile::View& view, TimePoint now) {
  std::vector<HostMove> news;
  for (const reconcile::HostView& host : view.hosts) {
    const std::string before = std::exchange(addresses_[host.host], host.data_address);
    if (host.attempts > 0) lost_.try_emplace(host.host, Move{now, incarnations_});
    // Before there is a cluster, it is only known better than by the plan.
    if (generation_ > 0 && !before.empty() && host.data_address != before) {
      const auto lost = lost_.find(host.host);
      Move move = lost != lost_.end() ? lost->second : Move{now, incarnations_};
      move.from = before;
      news.push_back({host.host, "moved " + before + " -> " + host.data_address});
      // If it has moved on, it moved away from where its tasks were last.
      moves_.try_emplace(host.host, std::move(move));
    }
    if (host.state == reconcile::HostState::kReady) lost_.erase(host.host);
  }
  if (Incarnations now_running = IncarnationsOf(view); now_running != *incarnations_) {
    incarnations_ = std::make_shared<const Incarnations>(std::move(now_running));
  }
  generation_ = view.generation;
  // Before all tasks run in the newest cluster those of the host train with nobody.
  for (const reconcile::TaskView& task : view.tasks) {
    if (task.state == reconcile::TaskState::kSucceeded) continue;
    if (task.state != reconcile::TaskState::kRunning || task.report->generation != view.generation)
      return news;
  }
  for (const auto& [host, move] : std::exchange(moves_, {})) {
    std::vector<std::string> tasks;
    int running = 0, known = 0, restarted = 0;
    for (const reconcile::TaskView& task : view.tasks) {
      if (task.state == reconcile::TaskState::kSucceeded) continue;
      ++running;
      if (task.host == host) tasks.push_back(task.task);
      const auto before = move.incarnations->find(task.task);
      known += before != move.incarnations->end();
      restarted += before != move.incarnations->end() && before->second != task.report->incarnation;
    }
    if (tasks.empty()) continue;
    std::string cost;
    if (restarted > 0) {
      cost = absl::StrFormat(", %d of %d tasks started again", restarted, running);
    } else if (known == running) {
      cost = ", 0 steps lost";
    }
    news.push_back(
        {host, absl::StrFormat("moved %s -> %s, %s rejoined after %.1f s%s", move.from, addresses_[host],
                               absl::StrJoin(tasks, ", "), ToSeconds(now - move.since), cost)});
  }
  return news;
}

}  // namespace muster
