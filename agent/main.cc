// muster-agent: the part of muster that runs on each host. See the headers of its commands.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "agent/bridge.h"
#include "agent/daemon.h"
#include "agent/echo.h"
#include "agent/garbage.h"
#include "agent/names.h"
#include "agent/receive.h"
#include "agent/relay.h"
#include "agent/shim.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/framing.h"

namespace muster {
namespace {

constexpr char kUsage[] =
    "usage: muster-agent bridge  --root DIR                          what ssh runs: relays to the daemon, "
    "which it starts\n"
    "       muster-agent receive --root DIR --sha256 HEX --size N    stores an archive that comes on stdin, "
    "from byte N on once it has said `from N`\n"
    "       muster-agent daemon  --root DIR                          supervises the tasks under DIR (started "
    "by bridge)\n"
    "       muster-agent shim    --root DIR --job J --task T --incarnation N   runs one task (started by "
    "daemon)\n"
    "       muster-agent empty-trash --root DIR                      removes what was forgotten\n"
    "       muster-agent serve   --root DIR --address IP             passes what it has on to who knows the "
    "secret, and itself to who has the ticket, two lines on stdin, until stdin ends\n"
    "       muster-agent fetch   --root DIR --sha256 HEX --size N --address IP --port N   gets it from "
    "there\n"
    "       muster-agent echo    --address IP                        sends bytes back, until stdin ends\n"
    "       muster-agent ping    --address IP --port N               how long that takes\n"
    "       muster-agent --version\n";

/// The values of `--name value` pairs: each of `names` exactly once, and nothing else.
class Flags {
 public:
  static absl::StatusOr<Flags> Parse(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& names) {
    Flags flags;
    for (size_t i = 0; i < arguments.size(); i += 2) {
      const std::string name = arguments[i].starts_with("--") ? arguments[i].substr(2) : "";
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        return InvalidArgument("unknown argument '%s'\n%s", arguments[i], kUsage);
      }
      if (i + 1 == arguments.size()) return InvalidArgument("%s needs a value\n%s", arguments[i], kUsage);
      if (!flags.values_.emplace(name, arguments[i + 1]).second)
        return InvalidArgument("%s is given twice", arguments[i]);
    }
    for (const std::string& name : names) {
      if (!flags.values_.contains(name)) return InvalidArgument("--%s is missing\n%s", name, kUsage);
    }
    return flags;
  }

  const std::string& Text(const std::string& name) const { return values_.at(name); }

  absl::StatusOr<uint64_t> Number(const std::string& name, uint64_t max) const {
    const std::string& text = Text(name);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value > max) {
      return InvalidArgument("--%s '%s': give a number up to %d", name, text, max);
    }
    return value;
  }

  absl::StatusOr<std::filesystem::path> Root() const {
    if (Text("root").empty()) return InvalidArgument("--root is empty");
    std::error_code error;
    std::filesystem::path root = std::filesystem::absolute(Text("root"), error).lexically_normal();
    if (error) return ErrnoError(error.value(), Text("root"));
    return root.has_filename() ? root : root.parent_path();
  }

 private:
  std::map<std::string, std::string> values_;
};

// An sshd, or whoever starts the first bridge, may leave descriptors open that must not live as long as a
// daemon.
void CloseInheritedDescriptors() { (void)::close_range(3, ~0u, 0); }

// What means nothing to who has no terminal, and whom nobody but his own tells to end. A host that shuts
// down, or an account that logs out, sends HUP right behind TERM.
void IgnoreWhatHasNoMeaning() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(number, SIG_IGN);
}

absl::Status Bridge(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root"}));
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path root, flags.Root());
  return RunBridge(root);
}

absl::Status Daemon(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root"}));
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path root, flags.Root());
  CloseInheritedDescriptors();
  IgnoreWhatHasNoMeaning();
  const absl::Status status = RunDaemon(root);
  if (!status.ok()) (void)WriteAll(1, std::string(status.message()));  // to the bridge that started it
  return status;
}

absl::Status Shim(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root", "job", "task", "incarnation"}));
  ShimOptions options{.job = flags.Text("job"), .task = flags.Text("task")};
  MUSTER_ASSIGN_OR_RETURN(options.root, flags.Root());
  MUSTER_RETURN_IF_ERROR(ValidateJobName(options.job));
  MUSTER_RETURN_IF_ERROR(ValidateTaskName(options.task));
  MUSTER_ASSIGN_OR_RETURN(options.incarnation, flags.Number("incarnation", UINT32_MAX));
  CloseInheritedDescriptors();
  IgnoreWhatHasNoMeaning();
  return RunShim(options);
}

constexpr uint64_t kMostArchiveBytes = uint64_t{1} << 40;

