#include "launcher/network_namespaces.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

constexpr Duration kCommandTimeout = std::chrono::seconds(20);
constexpr Duration kEndTimeout = std::chrono::seconds(10);  // of killed processes

// Where iproute2 keeps them.
const std::filesystem::path kFolder = "/run/netns";

// In a session of its own, so that Ctrl-C on a terminal reaches muster and not what cleans up behind it.
absl::Status RunTool(std::vector<std::string> argv) {
  const auto result = RunCommand({.argv = argv, .new_session = true}, Now() + kCommandTimeout);
  const std::string line = absl::StrJoin(argv, " ");
  if (absl::IsNotFound(result.status()))
    return FailedPrecondition("%s is not in PATH: install iproute2", argv[0]);
  if (!result.ok()) return Annotate(result.status(), "`" + line + "`");
  if (result->exit_code == 0) return absl::OkStatus();
  return FailedPrecondition("`%s` failed with exit status %d: %s", line, result->exit_code,
                            absl::StripAsciiWhitespace(result->stderr_text));
}

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool IsIn(pid_t pid, const struct stat& network) {
  struct stat info {};
  return ::stat(absl::StrFormat("/proc/%d/ns/net", pid).c_str(), &info) == 0 && IsSameFile(info, network);
}

// Those that live there; they stay the same processes.
std::vector<UniqueFd> ProcessesIn(const struct stat& network) {
  std::vector<UniqueFd> processes;
  for (const pid_t pid : AllProcesses()) {
    if (!IsIn(pid, network)) continue;
    auto pidfd = OpenPidfd(pid);
    // Looked at again, since the number may have gone to another one before the pidfd was opened.
    if (pidfd.ok() && IsIn(pid, network)) processes.push_back(*std::move(pidfd));
  }
  return processes;
}

// Again and again, since a process may start another one while /proc is read.
absl::Status EndProcessesIn(const std::string& name) {
  struct stat network {};
  if (::stat((kFolder / name).c_str(), &network) != 0) return absl::OkStatus();
  const TimePoint deadline = Now() + kEndTimeout;
  while (true) {
    const std::vector<UniqueFd> processes = ProcessesIn(network);
    if (processes.empty()) return absl::OkStatus();
    if (Now() >= deadline) {
      return DeadlineExceeded(
          "%d processes in network namespace %s do not end, although they were killed: `ip netns pids %s` "
          "shows them, `ip netns del %s` removes it",
          processes.size(), name, name, name);
    }
    for (const UniqueFd& process : processes) SignalPidfd(process.get(), SIGKILL);
    for (const UniqueFd& process : processes) {
      pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
      ::poll(&end, 1, MillisecondsUntil(deadline));
    }
  }
}

absl::Status RemoveNamespace(const std::string& name) {
  MUSTER_RETURN_IF_ERROR(EndProcessesIn(name));
  const absl::Status removed = RunTool({"ip", "netns", "del", name});
  std::error_code error;
  // Another process may have removed it at the same time.
  return std::filesystem::exists(kFolder / name, error) ? removed : absl::OkStatus();
}

absl::StatusOr<uint64_t> PidNamespace() {
  struct stat info {};
  if (::stat("/proc/self/ns/pid", &info) != 0) return ErrnoError(errno, "/proc/self/ns/pid");
  return info.st_ino;
}

}  // namespace

absl::StatusOr<Owner> Owner::ThisProcess() {
  Owner owner{.pid = ::getpid()};
  MUSTER_ASSIGN_OR_RETURN(owner.pid_namespace, PidNamespace());
  MUSTER_ASSIGN_OR_RETURN(const ProcessStat stat, ReadProcessStat(owner.pid));
  owner.start_ticks = stat.start_ticks;
  return owner;
}

bool Owner::HasGone() const {
  const auto own_namespace = PidNamespace();
  return own_namespace.ok() && *own_namespace == pid_namespace &&
         absl::IsNotFound(OpenPidfdOf(pid, start_ticks).status());
}

std::string NamePrefix(const Owner& owner) {
  return absl::StrFormat("muster-%d-%d-%d-", owner.pid_namespace, owner.pid, owner.start_ticks);
}

std::optional<Owner> OwnerOfName(std::string_view name) {
  unsigned long long pid_namespace = 0, start = 0;
  Owner owner;
  if (std::sscanf(std::string(name).c_str(), "muster-%llu-%d-%llu-", &pid_namespace, &owner.pid, &start) != 3)
    return std::nullopt;
  owner.pid_namespace = pid_namespace;
  owner.start_ticks = start;
  // What is read here would also be written so: no signs, spaces or zeros in front.
  if (owner.pid <= 0 || !name.starts_with(NamePrefix(owner))) return std::nullopt;
  return owner;
}

absl::Status CheckMayMakeNamespaces() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return ErrnoError(errno, "capget");
  for (const int capability : {CAP_NET_ADMIN, CAP_SYS_ADMIN}) {
    if ((data[0].effective & (1u << capability)) != 0) continue;
    return PermissionDenied(
        "virtual hosts are network namespaces, which need root (CAP_NET_ADMIN and CAP_SYS_ADMIN): run it "
        "with sudo, or in a container that has both capabilities");
  }
  return absl::OkStatus();
}

absl::StatusOr<NetworkNamespace> NetworkNamespace::Create(const std::string& name) {
  MUSTER_RETURN_IF_ERROR(CheckMayMakeNamespaces());
  // Made first, so that whatever `ip` has got done before it failed is removed.
  NetworkNamespace made(name);
  MUSTER_RETURN_IF_ERROR(RunTool({"ip", "netns", "add", name}));
  MUSTER_RETURN_IF_ERROR(made.Ip({"link", "set", "lo", "up"}));
  return made;
}

NetworkNamespace::NetworkNamespace(NetworkNamespace&& other) noexcept
    : name_(std::exchange(other.name_, {})) {}

NetworkNamespace::~NetworkNamespace() { (void)Remove(); }

std::string NetworkNamespace::path() const { return (kFolder / name_).string(); }

std::vector<std::string> NetworkNamespace::command_prefix() const {
  return {"nsenter", "--net=" + path(), "--"};
}

absl::Status NetworkNamespace::Ip(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"ip", "-n", name_});
  return RunTool(std::move(arguments));
}

absl::Status NetworkNamespace::Tc(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"tc", "-n", name_});
  return RunTool(std::move(arguments));
}

absl::Status NetworkNamespace::Remove() {
  if (name_.empty()) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(RemoveNamespace(name_));
  name_.clear();
  return absl::OkStatus();
}

absl::Status RemoveAbandonedNamespaces() {
  absl::Status status;
  for (const std::string& name : ListDirectory(kFolder).value_or(std::vector<std::string>())) {
    const auto owner = OwnerOfName(name);
    if (owner && owner->HasGone()) status.Update(RemoveNamespace(name));
  }
  return status;
}

}  // namespace muster
