// Commands that other processes run through this one's connections (shared_transport.h says how they ask).
//
//   muster exec --"host-3?"--> GuestListener --Guest--> HostSession --Add--> GuestCommands: a channel beside
//               <--output, end------------------------------------------------ those that the session has
//
// A guest's command may outlive what its connection was made for: GuestKeeper then keeps that.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/wake.h"
#include "launcher/transport/transport.h"
#include "proto/shared_connection.pb.h"

namespace muster {

inline constexpr uint32_t kSharedConnectionVersion = 2;

/// A process that wants to run a command on a host, and waits to hear whether it may.
struct Guest {
  UniqueFd socket;  // SOCK_SEQPACKET; does not block
  shared::Request::Open wanted;

  /// It may not, and is gone with the object.
  void Refuse(const std::string& why) const;
};

/// Those of one connection, whose thread's they are.
class GuestCommands {
 public:
  /// Both outlive it. `count`: how many there are, of all connections.
  GuestCommands(Transport& transport, std::atomic<int>& count) : transport_(transport), count_(count) {}
  /// Commands that still run go on on the host, as when a channel is destroyed.
  ~GuestCommands() { count_ -= static_cast<int>(commands_.size()); }
  GuestCommands(const GuestCommands&) = delete;
  GuestCommands& operator=(const GuestCommands&) = delete;

  /// Refuses it if there are as many as the host's sshd may have room for beside the connection's own.
  void Add(Guest guest);
  bool empty() const { return commands_.empty(); }

  /// What is to be waited for until Pump is called next, and how long at most.
  void AddPollItems(std::vector<PollItem>* items) const;
  TimePoint deadline() const;

  /// Does what can be done without waiting, but for starting one command, which takes two round trips.
  void Pump();

  /// The connection is lost: all are told.
  void End(const absl::Status& why);

 private:
  struct Command {
    UniqueFd socket;
    TimePoint deadline;                       // for saying what it is
    std::unique_ptr<CommandChannel> channel;  // null: it has not said that yet
    std::string input;                        // what has come and is still to be sent on
    bool input_ends = false;
    std::string answer;  // that is still to be sent
    std::string errors;  // of the command, likewise
    bool is_last = false;
  };

  bool Pump(Command& command, bool* may_begin);
  bool SendAnswer(Command& command, bool* moved);
  bool TakeRequest(Command& command, bool* may_begin, bool* moved);
  void Begin(Command& command, const std::string& line);
  void PassInput(Command& command, bool* moved);
  void PassOutput(Command& command, bool* moved);

  Transport& transport_;
  std::atomic<int>& count_;
  std::vector<std::unique_ptr<Command>> commands_;
};

/// Takes what other processes of this user ask for at `path`, on a thread of its own. They are told no more
/// than whether they may, and that by whoever takes them.
class GuestListener {
 public:
  /// `take` is called from that thread. Fails as the kernel says, with the path.
  static absl::StatusOr<std::unique_ptr<GuestListener>> Open(const std::filesystem::path& path,
                                                             std::function<void(Guest)> take);
  ~GuestListener();

 private:
  struct Arrival {
    UniqueFd socket;
    TimePoint deadline;  // for saying what it wants
  };

  GuestListener(std::filesystem::path path, UniqueFd listener, std::function<void(Guest)> take);
  void Run(const std::stop_token& stop);
  void Accept();
  bool Hear(Arrival& arrival);

  const std::filesystem::path path_;
  const UniqueFd listener_;
  const std::function<void(Guest)> take_;
  Wake wake_;
  std::deque<Arrival> arrivals_;
  std::jthread thread_;  // last: it uses all of the above
};

/// How many guests' commands this process runs, and the connections that it holds for them alone. Any thread.
class GuestKeeper {
 public:
  GuestKeeper() = default;
  /// Waits until the last of them has ended.
  ~GuestKeeper() = default;
  GuestKeeper(const GuestKeeper&) = delete;
  GuestKeeper& operator=(const GuestKeeper&) = delete;

  std::atomic<int>& count() { return count_; }

  /// Until those have ended, on a thread of its own.
  void Keep(std::unique_ptr<Transport> transport, std::unique_ptr<GuestCommands> guests);

 private:
  std::atomic<int> count_ = 0;
  std::mutex mutex_;
  std::vector<std::jthread> threads_;
};

}  // namespace muster
