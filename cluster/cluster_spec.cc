#include "cluster/cluster_spec.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string>& MutableAddresses(ClusterSpec& cluster, Role role) {
  switch (role) {
    case Role::kPs:
      return cluster.ps;
    case Role::kWorker:
      return cluster.workers;
    case Role::kChief:
      return cluster.chief;
  }
  MUSTER_CHECK(false);
}

absl::Status ParseHostList(const std::string& text, char separator, const std::string& where,
                           std::vector<std::string>* addresses) {
  for (const auto part : absl::StrSplit(text, separator)) {
    const std::string address(part);
    MUSTER_RETURN_IF_ERROR(Annotate(CheckAddress(address), where));
    addresses->push_back(address);
  }
  return absl::OkStatus();
}

absl::Status ParseClusterSpecFlag(const std::string& text, ClusterSpec* cluster) {
  for (const auto part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> job = absl::StrSplit(part, '|');
    if (job.size() != 2) {
      return InvalidArgument("--cluster_spec: '%s' is not role|host:port;host:port", std::string(part));
    }
    const auto role = ParseRole(job[0]);
    if (!role.ok()) return Annotate(role.status(), "--cluster_spec");
    std::vector<std::string>& addresses = MutableAddresses(*cluster, *role);
    if (!addresses.empty()) return InvalidArgument("--cluster_spec: '%s' is given twice", job[0]);
    MUSTER_RETURN_IF_ERROR(ParseHostList(job[1], ';', "--cluster_spec", &addresses));
  }
  return absl::OkStatus();
}

struct TfConfig {
  ClusterSpec cluster;
  std::optional<Role> role;
  std::optional<int> index;
};

absl::Status ParseTfCluster(const Json& json, ClusterSpec* cluster) {
  if (!json.is_object()) return InvalidArgument("TF_CONFIG: cluster is not an object");
  for (const auto& [name, list] : json.items()) {
    if (name == "evaluator") continue;  // never part of the cluster it watches
    const auto role = ParseRole(name);
    if (!role.ok()) return Annotate(role.status(), "TF_CONFIG: cluster");
    if (!list.is_array()) return InvalidArgument("TF_CONFIG: cluster.%s is not a list of addresses", name);
    std::vector<std::string>& addresses = MutableAddresses(*cluster, *role);
    if (!addresses.empty()) return InvalidArgument("TF_CONFIG: cluster names both chief and master");
    for (const Json& address : list) {
      const std::string where = "TF_CONFIG: cluster." + name;
      if (!address.is_string()) return InvalidArgument("%s holds %s, not an address", where, address.dump());
      MUSTER_RETURN_IF_ERROR(Annotate(CheckAddress(address.get<std::string>()), where));
      addresses.push_back(address.get<std::string>());
    }
  }
  return absl::OkStatus();
}

// A number, or one in a string, as some operators write it.
absl::StatusOr<int> ParseTfIndex(const Json& json) {
  const std::string text = json.is_string() ? json.get<std::string>() : json.dump();
  int index = 0;
  // From its digits: Json::get would cut a number that is too large for an int.
  if ((!json.is_string() && !json.is_number_integer()) || !absl::SimpleAtoi(text, &index) || index < 0) {
    return InvalidArgument("TF_CONFIG: task.index is %s, not a whole number from 0 to %d", json.dump(),
                           std::numeric_limits<int>::max());
  }
  return index;
}

absl::StatusOr<TfConfig> ParseTfConfig(const std::string& text) {
  TfConfig config;
  if (text.empty()) return config;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("TF_CONFIG is not a JSON object: %s", text.substr(0, 100));
  if (json.contains("cluster")) MUSTER_RETURN_IF_ERROR(ParseTfCluster(json["cluster"], &config.cluster));
  if (json.contains("task")) {
    const Json& task = json["task"];
    if (!task.is_object() || !task.contains("type") || !task["type"].is_string()) {
      return InvalidArgument("TF_CONFIG: task has no type");
    }
    const auto role = ParseRole(task["type"].get<std::string>());
    if (!role.ok()) return Annotate(role.status(), "TF_CONFIG: task.type");
    config.role = *role;
    config.index = 0;
    if (task.contains("index")) {
      MUSTER_ASSIGN_OR_RETURN(config.index, ParseTfIndex(task["index"]));
    }
  }
  return config;
}

