#include "launcher/agent_program.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <poll.h>
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
constexpr int kConnectSeconds = 5, kFetchSeconds = 1800;                                        // by the host
constexpr Duration kFetchTimeout = std::chrono::seconds(kConnectSeconds + kFetchSeconds + 30);  // it has none

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

// For sh: what `source` prints becomes the agent, if it is that. To a name of its own first, so that two
// launchers at once do not see each other's half a file.
std::string InstallCommand(const AgentPlace& place, const AgentProgram& agent, const std::string& source) {
  return absl::StrFormat(
      "umask 077; r=%s; a=%s; t=$a.tmp$$; mkdir -p \"$r/agents\" && %s > \"$t\" && "
      "{ [ \"$(sha256sum < \"$t\")\" = '%s  -' ] || { echo 'what came is another program' >&2; false; }; } "
      "&& "
      "chmod 700 \"$t\" && { sync \"$t\" 2>/dev/null || sync; } && mv \"$t\" \"$a\" || "
      "{ rm -f \"$t\"; exit 1; }",
      place.root, place.program, source, agent.sha256);
}

// The host that is to get the agent has no TLS. It asks with what bash can do, for no more bytes than there
// are, and gives up by itself, as a fetch of the agent's would. Its first connection is there to find out in
// time if there is a way.
std::string FetchCommand(const ContentSource& source, const AgentProgram& agent) {
  constexpr size_t kPartBytes = 256 << 10;
  const std::string words =
      absl::StrFormat("%s %d %s %d", QuoteWord(source.address), source.port, source.ticket,
                      (agent.bytes->size() + kPartBytes - 1) / kPartBytes);
  return absl::StrFormat(
      "timeout %d bash -c ': <>\"/dev/tcp/$0/$1\"' %s || { echo 'it does not answer' >&2; false; } && "
      "timeout %d bash -c '"
      "exec 3<>\"/dev/tcp/$0/$1\" && echo \"agent $2\" >&3 && for ((i = 0; i < $3; ++i)); do "
      "timeout 10 head -c %d <&3 || { echo \"it is silent, or too slow\" >&2; exit 1; }; done' %s",
      kConnectSeconds, words, kFetchSeconds, kPartBytes, words);
}

// One agent on its way to one host.
class AgentDelivery {
 public:
  AgentDelivery(Transport& transport, const AgentPlace& place, const BareHost& host,
                const AgentProgram& agent, const AgentSources& sources, int cancel_fd,
                const std::function<TimePoint()>& comes_until)
      : transport_(transport),
        place_(place),
        host_(host),
        agent_(agent),
        sources_(sources),
        cancel_fd_(cancel_fd),
        comes_until_(comes_until) {}

  /// Gets it from the hosts that the relay names. False: the launcher is to send it.
  absl::StatusOr<bool> Fetch();
  absl::Status Send();

 private:
  absl::StatusOr<RelayOrder> AwaitOrder();
  absl::Status FetchFrom(const ContentSource& source);
  absl::Status CheckCancelled() const;
  void Say(UploadStep step) const;

  Transport& transport_;
  const AgentPlace& place_;
  const BareHost& host_;
  const AgentProgram& agent_;
  const AgentSources& sources_;
  const int cancel_fd_;
  const std::function<TimePoint()>& comes_until_;
};

absl::StatusOr<bool> AgentDelivery::Fetch() {
  if (sources_.relay == nullptr || !host_.can_fetch) return false;
  (void)sources_.orders->Wait(-1, Now());  // those of an earlier attempt
  sources_.relay->Want(transport_.host(), agent_.sha256);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const RelayOrder order, AwaitOrder());
    if (order.kind == RelayPlan::Action::Kind::kUpload) return false;
    const absl::Status fetched = FetchFrom(order.source);
    if (fetched.ok()) return true;
    if (!absl::IsAborted(fetched)) return fetched;
    Say({.source = order.source.host, .problem = std::string(fetched.message())});
    sources_.relay->FetchFailed(transport_.host(), agent_.sha256);
  }
}

absl::StatusOr<RelayOrder> AgentDelivery::AwaitOrder() {
  while (true) {
    const TimePoint soon = Now() + std::chrono::seconds(1);
    for (RelayOrder& order : sources_.orders->Wait(cancel_fd_, soon)) return std::move(order);
    MUSTER_RETURN_IF_ERROR(CheckCancelled());
    sources_.relay->Tick();
    (void)comes_until_();
  }
}

