#include "inventory/placement.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <span>
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

// Where tasks with GPUs may go.
std::set<int> HostsOfGpuTasks(const Job& job, const Inventory& inventory) {
  std::set<int> hosts;
  for (const ReplicaRole role : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(role);
    if (replica.count == 0 || replica.gpus == 0) continue;
    for (const int host : SuitableHosts(replica, inventory)) hosts.insert(host);
  }
  return hosts;
}

// Where tasks of a role go, one of those that suit it: without GPUs not to hosts that have some, if there are
// others.
std::vector<int> CandidatesFor(ReplicaRole role, const Job& job, const Inventory& inventory) {
  const ReplicaSpec& replica = job.replicas(role);
  std::vector<int> hosts = SuitableHosts(replica, inventory);
  if (!job.wants_gpus() || replica.gpus > 0) return hosts;
  // One of which nobody knows may have some if tasks with GPUs may go there.
  const auto has_gpus = [&, of_gpu_tasks = HostsOfGpuTasks(job, inventory)](int host) {
    const std::optional<std::vector<int>>& gpus = inventory.hosts[host].gpus;
    return gpus ? !gpus->empty() : of_gpu_tasks.contains(host);
  };
  if (!std::ranges::all_of(hosts, has_gpus)) std::erase_if(hosts, has_gpus);
  return hosts;
}

// The tasks of a role, and where they may go.
struct RoleHosts {
  ReplicaRole role;
  int gpus;                // of each task
  std::vector<int> hosts;  // ascending
};

// In the order in which they choose. NoSuchLabel.
absl::StatusOr<std::vector<RoleHosts>> RolesInOrder(const Job& job, const Inventory& inventory) {
  std::vector<RoleHosts> roles;
  for (const ReplicaRole role : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(role);
    if (replica.count == 0) continue;
    roles.push_back({role, replica.gpus, CandidatesFor(role, job, inventory)});
    if (roles.back().hosts.empty()) return NoSuchLabel(replica, inventory);
  }
  // A chief is one task: where it costs the others least, it leaves them all the room that it can.
  std::ranges::stable_sort(roles, {}, [](const RoleHosts& role) {
    const bool is_chief_with_gpus = role.role == ReplicaRole::kChief && role.gpus > 0;
    return std::tuple(!is_chief_with_gpus, role.hosts.size(), -role.gpus);
  });
  return roles;
}

absl::Status TooFewGpus(const Job& job, const RoleHosts& role, const Inventory& inventory) {
  std::vector<std::string> found, others;
  bool is_known = true;
  for (const int host : role.hosts) {
    const auto& [name, gpus] = std::tie(inventory.hosts[host].name, inventory.hosts[host].gpus);
    is_known = is_known && gpus.has_value();
    if (!gpus) found.push_back(name + " could not be asked");
    if (gpus && !gpus->empty()) found.push_back(absl::StrFormat("%s has %d", name, gpus->size()));
  }
  for (const ReplicaRole other : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(other);
    if (other != role.role && replica.count > 0 && replica.gpus > 0) others.push_back(ReplicaRoleName(other));
  }
  const ReplicaSpec& replica = job.replicas(role.role);
  const std::string message =
      absl::StrFormat("%s: there are too few GPUs for %d tasks of %s with %d each%s: %s",
                      replica.gpus_position.ToString(), replica.count, ReplicaRoleName(role.role), role.gpus,
                      others.empty() ? "" : ", beside those of " + absl::StrJoin(others, " and "),
                      found.empty() ? "none of their hosts has any" : absl::StrJoin(found, ", "));
  return is_known ? InvalidArgument("%s", message) : Unavailable("%s", message);
}

// What of a host this job has taken.
class HostRoom {
 public:
  HostRoom(const Host& host, int tasks)
      : slots_(host.slots), tasks_(tasks), are_gpus_known_(host.gpus.has_value()) {
    if (host.gpus) free_.insert(host.gpus->begin(), host.gpus->end());
    gpus_ = free_.size();
  }

