// Where a task listens: at its own address, wherever that is now.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "cluster/cluster_view.h"

namespace muster {

/// A TCP socket that listens at "host:port", of a name with several addresses at the first that this machine
/// has, and does not block. AlreadyExists: the port is taken. Unavailable: anything else.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);

/// Of those who wait at `listening`, which does not block, the next; invalid if there is none. Out of
/// descriptors or memory it takes 10 ms: a caller's poll would come back at once.
UniqueFd AcceptNext(int listening);

/// `address`, or its port at `bind_host` if there is one. Empty: there is no address.
std::string ListeningAddress(const std::string& address, const std::string& bind_host);

/// Waits until the host of the task's own address is this machine, or `timeout` has passed: whoever listens
/// then says why that fails. A process that is started where its host has just moved to may be told of that
/// only later. With a `bind_host` there is nothing to wait for.
void AwaitOwnAddress(const ClusterView& view, const std::string& bind_host, Duration timeout);

/// Has a server listen at each new address of its task. That may not be one of this machine yet, or its port
/// be taken by who is about to move: then it is tried again every 100 ms, which is said once.
class ListenerFollower {
 public:
  /// Listens at the address in addition to those before: connections there may go on. Called by the
  /// follower's thread.
  using Listen = std::function<absl::Status(const std::string& address)>;

  /// `view` must live longer. It listens at `address` already.
  ListenerFollower(const ClusterView* view, std::string bind_host, const std::string& address, Listen listen);

 private:
  void Run(const std::stop_token& stop);

  const ClusterView* const view_;
  const std::string bind_host_;
  const Listen listen_;
  std::set<std::string> addresses_;  // where it listens; the thread's
  std::jthread thread_;              // the last member: it uses the others
};

}  // namespace muster
