#include "inventory/placement.h"

#include <algorithm>
#include <set>

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

std::string PlacedTask::Name() const { return absl::StrFormat("%s:%d", ReplicaRoleName(role), index); }

absl::StatusOr<std::vector<PlacedTask>> PlaceTasks(const Job& job, const Inventory& inventory,
                                                   const std::map<std::string, std::string>& running,
                                                   const std::vector<std::string>& servers) {
  struct Candidates {
    ReplicaRole role;
    std::vector<int> hosts;
  };
  std::vector<Candidates> roles;
  for (const ReplicaRole role : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(role);
    if (replica.count == 0) continue;
    roles.push_back({role, SuitableHosts(replica, inventory)});
    if (roles.back().hosts.empty()) return NoSuchLabel(replica, inventory);
  }
  std::stable_sort(roles.begin(), roles.end(),
                   [](const Candidates& a, const Candidates& b) { return a.hosts.size() < b.hosts.size(); });
  std::vector<int> task_counts(inventory.hosts.size());
  for (size_t i = 0; i < inventory.hosts.size(); ++i) {
    task_counts[i] = static_cast<int>(std::ranges::count(servers, inventory.hosts[i].name));
  }
  std::vector<PlacedTask> placed;
  std::set<std::string> stay;
  for (const auto& [role, hosts] : roles) {
    for (int index = 0; index < job.replicas(role).count; ++index) {
      PlacedTask task{.role = role, .index = index};
      const auto before = running.find(task.Name());
      if (before == running.end()) continue;
      const auto host = std::ranges::find_if(
          hosts, [&](int candidate) { return inventory.hosts[candidate].name == before->second; });
      if (host == hosts.end()) continue;
      task.host_index = *host;
      ++task_counts[*host];
      stay.insert(task.Name());
      placed.push_back(task);
    }
  }
  for (const auto& [role, hosts] : roles) {
    for (int index = 0; index < job.replicas(role).count; ++index) {
      if (stay.contains(PlacedTask{.role = role, .index = index}.Name())) continue;
      const int host = *std::min_element(hosts.begin(), hosts.end(), [&](int a, int b) {
        return task_counts[a] * int64_t{inventory.hosts[b].slots} <
               task_counts[b] * int64_t{inventory.hosts[a].slots};
      });
      ++task_counts[host];
      placed.push_back({.role = role, .index = index, .host_index = host});
    }
  }
  std::ranges::sort(placed, {}, [](const PlacedTask& task) { return std::pair(task.role, task.index); });
  return placed;
}

}  // namespace muster