absl::Status CheckCluster(const ClusterSpec& cluster, bool is_standing) {
  if (is_standing && cluster.rank_count() > 0) {
    return InvalidArgument("a standing server has no workers of its own: leave --worker_hosts out");
  }
  if (is_standing && cluster.ps.empty()) {
    return InvalidArgument("which servers stand? Give --ps_hosts, --cluster_spec or TF_CONFIG");
  }
  if (cluster.rank_count() == 0 && !is_standing) {
    return InvalidArgument(
        "no workers: give --worker_hosts, --cluster_spec or TF_CONFIG (or --job_name=local)");
  }
  if (cluster.chief.size() > 1)
    return InvalidArgument("more than one chief: %s", absl::StrJoin(cluster.chief, ", "));
  return CheckAddressesDiffer(cluster);
}

}  // namespace

std::string RoleName(Role role) {
  switch (role) {
    case Role::kPs:
      return "ps";
    case Role::kWorker:
      return "worker";
    case Role::kChief:
      return "chief";
  }
  MUSTER_CHECK(false);
}

absl::StatusOr<Role> ParseRole(const std::string& name) {
  if (name == "ps") return Role::kPs;
  if (name == "worker") return Role::kWorker;
  if (name == "chief" || name == "master") return Role::kChief;
  return InvalidArgument("'%s' is not a role: ps, worker or chief (also called master)", name);
}

std::string TaskName(TaskId task) { return absl::StrFormat("%s:%d", RoleName(task.role), task.index); }

const std::vector<std::string>& ClusterSpec::addresses(Role role) const {
  return MutableAddresses(const_cast<ClusterSpec&>(*this), role);
}

int RankOf(const ClusterSpec& cluster, TaskId task) {
  MUSTER_CHECK(task.role != Role::kPs);
  return task.role == Role::kChief ? 0 : static_cast<int>(cluster.chief.size()) + task.index;
}

TaskId TaskOfRank(const ClusterSpec& cluster, int rank) {
  const int chiefs = static_cast<int>(cluster.chief.size());
  return rank < chiefs ? TaskId{Role::kChief, rank} : TaskId{Role::kWorker, rank - chiefs};
}

std::string AddressOfAbsent(TaskId task) {
  return absl::StrFormat("%s-%d.invalid:1", RoleName(task.role), task.index);
}

bool IsAbsent(const std::string& address) { return address.ends_with(".invalid:1"); }

bool IsChief(const ClusterSpec& cluster, TaskId task) {
  return task.role != Role::kPs && RankOf(cluster, task) == 0;
}

