#include "agent/proc_scan.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

void ForEachOwnProcess(const std::function<void(pid_t)>& visit) {
  for (const pid_t pid : AllProcesses()) {
    struct stat info {};
    if (::stat(absl::StrFormat("/proc/%d", pid).c_str(), &info) == 0 && info.st_uid == ::geteuid())
      visit(pid);
  }
}

// The token of a process; "" without one. A zombie has an empty environment, so it is not counted.
std::string TokenOf(pid_t pid) {
  static constexpr std::string_view kKey = "MUSTER_TOKEN=";
  const absl::StatusOr<std::string> environment = ReadFile(absl::StrFormat("/proc/%d/environ", pid));
  if (!environment.ok()) return "";
  for (size_t start = 0; start < environment->size();) {
    const size_t end = std::min(environment->find('\0', start), environment->size());
    const std::string_view entry = std::string_view(*environment).substr(start, end - start);
    if (entry.starts_with(kKey)) return std::string(entry.substr(kKey.size()));
    start = end + 1;
  }
  return "";
}

int VisitByToken(const std::function<bool(std::string_view)>& matches, bool kill) {
  int found = 0;
  ForEachOwnProcess([&](pid_t pid) {
    if (const std::string first_look = TokenOf(pid); first_look.empty() || !matches(first_look)) return;
    const absl::StatusOr<UniqueFd> pidfd = OpenPidfd(pid);
    if (!pidfd.ok()) return;
    // Looked at again now that the pidfd pins it: between the first look and the pidfd the pid may have been
    // reused.
    if (const std::string token = TokenOf(pid); token.empty() || !matches(token)) return;
    ++found;
    if (kill) SignalPidfd(pidfd->get(), SIGKILL);
  });
  return found;
}

}  // namespace

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  ForEachOwnProcess([&](pid_t pid) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok() && stat->parent == parent) children.push_back(pid);
  });
  return children;
}

int KillByToken(const std::function<bool(std::string_view)>& matches) { return VisitByToken(matches, true); }

int CountByToken(const std::function<bool(std::string_view)>& matches) {
  return VisitByToken(matches, false);
}

}  // namespace muster
