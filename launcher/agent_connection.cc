#include "launcher/agent_connection.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/gzip.h"
#include "base/sha256.h"
#include "launcher/known_hosts.h"
#include "launcher/shell_quote.h"
#include "launcher/turns.h"

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
absl::StatusOr<std::string> HostId(const record::Host& host, const SshOptions& ssh) {
  if (!host.agent_id().empty()) return host.agent_id();
  if (host.local()) {
    const auto machine_id = ReadFile("/etc/machine-id", 256);
    return "local-" + Sha256Hex(machine_id.value_or("")).substr(0, 12);
  }
  MUSTER_ASSIGN_OR_RETURN(const KnownHosts known, KnownHosts::Load(ssh.known_hosts));
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

}  // namespace

absl::StatusOr<AgentProgram> LoadAgentProgram(const Installation& installation) {
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, ReadFile(installation.agent));
  AgentProgram agent{.sha256 = Sha256Hex(bytes), .bytes = std::make_shared<std::string>(std::move(bytes))};
  // Most commands find it on all hosts.
  agent.packed = std::async(std::launch::deferred, [bytes = agent.bytes] { return Gzip(*bytes); }).share();
  return agent;
}

absl::Status StatusOf(const agent::Response& response, const std::string& host) {
  if (!response.has_error()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(response.error().code()),
                      host + ": " + response.error().message());
}

std::string PlaceOf(const record::Host& host) {
  std::string place = absl::StrFormat("%s@%s %d", host.user(), host.ssh_address(), host.ssh_port());
  for (const record::JumpHost& jump : host.jumps()) {
    place += absl::StrFormat(" by %s@%s %d", jump.user(), jump.address(), jump.port());
  }
  return place;
}

absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const record::Host& host,
                                                         const ConnectOptions& options, TimePoint deadline) {
  if (host.local()) {
    const char* home = std::getenv("HOME");
    const auto known = options.local_hosts.find(host.name());
    return MakeLocalTransport(known != options.local_hosts.end()
                                  ? known->second
                                  : LocalOptions{.name = host.name(), .home = home != nullptr ? home : "/"});
  }
  if (options.lent != nullptr && !options.lent->sockets.empty()) {
    ConnectOptions own = options;
    own.lent = nullptr;
    const Duration timeout = deadline - Now();
    return MakeSharedTransport({.host = host.name(),
                                .place = PlaceOf(host),
                                .host_keys = FingerprintsOf(options.lent->known_hosts, host.name())},
                               options.lent->sockets, [host, own = std::move(own), timeout] {
                                 return OpenTransport(host, own, Now() + timeout);
                               });
  }
  SshTarget target{.name = host.name(),
                   .address = host.ssh_address(),
                   .port = static_cast<uint16_t>(host.ssh_port()),
                   .user = host.user(),
                   .identities = {host.identities().begin(), host.identities().end()}};
  for (const record::JumpHost& jump : host.jumps()) {
    target.jumps.push_back({.name = jump.name(),
                            .address = jump.address(),
                            .port = static_cast<uint16_t>(jump.port()),
                            .user = jump.user(),
                            .identities = {jump.identities().begin(), jump.identities().end()}});
  }
  return SshTransport::Connect(target, options.ssh, deadline);
}

AgentConnection::AgentConnection(const record::Host& host, const ConnectOptions& options)
    : host_(host), options_(options) {}

AgentConnection::~AgentConnection() {
  if (guests_ != nullptr) guests_->End(Unavailable("%s: the connection is lost", host_.name()));
  // Channels go before their transport.
  upload_.reset();
  server_.reset();
  bridge_ = nullptr;
}