absl::StatusOr<TaskInCluster> ResolveTask(const ClusterFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(TfConfig tf_config, ParseTfConfig(flags.tf_config));
  TaskInCluster result{.cluster = std::move(tf_config.cluster)};
  if (!flags.cluster_spec.empty()) {
    if (!flags.ps_hosts.empty() || !flags.worker_hosts.empty()) {
      return InvalidArgument(
          "--cluster_spec and --ps_hosts or --worker_hosts say the same thing: give one of them");
    }
    result.cluster = {};
    MUSTER_RETURN_IF_ERROR(ParseClusterSpecFlag(flags.cluster_spec, &result.cluster));
  } else if (!flags.ps_hosts.empty() || !flags.worker_hosts.empty()) {
    result.cluster = {};
    if (!flags.ps_hosts.empty()) {
      MUSTER_RETURN_IF_ERROR(ParseHostList(flags.ps_hosts, ',', "--ps_hosts", &result.cluster.ps));
    }
    if (!flags.worker_hosts.empty()) {
      MUSTER_RETURN_IF_ERROR(
          ParseHostList(flags.worker_hosts, ',', "--worker_hosts", &result.cluster.workers));
    }
  }
  MUSTER_RETURN_IF_ERROR(CheckCluster(result.cluster, flags.is_standing));

  if (!flags.job_name.empty()) {
    const auto role = ParseRole(flags.job_name);
    if (!role.ok()) return Annotate(role.status(), "--job_name");
    tf_config.role = *role;
    // An index that TF_CONFIG gave belongs to the role that it gave.
    tf_config.index = flags.task_index.value_or(tf_config.index.value_or(0));
  } else if (flags.task_index) {
    tf_config.index = flags.task_index;
  }
  if (!tf_config.role)
    return InvalidArgument("which task is this? Give --job_name and --task_index, or TF_CONFIG");
  if (flags.is_standing && *tf_config.role != Role::kPs) {
    return InvalidArgument("--standing is for parameter servers, this is a %s", RoleName(*tf_config.role));
  }
  result.task = {*tf_config.role, tf_config.index.value_or(0)};
  const size_t count = result.cluster.addresses(result.task.role).size();
  if (result.task.index < 0 || static_cast<size_t>(result.task.index) >= count) {
    return InvalidArgument("%s is not in its cluster, which has %d %s tasks", TaskName(result.task), count,
                           RoleName(result.task.role));
  }
  return result;
}

std::vector<std::string> ToFlags(const ClusterSpec& cluster, TaskId task) {
  std::vector<std::string> flags = {"--job_name=" + RoleName(task.role),
                                    absl::StrFormat("--task_index=%d", task.index)};
  if (cluster.chief.empty()) {
    if (!cluster.ps.empty()) flags.push_back("--ps_hosts=" + absl::StrJoin(cluster.ps, ","));
    if (!cluster.workers.empty()) {
      flags.push_back("--worker_hosts=" + absl::StrJoin(cluster.workers, ","));
    }
    return flags;
  }
  std::vector<std::string> jobs;
  for (const Role role : {Role::kChief, Role::kWorker, Role::kPs}) {
    const auto& addresses = cluster.addresses(role);
    if (!addresses.empty()) jobs.push_back(RoleName(role) + "|" + absl::StrJoin(addresses, ";"));
  }
  flags.push_back("--cluster_spec=" + absl::StrJoin(jobs, ","));
  return flags;
}

std::string ToTfConfig(const ClusterSpec& cluster, TaskId task) {
  Json json;
  for (const Role role : {Role::kChief, Role::kWorker, Role::kPs}) {
    const auto& addresses = cluster.addresses(role);
    if (!addresses.empty()) json["cluster"][RoleName(role)] = addresses;
  }
  json["task"] = {{"type", RoleName(task.role)}, {"index", task.index}};
  return json.dump();
}

absl::Status CheckAddressesDiffer(const ClusterSpec& cluster) {
  std::map<std::string, TaskId> seen;
  for (const Role role : {Role::kPs, Role::kWorker, Role::kChief}) {
    const auto& addresses = cluster.addresses(role);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const TaskId task{role, static_cast<int>(i)};
      const auto [other, added] = seen.emplace(addresses[i], task);
      if (!added) {
        return InvalidArgument("%s and %s have the same address %s", TaskName(other->second), TaskName(task),
                               addresses[i]);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return InvalidArgument("'%s' is not host:port", address);
  const std::string host = address.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of(":[] \t/") != std::string::npos) {
    return InvalidArgument("'%s' is not host:port (an IPv6 address stands in brackets: [::1]:2222)", address);
  }
  const std::string digits = address.substr(colon + 1);
  int port = 0;
  // SimpleAtoi alone would take a sign and spaces, which what connects to the address does not.
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &port) ||
      port < 1 || port > 65535) {
    return InvalidArgument("'%s' has no port of 1-65535", address);
  }
  return absl::OkStatus();
}

std::string HostOfAddress(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace muster
