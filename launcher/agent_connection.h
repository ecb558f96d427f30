// AgentConnection: a conversation with the agent of one host, over whatever transport reaches it. Brings the
// agent there first, if it is not.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/framing.h"
#include "base/status.h"
#include "launcher/agent_program.h"
#include "launcher/content_relay.h"
#include "launcher/content_transfer.h"
#include "launcher/contents.h"
#include "launcher/open_transport.h"
#include "launcher/transport/guest_commands.h"
#include "launcher/transport/transport.h"
#include "proto/agent.pb.h"
#include "proto/job_record.pb.h"

namespace muster {

/// One thread at a time. Errors name the host. Once an operation has failed with Unavailable the connection
/// is over.
class AgentConnection {
 public:
  /// Connects, brings the agent if it is not there, starts its bridge and checks the versions. The deadline
  /// is that of a host that is silent: waiting for the logins to others (options.ssh.on_coming), and sending
  /// or getting the agent over a slow link, take their time. Where there are no `sources` the agent comes
  /// from here.
  static absl::StatusOr<std::unique_ptr<AgentConnection>> Connect(const record::Host& host,
                                                                  const ConnectOptions& options,
                                                                  TimePoint deadline,
                                                                  const AgentSources& sources = {});
  ~AgentConnection();

  const agent::FactsResponse& facts() const { return facts_; }
  /// How far the host's clock was ahead of this machine's, in microseconds, right by half the time that an
  /// answer takes. 0 if it is not certain that they differ: what happened on hosts whose clocks agree stays
  /// in order.
  int64_t clock_offset_micros() const { return clock_offset_micros_; }
  /// When it started and ended, by this machine's clock.
  agent::TaskStatus InOwnTime(agent::TaskStatus status) const;
  /// Those that this connection has made known.
  const std::vector<AcceptedKey>& accepted_keys() const { return accepted_keys_; }

  /// Of the host, as a fingerprint, and where it was reached, a literal; "" where that is not by SSH.
  const std::string& host_key() const { return host_key_; }
  const std::string& peer_address() const { return peer_address_; }

  /// Sends a request and returns its id. Its answers come from Receive. Gives up when the options' cancel_fd
  /// is readable and nothing can be sent just now.
  absl::StatusOr<uint64_t> Send(const agent::Request& request, TimePoint deadline);

  struct Answer {
    uint64_t id = 0;
    agent::Response response;
  };
  /// The next answer; nothing when `wake_fd` became readable, the deadline passed, or there is something for
  /// TakeTransferResult or TakeServing. Drives what has begun beside the conversation.
  absl::StatusOr<std::optional<Answer>> Receive(int wake_fd, TimePoint deadline);

  /// Sends a request and waits for its one answer; answers to others are kept for Receive. An error of the
  /// agent is returned as the status. Gives up when the options' cancel_fd becomes readable.
  absl::StatusOr<agent::Response> Call(const agent::Request& request, TimePoint deadline);

  /// Begins to make the content present in the host's store, beside the conversation: Receive drives it. One
  /// at a time. DeadlineExceeded when no byte has moved for `silence_limit`.
  absl::Status BeginUpload(const Content& content, TransferProgress progress, Duration silence_limit);
  /// The same, but the host gets it from another one.
  absl::Status BeginFetch(const Content& content, const ContentSource& source, TransferProgress progress,
                          TimePoint deadline);
  /// How that ended, once, as ContentTransfer says it; nothing while it goes on.
  std::optional<absl::Status> TakeTransferResult();

  /// Begins to pass on what the host has, as ContentServer does. Ends what was begun before.
  absl::Status BeginServing(const ContentSource& as, TimePoint deadline);
  void EndServing() { server_ = nullptr; }
  bool is_serving() const { return server_ != nullptr; }
  /// As ContentServer says it.
  std::optional<absl::StatusOr<uint32_t>> TakeServing();

  /// Starts the agent's program once more, beside the conversation: "echo --address 10.0.0.1". The channel
  /// must be gone before this is.
  absl::StatusOr<std::unique_ptr<CommandChannel>> StartAgentCommand(const std::string& arguments,
                                                                    TimePoint deadline);
  /// What that channel is waited for with.
  Transport& transport() { return *transport_; }

  /// From now on also runs that command, beside the conversation: Receive drives it.
  void AddGuest(Guest guest, std::atomic<int>& count);
  /// Where there are such commands, they get the connection, and the conversation is over. They bear more
  /// silence than that, as they would on a connection of their own.
  void LeaveToGuests(GuestKeeper& keeper);

 private:
  AgentConnection(const record::Host& host, const ConnectOptions& options);

  absl::Status OpenTransport(TimePoint deadline);
  void PumpGuests();
  absl::Status CheckSilence() const;
  /// Says that the connection gets somewhere, and how long it has for the next step.
  TimePoint ComesUntil(Duration time) const;
  /// What the host is if the agent is not there; nothing, if the bridge is open.
  absl::StatusOr<std::optional<BareHost>> OpenBridge(TimePoint deadline);
  /// What has arrived on the bridge; empty when woken, at the deadline, or when there is news of a
  /// transfer or a server.
  absl::StatusOr<std::string> ReadMore(int wake_fd, TimePoint deadline);
  bool HasNews() const;

  const record::Host host_;
  const ConnectOptions options_;
  AgentPlace place_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<CommandChannel> bridge_;
  std::unique_ptr<ContentTransfer> transfer_;  // null: there is none
  std::unique_ptr<ContentServer> server_;      // likewise
  std::unique_ptr<GuestCommands> guests_;      // null: there are none
  FrameDecoder decoder_;
  std::deque<Answer> kept_;
  agent::FactsResponse facts_;
  int64_t clock_offset_micros_ = 0;
  std::vector<AcceptedKey> accepted_keys_;
  std::string host_key_;
  std::string peer_address_;
  uint64_t last_id_ = 0;
  bool is_calling_ = false;  // what goes on beside the conversation waits
};

/// The status that an answer carries: OK unless its error is set.
absl::Status StatusOf(const agent::Response& response, const std::string& host);

}  // namespace muster