absl::Status ReceiveArchive(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root", "sha256", "size"}));
  ReceiveOptions options{.sha256 = flags.Text("sha256")};
  MUSTER_ASSIGN_OR_RETURN(options.root, flags.Root());
  MUSTER_ASSIGN_OR_RETURN(options.size, flags.Number("size", kMostArchiveBytes));
  // On a line of its own, whatever the login shell has printed.
  options.begin = [](uint64_t offset) { return WriteAll(1, absl::StrFormat("\nfrom %d\n", offset)); };
  MUSTER_ASSIGN_OR_RETURN(const std::string result, Receive(options));
  return WriteAll(1, result + "\n");
}

absl::Status EmptyTrashUnder(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root"}));
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path root, flags.Root());
  return EmptyTrash(root);
}

// The next line of stdin, which goes on behind it.
absl::StatusOr<std::string> ReadSecret() {
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  std::string line;
  for (char byte; line.size() < 1000;) {
    pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, MillisecondsUntil(deadline)) == 0)
      return DeadlineExceeded("no secret came on stdin");
    const ssize_t n = ::read(0, &byte, 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return InvalidArgument("stdin ends before the secret does");
    if (byte == '\n') return line;
    line += byte;
  }
  return InvalidArgument("the secret on stdin is too long");
}

absl::Status ServeContents(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"root", "address"}));
  ServeOptions options{.address = flags.Text("address")};
  MUSTER_ASSIGN_OR_RETURN(options.root, flags.Root());
  MUSTER_ASSIGN_OR_RETURN(options.secret, ReadSecret());
  MUSTER_ASSIGN_OR_RETURN(options.ticket, ReadSecret());
  ::signal(SIGPIPE, SIG_IGN);
  options.listening = [](uint32_t port) { return WriteAll(1, absl::StrFormat("\nserving %d\n", port)); };
  return Serve(options);
}

absl::Status FetchContent(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags,
                          Flags::Parse(arguments, {"root", "sha256", "size", "address", "port"}));
  FetchOptions options{.sha256 = flags.Text("sha256"), .address = flags.Text("address")};
  MUSTER_ASSIGN_OR_RETURN(options.root, flags.Root());
  MUSTER_ASSIGN_OR_RETURN(options.size, flags.Number("size", kMostArchiveBytes));
  MUSTER_ASSIGN_OR_RETURN(const uint64_t port, flags.Number("port", UINT16_MAX));
  options.port = static_cast<uint32_t>(port);
  MUSTER_ASSIGN_OR_RETURN(options.secret, ReadSecret());
  ::signal(SIGPIPE, SIG_IGN);
  options.progress = [](uint64_t bytes) { return WriteAll(1, absl::StrFormat("\nat %d\n", bytes)); };
  MUSTER_ASSIGN_OR_RETURN(const std::string result, Fetch(options));
  return WriteAll(1, result + "\n");
}

// An agent whose launcher has gone does not listen for ever.
constexpr Duration kEchoTimeout = std::chrono::seconds(30);

absl::Status Echo(const std::vector<std::string>& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"address"}));
  const auto say_port = [](uint32_t port) {
    return WriteAll(1, absl::StrFormat("muster-echo port %d\n", port));
  };
  return RunEcho(flags.Text("address"), say_port, /*stop_fd=*/0, Now() + kEchoTimeout);
}

absl::Status Ping(const std::vector<std::string>& arguments) {
  constexpr int kRoundTrips = 200;
  MUSTER_ASSIGN_OR_RETURN(const Flags flags, Flags::Parse(arguments, {"address", "port"}));
  MUSTER_ASSIGN_OR_RETURN(const uint64_t port, flags.Number("port", UINT16_MAX));
  MUSTER_ASSIGN_OR_RETURN(const double seconds,
                          MeasureRoundTrip(flags.Text("address"), static_cast<uint32_t>(port), kRoundTrips,
                                           Now() + kEchoTimeout));
  return WriteAll(1, absl::StrFormat("muster-ping seconds %.9f\n", seconds));
}

absl::Status Run(const std::string& command, const std::vector<std::string>& arguments) {
  if (command == "bridge") return Bridge(arguments);
  if (command == "daemon") return Daemon(arguments);
  if (command == "shim") return Shim(arguments);
  if (command == "receive") return ReceiveArchive(arguments);
  if (command == "serve") return ServeContents(arguments);
  if (command == "fetch") return FetchContent(arguments);
  if (command == "empty-trash") return EmptyTrashUnder(arguments);
  if (command == "echo") return Echo(arguments);
  if (command == "ping") return Ping(arguments);
  if (command == "--version")
    return WriteAll(1, absl::StrFormat("muster-agent protocol %d\n", kAgentProtocolVersion));
  if (command == "--help") return WriteAll(1, kUsage);
  return InvalidArgument("unknown command '%s'\n%s", command, kUsage);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write, as a full disk is
  const std::string command = argc > 1 ? argv[1] : "";
  const absl::Status status = muster::Run(command, {argv + std::min(argc, 2), argv + argc});
  if (!status.ok()) {
    std::fprintf(stderr, "muster-agent %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  }
  return muster::ExitCodeFor(status);
}
