#include "inventory/placement.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "base/nearest.h"
#include "inventory/yaml_tree.h"

namespace muster {
namespace {

absl::Status NoSuchLabel(const ReplicaSpec& replica, const Inventory& inventory) {
  std::set<std::string> labels;
  for (const Host& host : inventory.hosts) labels.insert(host.labels.begin(), host.labels.end());
  const std::vector<std::string> words(labels.begin(), labels.end());
  const std::string nearest = NearestWord(replica.on, words);
  return InvalidArgument("%s: no host in %s has the label %s;%s labels there: %s",
                         replica.on_position.ToString(), inventory.path, Quoted(replica.on),
                         nearest.empty() ? "" : " did you mean " + Quoted(nearest) + "?",
                         words.empty() ? "none" : JoinWords(words));
}

bool HasGpus(const Host& host) { return host.gpus && !host.gpus->empty(); }

// Where tasks of a role go, one of those that suit it: without GPUs not to hosts that have some, if there are
// others.
std::vector<int> CandidatesFor(ReplicaRole role, const Job& job, const Inventory& inventory) {
  const ReplicaSpec& replica = job.replicas(role);
  std::vector<int> hosts = SuitableHosts(replica, inventory);
  if (!job.wants_gpus() || replica.gpus > 0) return hosts;
  const auto has_gpus = [&](int host) { return HasGpus(inventory.hosts[host]); };
  if (!std::ranges::all_of(hosts, has_gpus)) std::erase_if(hosts, has_gpus);
  return hosts;
}

absl::Status TooFewGpus(const ReplicaSpec& replica, ReplicaRole role, const std::vector<int>& hosts,
                        const Inventory& inventory) {
  std::vector<std::string> found;
  for (const int host : hosts) {
    const auto& [name, gpus] = std::tie(inventory.hosts[host].name, inventory.hosts[host].gpus);
    if (!gpus) found.push_back(name + " could not be asked");
    if (gpus && !gpus->empty()) found.push_back(absl::StrFormat("%s has %d", name, gpus->size()));
  }
  return InvalidArgument("%s: there are too few GPUs for %d tasks of %s with %d each: %s",
                         replica.gpus_position.ToString(), replica.count, ReplicaRoleName(role), replica.gpus,
                         found.empty() ? "none of their hosts has any" : absl::StrJoin(found, ", "));
}

// What of a host this job has taken.
class HostRoom {
 public:
  HostRoom(const Host& host, int tasks) : slots_(host.slots), tasks_(tasks) {
    if (host.gpus) free_.insert(host.gpus->begin(), host.gpus->end());
    gpus_ = free_.size();
  }

  bool HasRoom(int gpus) const { return free_.size() >= static_cast<size_t>(gpus); }

  /// For one more task with so many GPUs.
  bool IsBetterThan(const HostRoom& other, int gpus) const {
    if (gpus == 0) return tasks_ * int64_t{other.slots_} < other.tasks_ * int64_t{slots_};
    if (HasRoom(gpus) != other.HasRoom(gpus)) return HasRoom(gpus);
    return free_.size() * other.gpus_ > other.free_.size() * gpus_;
  }

  /// False: it has not these, or another task has one of them, or they are not so many.
  bool Keep(const std::vector<int>& gpus, int wanted) {
    if (wanted > 0) {
      const bool fits = gpus.size() == static_cast<size_t>(wanted) &&
                        std::ranges::all_of(gpus, [&](int gpu) { return free_.contains(gpu); });
      if (!fits) return false;
      for (const int gpu : gpus) free_.erase(gpu);
    }
    ++tasks_;
    return true;
  }

  std::vector<int> Take(int gpus) {
    std::vector<int> taken(free_.begin(), std::next(free_.begin(), gpus));
    free_.erase(free_.begin(), std::next(free_.begin(), gpus));
    ++tasks_;
    return taken;
  }

