// The processes of jobs on a loopback cluster, as /proc shows them: muster's own word about them is what is
// tested.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "agent/proc_scan.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "tests/support/eventually.h"

namespace muster {

/// A process that a task started, or its first one.
struct JobProcess {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  std::string job;   // its id
  std::string task;  // "worker:0"
  int incarnation = 0;
  bool operator==(const JobProcess&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const JobProcess& process) {
  return out << process.job << " " << process.task << "." << process.incarnation << " pid " << process.pid
             << " (" << ReadFile("/proc/" + std::to_string(process.pid) + "/comm").value_or("ended\n") << ")";
}

/// The variables of a process's environment as they were at its exec; empty for a zombie, or one that is not
/// ours.
inline std::map<std::string, std::string> EnvironmentOf(pid_t pid) {
  std::map<std::string, std::string> variables;
  std::istringstream entries(ReadFile("/proc/" + std::to_string(pid) + "/environ").value_or(""));
  std::string entry;
  while (std::getline(entries, entry, '\0')) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return variables;
}

inline std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  for (const std::string& name : ListDirectory("/proc").value_or(std::vector<std::string>())) {
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::atoi(name.c_str()));
  }
  return pids;
}

/// All that carry a token of a job below `cluster_folder`, the oldest first: a task's first process is the
/// first of it.
inline std::vector<JobProcess> JobProcesses(const std::string& cluster_folder) {
  std::vector<JobProcess> processes;
  for (const pid_t pid : AllPids()) {
    auto variables = EnvironmentOf(pid);
    if (!variables.contains("MUSTER_TOKEN") ||
        !variables["MUSTER_TASK_DIR"].starts_with(cluster_folder + "/"))
      continue;
    const auto stat = ReadProcessStat(pid);
    if (!stat.ok() || stat->state == 'Z') continue;
    processes.push_back({.pid = pid,
                         .start_ticks = stat->start_ticks,
                         .job = variables["MUSTER_JOB"],
                         .task = variables["MUSTER_TASK"],
                         .incarnation = std::atoi(variables["MUSTER_INCARNATION"].c_str())});
  }
  std::sort(processes.begin(), processes.end(), [](const JobProcess& a, const JobProcess& b) {
    return std::pair(a.start_ticks, a.pid) < std::pair(b.start_ticks, b.pid);
  });
  return processes;
}

/// The agent's processes with this role ("daemon", "bridge", "shim") that work below `folder`.
inline std::vector<pid_t> AgentProcesses(const std::string& folder, const std::string& role) {
  std::vector<pid_t> pids;
  for (const pid_t pid : AllPids()) {
    const std::string line = ReadFile("/proc/" + std::to_string(pid) + "/cmdline").value_or("");
    const std::string wanted = std::string(1, '\0') + role + '\0' + "--root" + '\0' + folder + "/";
    if (line.find(wanted) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

}  // namespace muster