absl::StatusOr<std::unique_ptr<AgentConnection>> AgentConnection::Connect(const record::Host& host,
                                                                          const ConnectOptions& options,
                                                                          TimePoint deadline) {
  std::unique_ptr<AgentConnection> connection(new AgentConnection(host, options));
  const Duration time = deadline - Now();
  MUSTER_RETURN_IF_ERROR(connection->OpenTransport(deadline));
  // It may have waited for its turn.
  deadline = connection->ComesUntil(time);
  MUSTER_ASSIGN_OR_RETURN(const std::string id, HostId(host, options.ssh));
  connection->root_ = DirectoryWord(host.dir()) + "/hosts/" + id;
  connection->agent_ = connection->root_ + "/agents/" + options.agent->sha256;

  Bare bare;
  MUSTER_ASSIGN_OR_RETURN(bool there, connection->OpenBridge(deadline, &bare));
  if (!there) {
    if (bare.architecture != OwnArchitecture()) {
      return WithNeedsUser(
          FailedPrecondition("%s: its architecture is %s, and this muster is built for %s: nothing was sent",
                             host.name(), bare.architecture, OwnArchitecture()));
    }
    const auto turn = AgentTurns().Take(options.ssh.cancel_fd, [&] { (void)connection->ComesUntil(time); });
    if (!turn.ok()) return Annotate(turn.status(), host.name());
    MUSTER_RETURN_IF_ERROR(connection->UploadAgent(bare, time));
    deadline = connection->ComesUntil(time);
    MUSTER_ASSIGN_OR_RETURN(there, connection->OpenBridge(deadline, &bare));
    if (!there) {
      return WithNeedsUser(FailedPrecondition(
          "%s: the agent was written to %s, but cannot be run there: is it mounted noexec? Give the host "
          "another folder with `dir:`",
          host.name(), host.dir()));
    }
  }
  agent::Request facts;
  facts.mutable_facts();
  const int64_t asked = WallTimeMicros();
  MUSTER_ASSIGN_OR_RETURN(const agent::Response response, connection->Call(facts, deadline));
  connection->facts_ = response.facts();
  // 0: an older daemon, which does not say.
  if (response.facts().wall_micros() != 0) {
    const int64_t answered = WallTimeMicros();
    const int64_t offset = response.facts().wall_micros() - (asked + answered) / 2;
    if (std::abs(offset) > (answered - asked) / 2) connection->clock_offset_micros_ = offset;
  }
  return connection;
}

agent::TaskStatus AgentConnection::InOwnTime(agent::TaskStatus status) const {
  if (status.started_micros() != 0) status.set_started_micros(status.started_micros() - clock_offset_micros_);
  if (status.ended_micros() != 0) status.set_ended_micros(status.ended_micros() - clock_offset_micros_);
  return status;
}