  bool HasRoom(int gpus) const { return free_.size() >= static_cast<size_t>(gpus); }

  /// How many fewer tasks with `each` GPUs it has room for, once one has taken `gpus` that are free.
  size_t Loss(int gpus, int each) const { return free_.size() / each - (free_.size() - gpus) / each; }

  /// For one more task with so many GPUs, if both have room for it, or neither has.
  bool IsBetterThan(const HostRoom& other, int gpus) const {
    if (gpus == 0) return tasks_ * int64_t{other.slots_} < other.tasks_ * int64_t{slots_};
    return free_.size() * other.gpus_ > other.free_.size() * gpus_;
  }

  /// False: it is known not to have these, or another task has one of them, or they are not so many.
  bool Keep(const std::vector<int>& gpus, int wanted) {
    if (wanted > 0) {
      const auto is_free = [&](int gpu) { return !are_gpus_known_ || free_.contains(gpu); };
      const bool fits = gpus.size() == static_cast<size_t>(wanted) && std::ranges::all_of(gpus, is_free);
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
  bool are_gpus_known_;
  std::set<int> free_;
  size_t gpus_;
};

// The best one for one more task of the first of `roles`; the others choose after it.
int BestHost(std::span<const RoleHosts> roles, const std::vector<HostRoom>& rooms) {
  const RoleHosts& role = roles.front();
  // By how many the tasks become fewer that the others have room for.
  const auto loss = [&](int host) {
    if (!rooms[host].HasRoom(role.gpus)) return std::numeric_limits<size_t>::max();
    size_t tasks = 0;
    for (const RoleHosts& other : roles.subspan(1)) {
      const bool suits = other.gpus > 0 && std::ranges::binary_search(other.hosts, host);
      if (suits) tasks += rooms[host].Loss(role.gpus, other.gpus);
    }
    return tasks;
  };
  return *std::ranges::min_element(role.hosts, [&](int a, int b) {
    const size_t loss_a = loss(a), loss_b = loss(b);
    return loss_a != loss_b ? loss_a < loss_b : rooms[a].IsBetterThan(rooms[b], role.gpus);
  });
}

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
  MUSTER_ASSIGN_OR_RETURN(const std::vector<RoleHosts> roles, RolesInOrder(job, inventory));
  std::vector<HostRoom> rooms;
  for (const Host& host : inventory.hosts) {
    rooms.emplace_back(host, static_cast<int>(std::ranges::count(servers, host.name)));
  }
  std::vector<PlacedTask> placed;
  std::set<std::string> stay;
  for (const auto& [role, gpus, candidates] : roles) {
    const std::vector<int> hosts = SuitableHosts(job.replicas(role), inventory);
    for (int index = 0; index < job.replicas(role).count; ++index) {
      PlacedTask task{.role = role, .index = index};
      const auto before = running.find(task.Name());
      if (before == running.end()) continue;
      const auto host = std::ranges::find_if(
          hosts, [&](int candidate) { return inventory.hosts[candidate].name == before->second.host; });
      if (host == hosts.end() || !rooms[*host].Keep(before->second.gpus, gpus)) continue;
      task.host_index = *host;
      if (gpus > 0) task.gpus = before->second.gpus;
      stay.insert(task.Name());
      placed.push_back(task);
    }
  }
  for (size_t i = 0; i < roles.size(); ++i) {
    const auto& [role, gpus, hosts] = roles[i];
    for (int index = 0; index < job.replicas(role).count; ++index) {
      if (stay.contains(PlacedTask{.role = role, .index = index}.Name())) continue;
      const int host = BestHost(std::span(roles).subspan(i), rooms);
      if (!rooms[host].HasRoom(gpus)) return TooFewGpus(job, roles[i], inventory);
      placed.push_back({.role = role, .index = index, .host_index = host, .gpus = rooms[host].Take(gpus)});
    }
  }
  std::ranges::sort(placed, {}, [](const PlacedTask& task) { return std::pair(task.role, task.index); });
  return placed;
}

}  // namespace muster
