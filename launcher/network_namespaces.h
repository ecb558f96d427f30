// Network namespaces that belong to a process. Their names say to which, so that those of one that was killed
// can be found and removed, and those of a living one are left alone.
//
//     muster-<pid namespace>-<pid>-<start>-<number>-<what for>
//
// All of it needs CAP_NET_ADMIN and CAP_SYS_ADMIN, and iproute2.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace muster {

/// A process, and not another one that has its number later.
struct Owner {
  uint64_t pid_namespace = 0;
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot

  static absl::StatusOr<Owner> ThisProcess();

  /// Ended for certain. Nothing is known of processes in another pid namespace.
  bool HasGone() const;
};

/// What the names of all that `owner` makes begin with: "muster-4026531836-4711-90210-".
std::string NamePrefix(const Owner& owner);

/// Who has made what has this name; nothing if it does not begin so.
std::optional<Owner> OwnerOfName(std::string_view name);

/// PermissionDenied, with what to do, unless this process may make namespaces.
absl::Status CheckMayMakeNamespaces();

/// One namespace, empty but for a loopback interface that is up. Removed with the object. One thread at a
/// time.
class NetworkNamespace {
 public:
  /// `name` begins with this process's NamePrefix, or nobody removes it if the process is killed.
  /// PermissionDenied: see above; FailedPrecondition: what failed.
  static absl::StatusOr<NetworkNamespace> Create(const std::string& name);
  NetworkNamespace(NetworkNamespace&& other) noexcept;
  NetworkNamespace& operator=(NetworkNamespace&&) = delete;
  ~NetworkNamespace();

  const std::string& name() const { return name_; }
  /// For setns(2).
  std::string path() const;

  /// What a command line begins with to run there. Nothing but the network is another one then: `ip netns
  /// exec` would also hide what is mounted below /sys, control groups among it. So programs that read
  /// /sys/class/net see the interfaces of this process there.
  std::vector<std::string> command_prefix() const;

  /// `ip -n NAME arguments...` and `tc -n NAME arguments...`. FailedPrecondition: the command line and what
  /// it printed.
  absl::Status Ip(std::vector<std::string> arguments) const;
  absl::Status Tc(std::vector<std::string> arguments) const;

  /// Kills what still runs there, waits for its end and removes the namespace, with its interfaces and their
  /// peers. DeadlineExceeded: a process does not end. The destructor does the same and says nothing.
  absl::Status Remove();

 private:
  explicit NetworkNamespace(std::string name) : name_(std::move(name)) {}
  std::string name_;  // empty: removed, or moved from
};

/// The same for all namespaces, whoever made them, whose owner has gone. All are tried; the first failure is
/// returned.
absl::Status RemoveAbandonedNamespaces();

}  // namespace muster