absl::Status AgentConnection::OpenTransport(TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(transport_, muster::OpenTransport(host_, options_, deadline));
  if (const auto* ssh = dynamic_cast<const SshTransport*>(transport_.get())) {
    accepted_keys_ = ssh->accepted_keys();
    host_key_ = ssh->host_key();
    peer_address_ = ssh->peer_address();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AgentConnection::OpenBridge(TimePoint deadline, Bare* bare) {
  const std::string command = absl::StrFormat(
      "a=%s; if [ -x \"$a\" ]; then exec \"$a\" bridge --root %s; fi; "
      "printf '\\n%s%%s %%s\\n' \"$(uname -m)\" \"$(command -v gzip)\"",
      agent_, root_, kMissing);
  MUSTER_ASSIGN_OR_RETURN(bridge_, transport_->Start(command, deadline));
  HelloScanner scanner;
  while (true) {
    const auto bytes = ReadMore(options_.ssh.cancel_fd, deadline);
    if (!bytes.ok()) break;  // the end: what came before it says why
    if (bytes->empty()) return Unavailable("%s: the agent did not answer in time", host_.name());
    const auto found = scanner.Feed(*bytes);
    if (!found.ok()) return Annotate(found.status(), host_.name());
    if (!*found) continue;
    MUSTER_RETURN_IF_ERROR(
        CheckProtocolVersion(scanner.version(), "the agent on " + host_.name(), "this muster"));
    decoder_ = FrameDecoder();
    decoder_.Feed(scanner.TakeRest());
    MUSTER_RETURN_IF_ERROR(transport_->Write(*bridge_, HelloLine(), deadline));
    return true;
  }
  const size_t missing = scanner.noise().rfind(kMissing);
  if (missing == std::string::npos) {
    return Unavailable("%s: the agent did not start: %s%s", host_.name(), scanner.noise(),
                       bridge_->StderrTail());
  }
  const std::string rest = scanner.noise().substr(missing + sizeof kMissing - 1);
  const std::string line = rest.substr(0, rest.find('\n'));
  const size_t space = std::min(line.find(' '), line.size());
  *bare = {.architecture = line.substr(0, space), .has_gzip = space + 1 < line.size()};
  bridge_ = nullptr;
  return false;
}

TimePoint AgentConnection::ComesUntil(Duration time) const {
  if (options_.ssh.on_coming) options_.ssh.on_coming();
  return Now() + time;
}

// However slow the link: each part has that time.
absl::Status AgentConnection::UploadAgent(const Bare& bare, Duration time) {
  // To a name of its own first, so that two launchers at once do not see each other's half a file.
  const std::string command = absl::StrFormat(
      "umask 077; r=%s; a=%s; t=$a.tmp$$; mkdir -p \"$r/agents\" && %s > \"$t\" && "
      "[ \"$(sha256sum < \"$t\")\" = '%s  -' ] && chmod 700 \"$t\" && "
      "{ sync \"$t\" 2>/dev/null || sync; } && mv \"$t\" \"$a\" || { rm -f \"$t\"; "
      "exit 1; }",
      root_, agent_, bare.has_gzip ? "gzip -dc" : "cat", options_.agent->sha256);
  const std::shared_future<std::string> packed = options_.agent->packed;
  MUSTER_ASSIGN_OR_RETURN(const auto channel, transport_->Start(command, Now() + time));
  constexpr size_t kPartBytes = 256 << 10;
  TimePoint deadline = Now() + time, said = Now();
  for (std::string_view rest = bare.has_gzip ? packed.get() : *options_.agent->bytes; !rest.empty();) {
    const size_t size = std::min(rest.size(), kPartBytes);
    const absl::Status sent = transport_->Write(*channel, rest.substr(0, size), deadline);
    if (absl::IsFailedPrecondition(sent)) break;  // it has ended, and its exit code says why
    MUSTER_RETURN_IF_ERROR(sent);
    rest.remove_prefix(size);
    if (Now() - said < std::chrono::seconds(1)) continue;
    said = Now();
    deadline = ComesUntil(time);
  }
  if (const absl::Status closed = channel->CloseInput(); absl::IsUnavailable(closed)) return closed;
  MUSTER_ASSIGN_OR_RETURN(const int exit_code, transport_->Wait(*channel, ComesUntil(time)));
  if (exit_code != 0) {
    return WithNeedsUser(
        FailedPrecondition("%s: the agent could not be written to %s: %s (make room there, or give the host "
                           "another folder with `dir:`)",
                           host_.name(), host_.dir(), channel->StderrTail()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AgentConnection::Send(const agent::Request& request, TimePoint deadline) {
  agent::Envelope envelope;
  envelope.set_id(++last_id_);
  *envelope.mutable_request() = request;
  std::string frame;
  AppendFrame(frame, envelope.SerializeAsString());
  MUSTER_RETURN_IF_ERROR(transport_->Write(*bridge_, frame, deadline));
  return last_id_;
}

absl::StatusOr<std::optional<AgentConnection::Answer>> AgentConnection::Receive(int wake_fd,
                                                                                TimePoint deadline) {
  if (!kept_.empty()) {
    Answer answer = std::move(kept_.front());
    kept_.pop_front();
    return answer;
  }
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(std::optional<std::string> frame, decoder_.Next());
    if (frame) {
      agent::Envelope envelope;
      if (!envelope.ParseFromString(*frame) || !envelope.has_response()) {
        return Unavailable("%s: the agent sent something that is no answer", host_.name());
      }
      return Answer{.id = envelope.id(), .response = std::move(*envelope.mutable_response())};
    }
    MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadMore(wake_fd, deadline));
    if (bytes.empty()) return std::nullopt;
    decoder_.Feed(bytes);
  }
}

absl::StatusOr<std::string> AgentConnection::ReadMore(int wake_fd, TimePoint deadline) {
  std::string bytes(65536, '\0');
  MUSTER_ASSIGN_OR_RETURN(size_t n, bridge_->TryRead(bytes));
  if (n == 0 && !bridge_->end_of_output()) {
    if (!is_calling_) {
      PumpUpload();
      PumpServer();
      PumpGuests();
      if ((upload_ && upload_->result) || (server_ && server_->news)) return std::string();
    }
    std::vector<PollItem> items = {{.channel = bridge_.get(), .read = true}};
    if (upload_ && !is_calling_) {
      items.push_back(
          {.channel = upload_->channel.get(),
           .read = (upload_->all_sent && !upload_->channel->end_of_output()) || !upload_->has_begun,
           .write = upload_->has_begun && !upload_->all_sent,
           .exit = upload_->all_sent});
      deadline = std::min(deadline, upload_->deadline);
    }
    if (server_ && !is_calling_) {
      if (!server_->is_known) deadline = std::min(deadline, server_->deadline);
      items.push_back({.channel = server_->channel.get(), .read = true, .write = !server_->input.empty()});
    }
    if (guests_ != nullptr && !is_calling_) {
      guests_->AddPollItems(&items);
      deadline = std::min({deadline, guests_->deadline(), Now() + options_.ssh.silence_limit / 6});
    }
    const absl::Status polled = transport_->Poll(items, wake_fd, deadline);
    MUSTER_RETURN_IF_ERROR(CheckSilence());
    if (absl::IsDeadlineExceeded(polled)) return std::string();
    MUSTER_RETURN_IF_ERROR(polled);
    MUSTER_ASSIGN_OR_RETURN(n, bridge_->TryRead(bytes));
  }
  if (n == 0 && bridge_->end_of_output()) {
    return Unavailable("%s: the connection to the agent ended: %s", host_.name(), bridge_->StderrTail());
  }
  bytes.resize(n);
  return bytes;
}

absl::StatusOr<agent::Response> AgentConnection::Call(const agent::Request& request, TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const uint64_t id, Send(request, deadline));
  std::deque<Answer> others;
  others.swap(kept_);
  while (true) {
    is_calling_ = true;
    auto received = Receive(options_.ssh.cancel_fd, deadline);
    is_calling_ = false;
    MUSTER_ASSIGN_OR_RETURN(std::optional<Answer> answer, std::move(received));
    if (!answer) return Unavailable("%s: the agent did not answer in time", host_.name());
    if (answer->id != id) {
      others.push_back(*std::move(answer));
      continue;
    }
    kept_.swap(others);
    MUSTER_RETURN_IF_ERROR(StatusOf(answer->response, host_.name()));
    return std::move(answer->response);
  }
}

absl::Status AgentConnection::BeginUpload(const Content& content, UploadProgress progress,
                                          TimePoint deadline) {
  MUSTER_CHECK(!upload_);
  Upload upload{.content = content, .progress = std::move(progress), .deadline = deadline};
  upload.rest = *upload.content.bytes;
  MUSTER_ASSIGN_OR_RETURN(
      upload.channel, transport_->Start(absl::StrFormat("exec %s receive --root %s --sha256 %s --size %d",
                                                        agent_, root_, content.sha256, upload.rest.size()),
                                        std::min(deadline, Now() + std::chrono::seconds(10))));
  upload_ = std::move(upload);
  return absl::OkStatus();
}

absl::Status AgentConnection::BeginFetch(const Content& content, const ContentSource& source,
                                         TimePoint deadline) {
  MUSTER_CHECK(!upload_);
  upload_.emplace(Upload{.content = content,
                         .secret = source.secret + "\n",
                         .source = source.host,
                         .deadline = deadline,
                         .has_begun = true});
  upload_->rest = upload_->secret;
  auto channel = transport_->Start(
      absl::StrFormat("exec %s fetch --root %s --sha256 %s --size %d --address %s --port %d", agent_, root_,
                      content.sha256, content.bytes->size(), QuoteWord(source.address), source.port),
      std::min(deadline, Now() + std::chrono::seconds(10)));
  if (channel.ok()) {
    upload_->channel = *std::move(channel);
  } else {
    upload_.reset();
  }
  return channel.status();
}

absl::Status AgentConnection::BeginServing(const std::string& address, const std::string& secret,
                                           TimePoint deadline) {
  server_.reset();
  MUSTER_ASSIGN_OR_RETURN(
      std::unique_ptr<CommandChannel> channel,
      StartAgentCommand(absl::StrFormat("serve --root %s --address %s", root_, QuoteWord(address)),
                        deadline));
  server_.emplace(Server{.channel = std::move(channel), .input = secret + "\n", .deadline = deadline});
  return absl::OkStatus();
}

void AgentConnection::EndServing() { server_.reset(); }

std::optional<absl::StatusOr<uint32_t>> AgentConnection::TakeServing() {
  if (!server_ || !server_->news) return std::nullopt;
  const absl::StatusOr<uint32_t> news = *std::exchange(server_->news, std::nullopt);
  if (!news.ok()) server_.reset();
  return news;
}

// Does what can be done without waiting.
void AgentConnection::PumpServer() {
  if (!server_ || server_->news) return;
  if (const absl::Status read = ReadServer(); !read.ok()) {
    server_->news = read;
  } else if (!server_->is_known && Now() >= server_->deadline) {
    server_->news = DeadlineExceeded("%s: what passes on its contents did not start in time", host_.name());
  }
}

absl::Status AgentConnection::ReadServer() {
  if (!server_->input.empty()) {
    MUSTER_ASSIGN_OR_RETURN(const size_t sent, server_->channel->TryWrite(server_->input));
    server_->input.erase(0, sent);
  }
  std::string bytes(4096, '\0');
  MUSTER_ASSIGN_OR_RETURN(const size_t n, server_->channel->TryRead(bytes));
  for (const char byte : std::string_view(bytes).substr(0, n)) {
    if (byte != '\n') {
      if (server_->output.size() < 100) server_->output += byte;
      continue;
    }
    // Other lines are a login shell's.
    const std::string line = std::exchange(server_->output, "");
    uint32_t port = 0;
    if (server_->is_known || !line.starts_with("serving ") || !absl::SimpleAtoi(line.substr(8), &port))
      continue;
    server_->is_known = true;
    server_->news = port;
  }
  if (n > 0 || !server_->channel->end_of_output()) return absl::OkStatus();
  return Aborted("%s passes nothing on: %s", host_.name(), server_->channel->StderrTail());
}

absl::StatusOr<std::unique_ptr<CommandChannel>> AgentConnection::StartAgentCommand(
    const std::string& arguments, TimePoint deadline) {
  return transport_->Start(absl::StrFormat("exec %s %s", agent_, arguments), deadline);
}

void AgentConnection::AddGuest(Guest guest, std::atomic<int>& count) {
  if (guests_ == nullptr) guests_ = std::make_unique<GuestCommands>(*transport_, count);
  // Through a jump host, the transport goes on watching for the conversation's limit itself.
  if (host_.jumps().empty()) transport_->BearSilence(kUsualSilenceLimit);
  guests_->Add(std::move(guest));
}

// Does what can be done without waiting.
void AgentConnection::PumpGuests() {
  if (guests_ == nullptr) return;
  guests_->Pump();
  if (!guests_->empty()) return;
  guests_ = nullptr;
  transport_->BearSilence(options_.ssh.silence_limit);
}

// That of the conversation, of which the transport has been told not to mind it.
absl::Status AgentConnection::CheckSilence() const {
  if (guests_ == nullptr || transport_->silence() < options_.ssh.silence_limit) return absl::OkStatus();
  return Unavailable("%s: the connection is lost: no answer for %.0f s", host_.name(),
                     ToSeconds(options_.ssh.silence_limit));
}

void AgentConnection::LeaveToGuests(GuestKeeper& keeper) {
  if (guests_ == nullptr || guests_->empty()) return;
  upload_.reset();
  server_.reset();
  bridge_ = nullptr;
  transport_->BearSilence(kUsualSilenceLimit);
  keeper.Keep(std::move(transport_), std::move(guests_));
}

std::optional<absl::Status> AgentConnection::TakeUploadResult() {
  if (!upload_ || !upload_->result) return std::nullopt;
  const absl::Status result = *upload_->result;
  upload_.reset();
  return result;
}

// Does what can be done without waiting.
void AgentConnection::PumpUpload() {
  if (!upload_ || upload_->result) return;
  if (const absl::Status sent = SendUpload(); !sent.ok()) {
    upload_->result = sent;
  } else if (upload_->all_sent && upload_->channel->end_of_output() && upload_->channel->exit_code()) {
    const int exit_code = *upload_->channel->exit_code();
    if (exit_code == 0) {
      upload_->result = absl::OkStatus();
    } else if (upload_->source.empty()) {
      upload_->result = FailedPrecondition("%s: the upload of %s failed: %s", host_.name(),
                                           upload_->content.name, upload_->channel->StderrTail());
    } else {
      const std::string text =
          absl::StrFormat("%s could not get %s from %s: %s", host_.name(), upload_->content.name,
                          upload_->source, upload_->channel->StderrTail());
      upload_->result = exit_code == ExitCodeFor(absl::UnavailableError("")) ? Aborted("%s", text)
                                                                             : FailedPrecondition("%s", text);
    }
  } else if (Now() >= upload_->deadline && !upload_->source.empty()) {
    upload_->result =
        Aborted("%s gets %s from %s too slowly", host_.name(), upload_->content.name, upload_->source);
  } else if (Now() >= upload_->deadline) {
    upload_->result =
        DeadlineExceeded("%s: the upload of %s took too long", host_.name(), upload_->content.name);
  }
}

// The agent says first with which byte to begin: what an upload that was cut off has brought is there. It
// says nothing if it has all, or ends at once; its exit code says which.
absl::Status AgentConnection::BeginSending() {
  Upload& upload = *upload_;
  char byte;
  while (!upload.has_begun) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, upload.channel->TryRead({&byte, 1}));
    if (n == 0 && !upload.channel->end_of_output()) return absl::OkStatus();
    if (n == 0) {
      upload.rest = {};
      upload.has_begun = true;
    } else if (byte != '\n') {
      upload.greeting += byte;
    } else {
      // Other lines are a login shell's.
      const std::string line = std::exchange(upload.greeting, "");
      uint64_t offset = 0;
      if (!line.starts_with("from ") || !absl::SimpleAtoi(line.substr(5), &offset)) continue;
      upload.rest.remove_prefix(std::min<uint64_t>(offset, upload.rest.size()));
      upload.total = upload.rest.size();
      upload.has_begun = true;
    }
  }
  return absl::OkStatus();
}

absl::Status AgentConnection::SendUpload() {
  Upload& upload = *upload_;
  MUSTER_RETURN_IF_ERROR(BeginSending());
  if (!upload.has_begun) return absl::OkStatus();
  // So many bytes at a time, so that the conversation gets its turn.
  constexpr size_t kTurnBytes = 1 << 20;
  size_t turn = 0;
  while (!upload.rest.empty() && turn < kTurnBytes) {
    const auto sent = upload.channel->TryWrite(upload.rest);
    // It has ended early; its exit code says why.
    if (absl::IsFailedPrecondition(sent.status())) upload.rest = {};
    if (upload.rest.empty()) break;
    MUSTER_RETURN_IF_ERROR(sent.status());
    if (*sent == 0) break;
    upload.rest.remove_prefix(*sent);
    turn += *sent;
    if (upload.progress) upload.progress(upload.total - upload.rest.size(), upload.total);
  }
  if (!upload.rest.empty()) return absl::OkStatus();
  if (!upload.all_sent) {
    upload.all_sent = true;
    // Of one that has ended, there is nothing to close.
    if (upload.source.empty()) {
      const absl::Status closed = upload.channel->CloseInput();
      if (absl::IsUnavailable(closed)) return closed;
    }
  }
  // sshd may send the exit code before the last words, but never the end of the output.
  char unwanted[4096];
  while (!upload.channel->end_of_output()) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, upload.channel->TryRead(unwanted));
    if (n == 0) break;
  }
  return absl::OkStatus();
}

}  // namespace muster