// Aborted: it did not come from there.
absl::Status AgentDelivery::FetchFrom(const ContentSource& source) {
  const uint64_t size = agent_.bytes->size();
  Say({.source = source.host, .total_bytes = size});
  MUSTER_ASSIGN_OR_RETURN(
      const auto channel,
      transport_.Start(InstallCommand(place_, agent_, FetchCommand(source, agent_)), comes_until_()));
  const TimePoint deadline = Now() + kFetchTimeout;
  while (true) {
    char ignored[1024];
    MUSTER_RETURN_IF_ERROR(channel->TryRead(ignored).status());
    if (channel->end_of_output() && channel->exit_code()) break;
    if (Now() >= deadline) {
      return Aborted("%s gets the agent from %s too slowly", transport_.host(), source.host);
    }
    const PollItem item{
        .channel = channel.get(), .read = !channel->end_of_output(), .exit = channel->end_of_output()};
    const TimePoint soon = Now() + std::chrono::seconds(1);
    const absl::Status polled = transport_.Poll({&item, 1}, cancel_fd_, std::min<TimePoint>(soon, deadline));
    if (!polled.ok() && !absl::IsDeadlineExceeded(polled)) return polled;
    MUSTER_RETURN_IF_ERROR(CheckCancelled());
    (void)comes_until_();
  }
  if (channel->exit_code() != 0) {
    return Aborted("%s could not get the agent from %s: %s", transport_.host(), source.host,
                   absl::StripAsciiWhitespace(channel->StderrTail()));
  }
  Say({.source = source.host, .sent_bytes = size, .total_bytes = size});
  return absl::OkStatus();
}

// However slow the link: each part has the time of a step.
absl::Status AgentDelivery::Send() {
  const auto turn = AgentTurns().Take(cancel_fd_, [this] { (void)comes_until_(); });
  if (!turn.ok()) return Annotate(turn.status(), transport_.host());
  const std::shared_future<std::string> packed = agent_.packed;
  const std::string_view bytes = host_.has_gzip ? packed.get() : *agent_.bytes;
  const std::string command = InstallCommand(place_, agent_, host_.has_gzip ? "gzip -dc" : "cat");
  MUSTER_ASSIGN_OR_RETURN(const auto channel, transport_.Start(command, comes_until_()));
  TimePoint deadline = comes_until_(), said = Now();
  constexpr size_t kPartBytes = 256 << 10;
  for (size_t sent = 0; sent < bytes.size();) {
    Say({.sent_bytes = sent, .total_bytes = bytes.size()});
    const std::string_view part = bytes.substr(sent, kPartBytes);
    const absl::Status written = transport_.Write(*channel, part, deadline);
    if (absl::IsFailedPrecondition(written)) break;  // it has ended, and its exit code says why
    MUSTER_RETURN_IF_ERROR(written);
    sent += part.size();
    if (Now() - said < std::chrono::seconds(1)) continue;
    said = Now();
    deadline = comes_until_();
  }
  if (const absl::Status closed = channel->CloseInput(); absl::IsUnavailable(closed)) return closed;
  MUSTER_ASSIGN_OR_RETURN(const int exit_code, transport_.Wait(*channel, comes_until_()));
  if (exit_code != 0) {
    return WithNeedsUser(
        FailedPrecondition("%s: the agent could not be written to %s: %s (make room there, or give the host "
                           "another folder with `dir:`)",
                           transport_.host(), place_.dir, absl::StripAsciiWhitespace(channel->StderrTail())));
  }
  Say({.sent_bytes = bytes.size(), .total_bytes = bytes.size()});
  return absl::OkStatus();
}

absl::Status AgentDelivery::CheckCancelled() const {
  pollfd cancel{.fd = cancel_fd_, .events = POLLIN, .revents = 0};
  return ::poll(&cancel, 1, 0) > 0 ? Cancelled("%s: interrupted", transport_.host()) : absl::OkStatus();
}

void AgentDelivery::Say(UploadStep step) const {
  if (!sources_.progress) return;
  step.host = transport_.host();
  step.content = "the agent";
  sources_.progress(step);
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
      "printf '\\n%s%%s' \"$(uname -m)\"; for t in gzip bash timeout; do command -v $t >/dev/null && "
      "printf ' %%s' $t; done; case \"$(head --version 2>/dev/null)\" in *GNU*) printf ' gnu-head';; esac; "
      "echo",
      place.program, place.root, kMissing);
}

std::optional<BareHost> FindBareHost(std::string_view output) {
  const size_t missing = output.rfind(kMissing);
  if (missing == std::string_view::npos) return std::nullopt;
  const std::string_view rest = output.substr(missing + sizeof kMissing - 1);
  const std::string_view line = rest.substr(0, rest.find('\n'));
  const std::vector<std::string> words = absl::StrSplit(std::string(line), ' ');
  const auto has = [&](const char* tool) {
    return std::find(words.begin() + 1, words.end(), tool) != words.end();
  };
  return BareHost{.architecture = words[0],
                  .has_gzip = has("gzip"),
                  .can_fetch = has("bash") && has("timeout") && has("gnu-head")};
}

absl::Status BringAgent(Transport& transport, const AgentPlace& place, const BareHost& host,
                        const AgentProgram& agent, const AgentSources& sources, int cancel_fd,
                        const std::function<TimePoint()>& comes_until) {
  if (host.architecture != OwnArchitecture()) {
    return WithNeedsUser(
        FailedPrecondition("%s: its architecture is %s, and this muster is built for %s: nothing was sent",
                           transport.host(), host.architecture, OwnArchitecture()));
  }
  AgentDelivery delivery(transport, place, host, agent, sources, cancel_fd, comes_until);
  MUSTER_ASSIGN_OR_RETURN(const bool is_there, delivery.Fetch());
  return is_there ? absl::OkStatus() : delivery.Send();
}

}  // namespace muster
