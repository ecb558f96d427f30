// HostSession: one thread that holds the connection to one host, executes what the reconciler wants done
// there, and follows files of its tasks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/agent_connection.h"
#include "launcher/content_delivery.h"
#include "launcher/content_relay.h"
#include "launcher/contents.h"
#include "launcher/event_queue.h"
#include "launcher/host_watch.h"
#include "launcher/reconciler/messages.h"
#include "proto/agent.pb.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Bytes of a file that is followed, in order, over reconnects too.
struct FileBytes {
  std::string task;
  std::string path;
  uint64_t missed = 0;      // of a log, before these: the host keeps them no longer
  uint64_t taken_back = 0;  // of those before: so many are no longer in the file, which was cut
  std::string bytes;
  /// The task has ended and this was all; a new start goes on. Before it these are whole lines, but of a log.
  bool last = false;
  /// If `last`: why the file could not be read (further). NotFound: what comes after a new start is another
  /// file, from its beginning.
  absl::Status status;
};

/// The regular files in a folder of a task.
struct FolderNames {
  std::string task;
  std::string folder;
  absl::StatusOr<std::vector<std::string>> names;  // sorted; NotFound: there is no such folder
};

/// The end of a task's log; empty if there is none, or the host is not there.
struct LogTail {
  std::string task;
  std::string text;
  bool is_cut = false;  // it begins in the middle
};

/// What a host said about itself when it was connected, and where that was.
struct HostFacts {
  std::string host;
  agent::FactsResponse facts;
  reconcile::ConnectionId connection = 0;
  std::string host_key;  // a fingerprint; "": not by SSH
  record::Host place;    // the host as it is known now
};

using SessionEvent = std::variant<reconcile::Event, FileBytes, FolderNames, LogTail, HostFacts, UploadStep>;

struct HostSessionOptions {
  record::Host host;
  std::string job;
  std::string required_glibc;  // "": any
  ConnectOptions connect;
  const Contents* contents = nullptr;
  /// Through which hosts pass contents on to each other; outlives the session. Null: they do not.
  ContentRelay* relay = nullptr;
  /// Others' commands that go through the connection; outlives the session. Null: there are none.
  GuestKeeper* guests = nullptr;
  /// For a start to be sent, with the files that it brings.
  Duration start_timeout = std::chrono::seconds(10);
  /// An agent that has told nothing for half of it is asked, and lost when it has told nothing in all of it:
  /// its daemon may hang, on a host that SSH reaches.
  Duration agent_silence_limit = std::chrono::seconds(60);
  /// Called from the session's thread; must not block on it.
  std::function<void(SessionEvent)> sink;
};

class HostSession {
 public:
  explicit HostSession(HostSessionOptions options);
  /// Gives up what is under way, closes the connection, or leaves it to guests, and joins the thread.
  ~HostSession();

  /// Any thread. Where the host may be: tried from now on, in turn with where it was. What is under way to
  /// another place is given up. False: that is where it was looked for already.
  bool Relocate(const HostSighting& sighting);

  /// Any thread. Connect, EnsureContents, LeasePort and StopTasks of this host.
  void Execute(reconcile::Action action);
  void Start(uint64_t request, agent::StartTaskRequest start);
  /// Sends the file's bytes from where it was left. Doing it again after the `last` bytes goes on with what
  /// came since: of a log behind them, of another file with the line that they ended in, of which they may
  /// have been a part.
  void Follow(const std::string& task, const std::string& path);
  /// Sends FolderNames once, or, if the connection is lost meanwhile, only what says so.
  void ListFiles(const std::string& task, const std::string& folder);
  /// Sends LogTail once, likewise.
  void ReadLogTail(const std::string& task);
  /// Runs its command here, or says why not.
  void Lend(std::shared_ptr<Guest> guest);

 private:
  struct StartCommand {
    uint64_t request;
    agent::StartTaskRequest start;
  };
  struct FollowCommand {
    std::string task;
    std::string path;
  };
  struct ListCommand {
    std::string task;
    std::string folder;
  };
  struct TailCommand {
    std::string task;
  };
  using Command = std::variant<reconcile::Action, RelayOrder, StartCommand, FollowCommand, ListCommand,
                               TailCommand, std::shared_ptr<Guest>>;
  using Handler = std::function<void(const agent::Response&)>;

  // A file whose bytes go to the sink.
  struct Followed {
    uint64_t offset = 0;
    bool active = false;  // a request is under way, or wanted as soon as there is a connection
  };

  void Take(RelayOrder order);
  void Enqueue(Command command);
  void Run(const std::stop_token& stop);
  void Do(const Command& command);
  void Do(const reconcile::Connect& connect);
  void Do(const reconcile::EnsureContents& ensure);
  void Do(const reconcile::LeasePort& lease);
  void Do(const reconcile::StopTasks& stop);
  void Do(const RelayOrder& order);
  void Do(const StartCommand& start);
  void Do(const FollowCommand& follow);
  void Do(const ListCommand& list);
  void Do(const TailCommand& tail);
  void Do(const std::shared_ptr<Guest>& guest);

  record::Host NextPlace();
  void ClearCancel();
  void EndAttempt(const record::Host& place, bool was_there);
  absl::Status Identify(const record::Host& place);
  absl::Status CheckFacts(const agent::FactsResponse& facts) const;
  void ReportComing();
  void ReportDelivery();
  void Ask(uint64_t request, const agent::Request& message, Handler handler,
           Duration timeout = std::chrono::seconds(10));
  bool BeginStart();
  void EndStart();
  void SendFollow(const std::string& task, const std::string& path);
  void ReceiveOne();
  void Handle(const AgentConnection::Answer& answer);
  void CheckSilence();
  void Disconnect();
  void Lose(const absl::Status& status);
  void Emit(reconcile::Event event) { options_.sink(std::move(event)); }

  const HostSessionOptions options_;
  const std::string name_;
  UniqueFd wake_;    // readable when there are commands
  UniqueFd cancel_;  // readable: give up what is under way; the session is being destroyed, the host is
                     // elsewhere, or a start that is being sent is in the way of a stop
  EventQueue<RelayOrder> agent_orders_;  // where the host is to get the agent
  std::mutex mutex_;                     // guards the following
  std::deque<Command> commands_;
  std::deque<record::Host> places_;  // where the host may be; the front one is tried next
  bool is_trying_ = false;           // that one
  bool is_starting_ = false;         // a start is being sent
  bool is_to_stop_ = false;          // all tasks here, and nobody waits for starts that were asked for before

  // Used by the session's thread only.
  std::unique_ptr<AgentConnection> agent_;
  std::string machine_id_;  // of the host, once it is known
  reconcile::ConnectionId connection_ = 0;
  std::map<uint64_t, Handler> handlers_;  // by the agent's request id
  std::map<std::pair<std::string, std::string>, Followed> followed_;
  std::optional<ContentDelivery> delivery_;       // while there is a connection
  std::optional<reconcile::RequestId> ensuring_;  // the EnsureContents that it is for
  std::string place_;                             // where the host is connected (PlaceOf)
  TimePoint heard_at_;                            // the last word of its agent
  bool is_asked_ = false;                         // since then, whether it is there

  std::jthread thread_;  // last: it uses all of the above
};

reconcile::TaskReport ReportOf(const agent::TaskStatus& status);

/// DataLoss if one of the names is no name of a file in a folder: they become names of files here, and no
/// host may choose another place.
absl::StatusOr<std::vector<std::string>> NamesOf(const agent::ListFilesResponse& response);

}  // namespace muster
