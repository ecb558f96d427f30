// Port leases: a file per leased port under DIR/ports, so that they outlive the daemon.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace muster {

inline constexpr uint16_t kFirstLeasedPort = 20000;
inline constexpr uint16_t kLastLeasedPort =
    32767;  // the next one is where Linux begins to pick ports for connections

/// The leases under one folder. One thread at a time; one object per folder (the daemon's, who holds the
/// folder's lock).
class PortLeases {
 public:
  /// Reads the leases there are. A damaged lease file is removed: the probe finds out whether its port is in
  /// use.
  explicit PortLeases(std::filesystem::path folder);

  struct Request {
    std::string job;
    std::string task;
    std::string address;  // literal IPv4 or IPv6
    uint32_t count = 0;
    std::set<uint32_t> avoid;
    bool task_runs = false;  // its own ports are in use by itself, so they are kept without a probe
  };

  /// `count` ports that are neither leased nor in use on `address`, the task's earlier ones first; its other
  /// leases are released. InvalidArgument: the address is no literal IP or not of this host, count above
  /// 1000. Unavailable: no port left.
  absl::StatusOr<std::vector<uint32_t>> Lease(const Request& request);

  /// Releases them, but those on which something of this account still listens (of any account, where this is
  /// root), and returns how many those are. An empty task: all of the job's. An error, as of
  /// ListeningPorts::Read: none is released.
  absl::StatusOr<int> Release(const std::string& job, const std::string& task);

  /// Also where somebody listens: the task has lost them to others.
  void GiveAway(const std::string& job, const std::string& task);

  /// As many, and releases none.
  absl::StatusOr<int> CountInUse(const std::string& job, const std::string& task) const;

 private:
  struct Holder {
    std::string job, task, address;
    bool operator==(const Holder&) const = default;
  };
  std::vector<uint32_t> PortsOf(const std::string& job, const std::string& task) const;
  absl::Status Write(uint32_t port, const Holder& holder);
  void Remove(uint32_t port);

  std::filesystem::path folder_;
  std::map<uint32_t, Holder> leases_;
  RandomStream random_;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// InvalidArgument: the address is no literal IPv4 or IPv6.
absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address, uint32_t port);

/// Whether a server could bind `port` on `address` now. Bound without SO_REUSEPORT and SO_REUSEADDR, so that
/// a port which anyone uses, or still has connections closing on it, is not free. InvalidArgument as in
/// Lease.
absl::StatusOr<bool> PortIsFree(const std::string& address, uint32_t port);

/// What this account's processes listen on, by TCP, in this network namespace; for root, whose tasks may
/// change their account, what anybody's do.
class ListeningPorts {
 public:
  /// The first of the next two that answers, or why neither does.
  static absl::StatusOr<ListeningPorts> Read();
  /// As the kernel says when it is asked for listening sockets (sock_diag(7)). Nothing: it does not, or not
  /// all.
  static std::optional<ListeningPorts> Ask();
  /// By a pass over /proc/net, which goes through the table of all connections that there could be. `folder`
  /// is for tests.
  static absl::StatusOr<ListeningPorts> ReadTables(const std::filesystem::path& folder = "/proc/net");
  /// Of lines as in /proc/net/tcp and tcp6 (proc_pid_net(5)), and this account; unset: of any. What is no
  /// such line is left out, as the heading is.
  static ListeningPorts Parse(std::string_view lines, std::optional<uid_t> account);
  /// On this literal address, or on all.
  bool Contains(const std::string& address, uint32_t port) const;

 private:
  friend class SocketDiagnosis;
  void Add(std::string address, uint32_t port);

  std::set<std::pair<std::string, uint32_t>> sockets_;  // the address as its bytes
};

}  // namespace muster
