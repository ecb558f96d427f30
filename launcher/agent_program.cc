#include "launcher/agent_program.h"

#include <absl/strings/str_format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/gzip.h"
#include "base/sha256.h"
#include "launcher/transport/known_hosts.h"
#include "launcher/transport/shell_quote.h"
#include "launcher/transport/turns.h"

namespace muster {
namespace {

constexpr char kMissing[] = "muster-agent-missing ";

// They share this machine's processors and link, and maybe the disk that they are written to.
const Turns& AgentTurns() {
  static const Turns turns(/*at_a_time=*/32, "others to get their agents", std::chrono::hours(1));
  return turns;
}

std::string OwnArchitecture() {
  utsname name{};
  ::uname(&name);
  return name.machine;
}

// A name for the host that stays the same when its address changes: homes may be shared by hosts over NFS, so
// each has a folder of its own in them.
absl::StatusOr<std::string> HostId(const record::Host& host, const std::string& known_hosts) {
  if (!host.agent_id().empty()) return host.agent_id();
  if (host.local()) {
    const auto machine_id = ReadFile("/etc/machine-id", 256);
    return "local-" + Sha256Hex(machine_id.value_or("")).substr(0, 12);
  }
  MUSTER_ASSIGN_OR_RETURN(const KnownHosts known, KnownHosts::Load(known_hosts));
  const std::vector<HostKey> keys = known.KeysOf(host.name());
  if (keys.empty()) return Internal("%s: connected, but its key is not known", host.name());
  return Sha256Hex(keys[0].base64).substr(0, 16);
}

// `dir` as a word for sh, with ~ as the account's home.
std::string DirectoryWord(const std::string& dir) {
  if (dir == "~") return "\"$HOME\"";
  if (dir.starts_with("~/")) return "\"$HOME\"/" + QuoteWord(dir.substr(2));
  return QuoteWord(dir);
}

// However slow the link: each part has the time of a step.
absl::Status SendAgent(Transport& transport, const AgentPlace& place, const BareHost& host,
                       const AgentProgram& agent, const std::function<TimePoint()>& comes_until) {
  const std::shared_future<std::string> packed = agent.packed;
  std::string_view rest = host.has_gzip ? packed.get() : *agent.bytes;
  // To a name of its own first, so that two launchers at once do not see each other's half a file.
  const std::string command = absl::StrFormat(
      "umask 077; r=%s; a=%s; t=$a.tmp$$; mkdir -p \"$r/agents\" && %s > \"$t\" && "
      "[ \"$(sha256sum < \"$t\")\" = '%s  -' ] && chmod 700 \"$t\" && "
      "{ sync \"$t\" 2>/dev/null || sync; } && mv \"$t\" \"$a\" || { rm -f \"$t\"; "
      "exit 1; }",
      place.root, place.program, host.has_gzip ? "gzip -dc" : "cat", agent.sha256);
  MUSTER_ASSIGN_OR_RETURN(const auto channel, transport.Start(command, comes_until()));
  TimePoint deadline = comes_until(), said = Now();
  constexpr size_t kPartBytes = 256 << 10;
  while (!rest.empty()) {
    const size_t size = std::min(rest.size(), kPartBytes);
    const absl::Status sent = transport.Write(*channel, rest.substr(0, size), deadline);
    if (absl::IsFailedPrecondition(sent)) break;  // it has ended, and its exit code says why
    MUSTER_RETURN_IF_ERROR(sent);
    rest.remove_prefix(size);
    if (Now() - said < std::chrono::seconds(1)) continue;
    said = Now();
    deadline = comes_until();
  }
  if (const absl::Status closed = channel->CloseInput(); absl::IsUnavailable(closed)) return closed;
  MUSTER_ASSIGN_OR_RETURN(const int exit_code, transport.Wait(*channel, comes_until()));
  if (exit_code == 0) return absl::OkStatus();
  return WithNeedsUser(
      FailedPrecondition("%s: the agent could not be written to %s: %s (make room there, or give the host "
                         "another folder with `dir:`)",
                         transport.host(), place.dir, channel->StderrTail()));
}

}  // namespace

absl::StatusOr<AgentProgram> LoadAgentProgram(const Installation& installation) {
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, ReadFile(installation.agent));
  AgentProgram agent{.sha256 = Sha256Hex(bytes), .bytes = std::make_shared<std::string>(std::move(bytes))};
  // Most commands find it on all hosts.
  agent.packed = std::async(std::launch::deferred, [bytes = agent.bytes] { return Gzip(*bytes); }).share();
  return agent;
}

absl::StatusOr<AgentPlace> AgentPlaceOf(const record::Host& host, const std::string& known_hosts,
                                        const AgentProgram& agent) {
  MUSTER_ASSIGN_OR_RETURN(const std::string id, HostId(host, known_hosts));
  const std::string root = DirectoryWord(host.dir()) + "/hosts/" + id;
  return AgentPlace{.dir = host.dir(), .root = root, .program = root + "/agents/" + agent.sha256};
}

std::string BridgeCommand(const AgentPlace& place) {
  return absl::StrFormat(
      "a=%s; if [ -x \"$a\" ]; then exec \"$a\" bridge --root %s; fi; "
      "printf '\\n%s%%s %%s\\n' \"$(uname -m)\" \"$(command -v gzip)\"",
      place.program, place.root, kMissing);
}

std::optional<BareHost> FindBareHost(std::string_view output) {
  const size_t missing = output.rfind(kMissing);
  if (missing == std::string_view::npos) return std::nullopt;
  const std::string_view rest = output.substr(missing + sizeof kMissing - 1);
  const std::string_view line = rest.substr(0, rest.find('\n'));
  const size_t space = std::min(line.find(' '), line.size());
  return BareHost{.architecture = std::string(line.substr(0, space)), .has_gzip = space + 1 < line.size()};
}

absl::Status BringAgent(Transport& transport, const AgentPlace& place, const BareHost& host,
                        const AgentProgram& agent, int cancel_fd,
                        const std::function<TimePoint()>& comes_until) {
  if (host.architecture != OwnArchitecture()) {
    return WithNeedsUser(
        FailedPrecondition("%s: its architecture is %s, and this muster is built for %s: nothing was sent",
                           transport.host(), host.architecture, OwnArchitecture()));
  }
  const auto turn = AgentTurns().Take(cancel_fd, [&] { (void)comes_until(); });
  if (!turn.ok()) return Annotate(turn.status(), transport.host());
  return SendAgent(transport, place, host, agent, comes_until);
}

}  // namespace muster
