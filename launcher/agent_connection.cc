#include "launcher/agent_connection.h"

#include <absl/strings/ascii.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

absl::Status StatusOf(const agent::Response& response, const std::string& host) {
  if (!response.has_error()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(response.error().code()),
                      host + ": " + response.error().message());
}

AgentConnection::AgentConnection(const record::Host& host, const ConnectOptions& options)
    : host_(host), options_(options) {}

AgentConnection::~AgentConnection() {
  if (guests_ != nullptr) guests_->End(Unavailable("%s: the connection is lost", host_.name()));
  // Channels go before their transport.
  transfer_ = nullptr;
  server_ = nullptr;
  bridge_ = nullptr;
}

absl::StatusOr<std::unique_ptr<AgentConnection>> AgentConnection::Connect(const record::Host& host,
                                                                          const ConnectOptions& options,
                                                                          TimePoint deadline,
                                                                          const AgentSources& sources) {
  std::unique_ptr<AgentConnection> connection(new AgentConnection(host, options));
  const Duration time = deadline - Now();
  MUSTER_RETURN_IF_ERROR(connection->OpenTransport(deadline));
  // It may have waited for its turn.
  if (options.on_login) options.on_login();
  deadline = Now() + time;
  MUSTER_ASSIGN_OR_RETURN(connection->place_, AgentPlaceOf(host, options.ssh.known_hosts, *options.agent));
  MUSTER_ASSIGN_OR_RETURN(std::optional<BareHost> bare, connection->OpenBridge(deadline));
  if (bare) {
    MUSTER_RETURN_IF_ERROR(BringAgent(*connection->transport_, connection->place_, *bare, *options.agent,
                                      sources, options.ssh.cancel_fd,
                                      [&] { return connection->ComesUntil(time); }));
    deadline = connection->ComesUntil(time);
    MUSTER_ASSIGN_OR_RETURN(bare, connection->OpenBridge(deadline));
  }
  if (bare) {
    return WithNeedsUser(FailedPrecondition(
        "%s: the agent was written to %s, but cannot be run there: is it mounted noexec? Give the host "
        "another folder with `dir:`",
        host.name(), host.dir()));
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

absl::StatusOr<std::optional<BareHost>> AgentConnection::OpenBridge(TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(bridge_, transport_->Start(BridgeCommand(place_), deadline));
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
    return std::nullopt;
  }
  std::optional<BareHost> bare = FindBareHost(scanner.noise());
  if (!bare) {
    return Unavailable("%s: the agent did not start: %s%s", host_.name(), scanner.noise(),
                       absl::StripAsciiWhitespace(bridge_->StderrTail()));
  }
  bridge_ = nullptr;
  return bare;
}

TimePoint AgentConnection::ComesUntil(Duration time) const {
  if (options_.ssh.on_coming) options_.ssh.on_coming();
  return Now() + time;
}

absl::StatusOr<uint64_t> AgentConnection::Send(const agent::Request& request, TimePoint deadline) {
  agent::Envelope envelope;
  envelope.set_id(++last_id_);
  *envelope.mutable_request() = request;
  std::string frame;
  AppendFrame(frame, envelope.SerializeAsString());
  char answers[16384];
  for (std::string_view rest = frame;;) {
    MUSTER_ASSIGN_OR_RETURN(const size_t sent, bridge_->TryWrite(rest));
    rest.remove_prefix(sent);
    if (rest.empty()) return last_id_;
    if (sent > 0) continue;
    // An agent that is not rid of its answers takes in no requests.
    MUSTER_ASSIGN_OR_RETURN(const size_t received, bridge_->TryRead(answers));
    decoder_.Feed({answers, received});
    if (received > 0) continue;
    const PollItem item{.channel = bridge_.get(), .read = !bridge_->end_of_output(), .write = true};
    MUSTER_RETURN_IF_ERROR(transport_->Poll({&item, 1}, options_.ssh.cancel_fd, deadline));
    pollfd cancel{.fd = options_.ssh.cancel_fd, .events = POLLIN, .revents = 0};
    if (::poll(&cancel, 1, 0) > 0) {
      return Unavailable("%s: a request was given up before it was sent", host_.name());
    }
  }
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
      if (transfer_ != nullptr) transfer_->Pump();
      if (server_ != nullptr) server_->Pump();
      PumpGuests();
      if (HasNews()) return std::string();
    }
    std::vector<PollItem> items = {{.channel = bridge_.get(), .read = true}};
    if (transfer_ != nullptr && !is_calling_) {
      items.push_back(transfer_->poll_item());
      deadline = std::min(deadline, transfer_->deadline());
    }
    if (server_ != nullptr && !is_calling_) {
      items.push_back(server_->poll_item());
      deadline = std::min(deadline, server_->deadline());
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
    return Unavailable("%s: the connection to the agent ended: %s", host_.name(),
                       absl::StripAsciiWhitespace(bridge_->StderrTail()));
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

bool AgentConnection::HasNews() const {
  return (transfer_ != nullptr && transfer_->result()) || (server_ != nullptr && server_->has_news());
}

absl::Status AgentConnection::BeginUpload(const Content& content, TransferProgress progress,
                                          Duration silence_limit) {
  MUSTER_CHECK(transfer_ == nullptr);
  MUSTER_ASSIGN_OR_RETURN(
      transfer_, ContentTransfer::Upload(*transport_, place_, content, std::move(progress), silence_limit));
  return absl::OkStatus();
}

absl::Status AgentConnection::BeginFetch(const Content& content, const ContentSource& source,
                                         TransferProgress progress, TimePoint deadline) {
  MUSTER_CHECK(transfer_ == nullptr);
  MUSTER_ASSIGN_OR_RETURN(
      transfer_, ContentTransfer::Fetch(*transport_, place_, content, source, std::move(progress), deadline));
  return absl::OkStatus();
}

std::optional<absl::Status> AgentConnection::TakeTransferResult() {
  if (transfer_ == nullptr || !transfer_->result()) return std::nullopt;
  const absl::Status result = *transfer_->result();
  transfer_ = nullptr;
  return result;
}

absl::Status AgentConnection::BeginServing(const ContentSource& as, TimePoint deadline) {
  server_ = nullptr;
  MUSTER_ASSIGN_OR_RETURN(server_, ContentServer::Start(*transport_, place_, as, deadline));
  return absl::OkStatus();
}

std::optional<absl::StatusOr<uint32_t>> AgentConnection::TakeServing() {
  if (server_ == nullptr) return std::nullopt;
  auto news = server_->TakeNews();
  if (news && !news->ok()) server_ = nullptr;
  return news;
}

absl::StatusOr<std::unique_ptr<CommandChannel>> AgentConnection::StartAgentCommand(
    const std::string& arguments, TimePoint deadline) {
  return transport_->Start(absl::StrFormat("exec %s %s", place_.program, arguments), deadline);
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
  transfer_ = nullptr;
  server_ = nullptr;
  bridge_ = nullptr;
  transport_->BearSilence(kUsualSilenceLimit);
  keeper.Keep(std::move(transport_), std::move(guests_));
}

}  // namespace muster
