#include "agent/proc_scan.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace muster {
namespace {

std::string ProcPath(pid_t pid, const char* file) { return absl::StrFormat("/proc/%d/%s", pid, file); }

void ForEachOwnProcess(const std::function<void(pid_t)>& visit) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  while (const dirent* entry = ::readdir(proc)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (const auto parsed = std::from_chars(entry->d_name, end, pid);
        parsed.ec != std::errc() || parsed.ptr != end) {
      continue;
    }
    struct stat info {};
    if (::fstatat(::dirfd(proc), entry->d_name, &info, 0) == 0 && info.st_uid == ::geteuid()) visit(pid);
  }
  ::closedir(proc);
}

// The token of a process; "" without one. A zombie has an empty environment, so it is not counted.
std::string TokenOf(pid_t pid) {
  static constexpr std::string_view kKey = "MUSTER_TOKEN=";
  const absl::StatusOr<std::string> environment = ReadFile(ProcPath(pid, "environ"));
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

absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadFile(ProcPath(pid, "stat")));
  // The name, in parentheses, may itself hold parentheses and spaces: fields are counted from the last one.
  const size_t name_end = text.rfind(')');
  ProcessStat stat;
  unsigned long long start = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &stat.state, &stat.parent, &start) != 3) {
    return NotFound("%s: cannot be parsed", ProcPath(pid, "stat"));
  }
  stat.start_ticks = start;
  return stat;
}

absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return ErrnoError(errno == ESRCH ? ENOENT : errno, absl::StrFormat("process %d", pid));
  return fd;
}

absl::StatusOr<UniqueFd> OpenPidfdOf(pid_t pid, uint64_t start_ticks) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidfd(pid));
  MUSTER_ASSIGN_OR_RETURN(const ProcessStat stat, ReadProcessStat(pid));
  if (stat.start_ticks != start_ticks || stat.state == 'Z') return NotFound("process %d has ended", pid);
  return pidfd;
}

void SignalPidfd(int pidfd, int signal_number, int value) {
  siginfo_t info{};
  info.si_signo = signal_number;
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = value;
  (void)::syscall(SYS_pidfd_send_signal, pidfd, signal_number, &info, 0);
}

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
