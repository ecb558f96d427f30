#include "agent/proc_scan.h"

#include <absl/strings/numbers.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "agent/names.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

absl::StatusOr<std::vector<pid_t>> ListProcesses(const std::filesystem::path& proc) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(proc));
  std::vector<pid_t> pids;
  for (const std::string& name : names) {
    if (int pid = 0; absl::SimpleAtoi(name, &pid)) pids.push_back(pid);
  }
  return pids;
}

// Whose environment this account may read.
bool IsReadable(const std::filesystem::path& process) {
  struct stat info {};
  return ::geteuid() == 0 || (::stat(process.c_str(), &info) == 0 && info.st_uid == ::geteuid());
}

constexpr Duration kPatience = std::chrono::seconds(2);                 // with the environment of one process
constexpr Duration kPatienceAfterOne = std::chrono::milliseconds(200);  // that hung in the same look
constexpr Duration kLetBe = std::chrono::seconds(60);                   // one that could not be read

// Guarded by a mutex for tests; the daemon has one thread.
struct Hung {
  std::mutex mutex;
  std::map<std::pair<pid_t, uint64_t>, TimePoint> processes;  // by start; when they were last tried
  std::set<pid_t> readers;                                    // children that hang with them
};

Hung& TheHung() {
  static auto* const hung = new Hung;
  return *hung;
}

// The token of a process; "" without one. A zombie has an empty environment, so it is not counted.
absl::StatusOr<std::string> TokenOf(const std::filesystem::path& process) {
  static constexpr std::string_view kKey = "MUSTER_TOKEN=";
  const absl::StatusOr<std::string> environment = ReadFile(process / "environ");
  if (absl::IsNotFound(environment.status())) return "";  // it has ended
  if (!environment.ok()) return environment.status();
  for (size_t start = 0; start < environment->size();) {
    const size_t end = std::min(environment->find('\0', start), environment->size());
    const std::string_view entry = std::string_view(*environment).substr(start, end - start);
    if (entry.starts_with(kKey)) return std::string(entry.substr(kKey.size()));
    start = end + 1;
  }
  return "";
}

// Of one whose environment cannot be read: that of the task in whose folder it works.
std::string TokenByFolder(const std::filesystem::path& process) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink(process / "cwd", error);
  for (std::filesystem::path at = folder; !error && at.has_relative_path(); at = at.parent_path()) {
    const std::filesystem::path job = at.parent_path(), jobs = job.parent_path();
    const std::optional<std::string> task = TaskOfFolder(at.filename().string());
    if (task && jobs.filename() == "jobs") {
      return TaskToken(job.filename().string(), RootId(jobs.parent_path()), *task);
    }
  }
  return "";
}

// Locks and connections of this process are not to outlive it in a child that hangs.
void KeepOnly(int kept) {
  const auto first = static_cast<unsigned>(kept);
  if (::close_range(3, first - 1, 0) == 0 && ::close_range(first + 1, UINT_MAX, 0) == 0) return;
  for (int fd = 3; fd < 1024; ++fd) {  // Linux before 5.9
    if (fd != kept) ::close(fd);
  }
}

// A child that writes for one process after another its token, or why there is none to know. It is this
// one's death that ends it, too: reading waits where it can still be killed.
class TokenReader {
 public:
  TokenReader(const std::filesystem::path& proc, std::span<const pid_t> pids, Duration patience)
      : patience_(patience) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return;
    UniqueFd read(fds[0]), write(fds[1]);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      KeepOnly(write.get());
      for (const pid_t pid : pids) {
        const absl::StatusOr<std::string> token = TokenOf(proc / std::to_string(pid));
        const std::string text = token.ok() ? *token : std::string(token.status().message());
        const Heading heading{.code = token.status().code(), .size = text.size()};
        const std::string answer(reinterpret_cast<const char*>(&heading), sizeof heading);
        if (!WriteAll(write.get(), answer + text).ok()) break;
      }
      ::_exit(0);
    }
    if (child_ > 0) pipe_ = std::move(read);
  }

  ~TokenReader() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    const absl::StatusOr<UniqueFd> ended = OpenPidfd(child_);  // readable then; it is not reaped yet
    pollfd end{.fd = ended.ok() ? ended->get() : -1, .events = POLLIN, .revents = 0};
    (void)::poll(&end, 1, 1000);
    // Where the kernel does not let it be killed while it reads, it stays until its process goes on.
    if (::waitpid(child_, nullptr, WNOHANG) != 0) return;
    const std::lock_guard lock(TheHung().mutex);
    TheHung().readers.insert(child_);
  }

  bool works() const { return pipe_.valid(); }

  /// TokenOf the next process; nullopt: it hangs, and so does this.
  std::optional<absl::StatusOr<std::string>> Next() {
    Heading heading;
    if (!Read(&heading, sizeof heading)) return std::nullopt;
    std::string text(heading.size, '\0');
    if (!Read(text.data(), text.size())) return std::nullopt;
    if (heading.code != absl::StatusCode::kOk) return absl::Status(heading.code, text);
    return text;
  }

 private:
  struct Heading {
    absl::StatusCode code = absl::StatusCode::kOk;
    size_t size = 0;  // of the token or the error's text behind it
  };

  bool Read(void* bytes, size_t size) {
    for (auto* at = static_cast<char*>(bytes); size > 0;) {
      const absl::Status waited = WaitReadable();
      const ssize_t got = waited.ok() ? ::read(pipe_.get(), at, size) : 0;
      if (got <= 0) return false;
      at += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

  // One that only waits for a processor is not hung.
  absl::Status WaitReadable() const {
    while (true) {
      pollfd readable{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&readable, 1, MillisecondsUntil(Now() + patience_)) > 0) return absl::OkStatus();
      const absl::StatusOr<ProcessStat> stat = ReadProcessStat(child_);
      if (!stat.ok() || stat->state != 'R') return DeadlineExceeded("it hangs");
    }
  }

  const Duration patience_;
  pid_t child_ = -1;
  UniqueFd pipe_;
};

