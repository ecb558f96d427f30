// Virtual hosts: hosts for muster that are network namespaces of this machine, on one switch, each behind a
// link of its own with a rate. Commands run there through a local transport, without sshd:
//
//     host-1 [eth0 10.99.0.1] ===== [port-1]                    rate, both ways at once
//     host-2 [eth0 10.99.0.2] ===== [port-2] switch (a bridge)
//
//     MUSTER_ASSIGN_OR_RETURN(const auto hosts, VirtualHosts::Create({.count = 4, .rate = rate}));
//     MakePlan(job, hosts->inventory(), ...)
//     RunJob(..., {.connect = {..., .local_hosts = hosts->local_hosts()}}, ...)
//
// What a host sends is held back at its end of the link, what it receives at the other end, in the switch, so
// that several senders share the receiver's link. They have nothing else of their own: processors, memory,
// GPUs and disks are this machine's.
//
// Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN), iproute2, and of the kernel veth, bridge and, for rates, tbf.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "launcher/link_rate.h"
#include "launcher/network_namespaces.h"
#include "launcher/transport/local_transport.h"

namespace muster {

/// A kernel keeps 1024 neighbours over all namespaces (net.ipv4.neigh.default.gc_thresh3), and each host has
/// those that it talks to.
inline constexpr int kMaxVirtualHosts = 100;

struct VirtualHostsOptions {
  int count = 1;                    // 1 to kMaxVirtualHosts
  LinkRate rate = {};               // of each link, in each direction
  Duration latency{0};              // from one host to another, each way, on top; needs netem in the kernel
  std::vector<std::string> labels;  // of each host in the inventory
  std::filesystem::path folder = "/var/tmp";  // on this disk the hosts have their homes
};

/// Removed with the object: processes, namespaces, homes. If its process is killed, the next Create of any
/// process removes them. Hosts count from 0 here and are named from host-1. One thread at a time.
class VirtualHosts {
 public:
  /// InvalidArgument: the options. PermissionDenied: not root. FailedPrecondition: what failed, with what it
  /// needs; nothing is left then. Takes some 30 ms for a host.
  static absl::StatusOr<std::unique_ptr<VirtualHosts>> Create(const VirtualHostsOptions& options);
  VirtualHosts(const VirtualHosts&) = delete;
  VirtualHosts& operator=(const VirtualHosts&) = delete;
  ~VirtualHosts();

  int count() const { return static_cast<int>(hosts_.size()); }
  static std::string Name(int host);
  static std::string Address(int host);
  const NetworkNamespace& network(int host) const { return hosts_[host]; }
  std::filesystem::path home(int host) const;

  /// All of them, as hosts that are `local`. They have no GPUs, since those would be all hosts' at once.
  Inventory inventory() const { return InventoryOf(options_); }
  /// The same of hosts that nobody has made yet.
  static Inventory InventoryOf(const VirtualHostsOptions& options);

  /// How to reach what is in inventory(): for ConnectOptions.
  std::map<std::string, LocalOptions> local_hosts() const;

  /// Down: nothing arrives from the host or at it any more, without a word to anybody.
  absl::Status SetLink(int host, bool up) const;

  /// What the destructor does, which says nothing. What could be removed is removed; the first failure is
  /// returned.
  absl::Status Remove();

 private:
  VirtualHosts(const VirtualHostsOptions& options, const std::string& name_prefix, NetworkNamespace network);
  absl::Status AddSwitch();
  absl::Status AddHost();

  const VirtualHostsOptions options_;
  const std::string name_prefix_;      // of the namespaces
  const std::filesystem::path homes_;  // a folder with a home for each host
  NetworkNamespace switch_;
  std::vector<NetworkNamespace> hosts_;
};

/// Removes what processes that have ended left of their virtual hosts, homes in `folder` included, and
/// nothing of one that lives. The first failure is returned, and what could not be removed is left for the
/// next time.
absl::Status RemoveAbandonedHosts(const std::filesystem::path& folder);

}  // namespace muster