 private:
  int slots_, tasks_;
  std::set<int> free_;
  size_t gpus_;
};

}  // namespace

std::vector<int> SuitableHosts(const ReplicaSpec& replica, const Inventory& inventory) {
  std::vector<int> suitable;
  for (size_t i = 0; i < inventory.hosts.size(); ++i) {
    const std::vector<std::string>& labels = inventory.hosts[i].labels;
    if (replica.on.empty() || std::find(labels.begin(), labels.end(), replica.on) != labels.end()) {
      suitable.push_back(static_cast<int>(i));
    }
  }
  return suitable;
}

std::vector<int> SuitableHosts(const Job& job, const Inventory& inventory) {
  std::set<int> suitable;
  for (const ReplicaRole role : kReplicaRoles) {
    if (job.replicas(role).count == 0) continue;
    for (const int index : SuitableHosts(job.replicas(role), inventory)) suitable.insert(index);
  }
  return {suitable.begin(), suitable.end()};
}

std::string PlacedTask::Name() const { return absl::StrFormat("%s:%d", ReplicaRoleName(role), index); }

int RoomForWorkers(const Job& job, const Inventory& inventory,
                   const std::map<std::string, TaskPlace>& running) {
  std::map<std::string, int> tasks;  // by host
  std::map<std::string, std::set<int>> taken;
  for (const auto& [name, place] : running) {
    ++tasks[place.host];
    taken[place.host].insert(place.gpus.begin(), place.gpus.end());
  }
  int room = 0;
  for (const int index : CandidatesFor(ReplicaRole::kWorker, job, inventory)) {
    const Host& host = inventory.hosts[index];
    if (job.worker.gpus == 0) {
      room += std::max(0, host.slots - tasks[host.name]);
    } else if (host.gpus) {
      const auto free =
          std::ranges::count_if(*host.gpus, [&](int gpu) { return !taken[host.name].contains(gpu); });
      room += static_cast<int>(free) / job.worker.gpus;
    }
  }
  return room;
}

absl::StatusOr<std::vector<PlacedTask>> PlaceTasks(const Job& job, const Inventory& inventory,
                                                   const std::map<std::string, TaskPlace>& running,
                                                   const std::vector<std::string>& servers) {
  struct Candidates {
    ReplicaRole role;
    std::vector<int> hosts;
  };
  std::vector<Candidates> roles;
  for (const ReplicaRole role : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(role);
    if (replica.count == 0) continue;
    roles.push_back({role, CandidatesFor(role, job, inventory)});
    if (roles.back().hosts.empty()) return NoSuchLabel(replica, inventory);
  }
  std::stable_sort(roles.begin(), roles.end(),
                   [](const Candidates& a, const Candidates& b) { return a.hosts.size() < b.hosts.size(); });
  std::vector<HostRoom> rooms;
  for (const Host& host : inventory.hosts) {
    rooms.emplace_back(host, static_cast<int>(std::ranges::count(servers, host.name)));
  }
  std::vector<PlacedTask> placed;
  std::set<std::string> stay;
  for (const auto& [role, candidates] : roles) {
    const std::vector<int> hosts = SuitableHosts(job.replicas(role), inventory);
    for (int index = 0; index < job.replicas(role).count; ++index) {
      PlacedTask task{.role = role, .index = index};
      const auto before = running.find(task.Name());
      if (before == running.end()) continue;
      const auto host = std::ranges::find_if(
          hosts, [&](int candidate) { return inventory.hosts[candidate].name == before->second.host; });
      if (host == hosts.end() || !rooms[*host].Keep(before->second.gpus, job.replicas(role).gpus)) continue;
      task.host_index = *host;
      if (job.replicas(role).gpus > 0) task.gpus = before->second.gpus;
      stay.insert(task.Name());
      placed.push_back(task);
    }
  }
  for (const auto& [role, hosts] : roles) {
    const int gpus = job.replicas(role).gpus;
    for (int index = 0; index < job.replicas(role).count; ++index) {
      if (stay.contains(PlacedTask{.role = role, .index = index}.Name())) continue;
      const int host = *std::ranges::min_element(
          hosts, [&](int a, int b) { return rooms[a].IsBetterThan(rooms[b], gpus); });
      if (!rooms[host].HasRoom(gpus)) return TooFewGpus(job.replicas(role), role, hosts, inventory);
      placed.push_back({.role = role, .index = index, .host_index = host, .gpus = rooms[host].Take(gpus)});
    }
  }
  std::ranges::sort(placed, {}, [](const PlacedTask& task) { return std::pair(task.role, task.index); });
  return placed;
}

}  // namespace muster