absl::StatusOr<int> VisitByToken(const std::function<bool(std::string_view)>& matches, bool kill) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<TokenHolder> holders, FindTokenHolders());
  int found = 0;
  for (const TokenHolder& holder : holders) {
    if (!matches(holder.token)) continue;
    // By its start: since the look at it the pid may have been reused.
    const absl::StatusOr<UniqueFd> pidfd = OpenPidfdOf(holder.pid, holder.start_ticks);
    if (absl::IsNotFound(pidfd.status())) continue;
    ++found;
    if (kill && holder.is_certain && pidfd.ok()) SignalPidfd(pidfd->get(), SIGKILL);
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<pid_t>> ChildrenOf(pid_t parent) {
  Hung& hung = TheHung();
  const std::lock_guard lock(hung.mutex);
  std::erase_if(hung.readers, [](pid_t reader) { return ::waitpid(reader, nullptr, WNOHANG) != 0; });
  MUSTER_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, ListProcesses("/proc"));
  std::vector<pid_t> children;
  for (const pid_t pid : pids) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (absl::IsResourceExhausted(stat.status())) return stat.status();
    if (stat.ok() && stat->parent == parent && !hung.readers.contains(pid)) children.push_back(pid);
  }
  return children;
}

absl::StatusOr<std::vector<TokenHolder>> FindTokenHolders(const std::filesystem::path& proc) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<pid_t> all, ListProcesses(proc));
  Hung& hung = TheHung();
  std::vector<pid_t> pids;
  std::vector<TokenHolder> holders;
  std::map<pid_t, uint64_t> starts;
  const auto add = [&](pid_t pid, std::string token, bool is_certain) {
    if (!token.empty()) holders.push_back({pid, starts[pid], std::move(token), is_certain});
  };
  {
    const std::lock_guard lock(hung.mutex);
    std::erase_if(hung.processes, [](const auto& each) { return Now() - each.second > kLetBe; });
  }
  for (const pid_t pid : all) {
    if (!IsReadable(proc / std::to_string(pid))) continue;
    // Before its token is read: who has this start then had it all the time.
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (absl::IsResourceExhausted(stat.status())) return stat.status();
    starts[pid] = stat.value_or(ProcessStat{}).start_ticks;
    const std::lock_guard lock(hung.mutex);
    if (!hung.processes.contains({pid, starts[pid]})) {
      pids.push_back(pid);
    } else {
      add(pid, TokenByFolder(proc / std::to_string(pid)), false);
    }
  }
  Duration patience = kPatience;
  for (std::span<const pid_t> left = pids; !left.empty(); patience = kPatienceAfterOne) {
    TokenReader reader(proc, left, patience);
    while (!left.empty()) {
      const pid_t pid = left.front();
      const std::filesystem::path process = proc / std::to_string(pid);
      left = left.subspan(1);
      // Where there is no room for another process it is this one that reads.
      const std::optional<absl::StatusOr<std::string>> token =
          reader.works() ? reader.Next() : TokenOf(process);
      if (token && absl::IsResourceExhausted(token->status())) return token->status();
      const bool is_known = token && token->ok();
      add(pid, is_known ? **token : TokenByFolder(process), is_known);
      if (token) continue;
      const std::lock_guard lock(hung.mutex);
      hung.processes[{pid, starts[pid]}] = Now();
      break;
    }
  }
  return holders;
}

absl::StatusOr<int> KillByToken(const std::function<bool(std::string_view)>& matches) {
  return VisitByToken(matches, true);
}

absl::StatusOr<int> CountByToken(const std::function<bool(std::string_view)>& matches) {
  return VisitByToken(matches, false);
}

}  // namespace muster
