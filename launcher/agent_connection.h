// AgentConnection: a conversation with the agent of one host, over whatever transport reaches it. Brings the
// agent there first, if it is not.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/framing.h"
#include "base/status.h"
#include "launcher/content_relay.h"
#include "launcher/contents.h"
#include "launcher/guest_commands.h"
#include "launcher/local_transport.h"
#include "launcher/shared_transport.h"
#include "launcher/ssh_transport.h"
#include "launcher/transport.h"
#include "proto/agent.pb.h"
#include "proto/job_record.pb.h"

namespace muster {

/// The static agent binary, as it is put on hosts.
struct AgentProgram {
  std::string sha256;
  std::shared_ptr<const std::string> bytes;
  std::shared_future<std::string> packed;  // with gzip, once somebody gets it; each thread by a copy
};
absl::StatusOr<AgentProgram> LoadAgentProgram(const Installation& installation);

struct ConnectOptions {
  SshOptions ssh;
  const AgentProgram* agent = nullptr;
  // How commands run on hosts that are local, by their names. Those that are not in it are this account on
  // this machine.
  std::map<std::string, LocalOptions> local_hosts = {};
  // Through which commands go where that is possible; for OpenTransport only. Null: none.
  std::shared_ptr<const LentConnections> lent = nullptr;
};

/// Where the host is reached, as far as that is known without asking: what two records of one host share.
std::string PlaceOf(const record::Host& host);

/// A connection to the host, by SSH or on this machine, without an agent. Where others' may be used, it is
/// made only when a command needs it, in as much time as there is now.
absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const record::Host& host,
                                                         const ConnectOptions& options, TimePoint deadline);

/// `sent` of the `total` bytes that the host needs have been handed to it.
using UploadProgress = std::function<void(uint64_t sent, uint64_t total)>;

/// One thread at a time. Errors name the host. Once an operation has failed with Unavailable the connection
/// is over.
class AgentConnection {
 public:
  /// Connects, uploads the agent if it is not there, starts its bridge and checks the versions. The deadline
  /// is that of a host that is silent: waiting for the logins to others (options.ssh.on_coming), and sending
  /// the agent over a slow link, take their time.
  static absl::StatusOr<std::unique_ptr<AgentConnection>> Connect(const record::Host& host,
                                                                  const ConnectOptions& options,
                                                                  TimePoint deadline);
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

  /// Sends a request and returns its id. Its answers come from Receive.
  absl::StatusOr<uint64_t> Send(const agent::Request& request, TimePoint deadline);

  struct Answer {
    uint64_t id = 0;
    agent::Response response;
  };
  /// The next answer; nothing when `wake_fd` became readable, the deadline passed, or there is something for
  /// TakeUploadResult or TakeServing. Drives what has begun beside the conversation.
  absl::StatusOr<std::optional<Answer>> Receive(int wake_fd, TimePoint deadline);

  /// Sends a request and waits for its one answer; answers to others are kept for Receive. An error of the
  /// agent is returned as the status. Gives up when the options' cancel_fd becomes readable.
  absl::StatusOr<agent::Response> Call(const agent::Request& request, TimePoint deadline);

  /// Begins to make the content present in the host's store, through a channel of its own, beside the
  /// conversation: Receive drives it. One at a time.
  absl::Status BeginUpload(const Content& content, UploadProgress progress, TimePoint deadline);

  /// The same, but the host gets it from another one. How that ended says TakeUploadResult: Aborted, if the
  /// source is to blame.
  absl::Status BeginFetch(const Content& content, const ContentSource& source, TimePoint deadline);

  /// Begins to pass on what the host has, at an address of its own, to those who know the secret. Ends what
  /// was begun before.
  absl::Status BeginServing(const std::string& address, const std::string& secret, TimePoint deadline);
  void EndServing();
  bool is_serving() const { return server_.has_value(); }
  /// The port, once it is known; later an error, once, if the server has ended by itself. Nothing otherwise.
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

  /// How the upload ended, once; nothing while it goes on.
  std::optional<absl::Status> TakeUploadResult();

 private:
  AgentConnection(const record::Host& host, const ConnectOptions& options);

  // A host without the agent.
  struct Bare {
    std::string architecture;
    bool has_gzip = false;
  };

  absl::Status OpenTransport(TimePoint deadline);
  void PumpGuests();
  absl::Status CheckSilence() const;
  absl::Status UploadAgent(const Bare& bare, Duration time);
  /// Says that the connection gets somewhere, and how long it has for the next step.
  TimePoint ComesUntil(Duration time) const;
  /// False: the agent is not on the host, which is as `*bare` says.
  absl::StatusOr<bool> OpenBridge(TimePoint deadline, Bare* bare);
  /// What has arrived on the bridge; empty when woken, at the deadline, or when there is news of an upload or
  /// a server.
  absl::StatusOr<std::string> ReadMore(int wake_fd, TimePoint deadline);

  struct Upload {
    Content content;     // keeps the bytes alive
    std::string secret;  // the input of a fetch, which stays open: it ends with its launcher
    std::string source;  // of a fetch; "": an upload
    std::string_view rest;
    uint64_t total = 0;  // bytes that the host still needed when it began
    UploadProgress progress;
    TimePoint deadline;
    std::unique_ptr<CommandChannel> channel;
    std::string greeting;    // "from N\n", as far as it has come
    bool has_begun = false;  // it has come, or the agent needs nothing
    bool all_sent = false;   // nothing is left to do but to wait for the end
    std::optional<absl::Status> result;
  };
  struct Server {
    std::unique_ptr<CommandChannel> channel;
    std::string input;   // what is left of it
    std::string output;  // the line that has begun
    bool is_known = false;
    TimePoint deadline;  // for that
    std::optional<absl::StatusOr<uint32_t>> news;
  };
  void PumpServer();
  absl::Status ReadServer();
  void PumpUpload();
  absl::Status BeginSending();
  absl::Status SendUpload();

  const record::Host host_;
  const ConnectOptions options_;
  std::string root_;   // of the agent's files on the host, as a word for sh
  std::string agent_;  // its path, likewise
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<CommandChannel> bridge_;
  std::optional<Upload> upload_;
  std::optional<Server> server_;
  std::unique_ptr<GuestCommands> guests_;  // null: there are none
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
