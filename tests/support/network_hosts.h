// For tests: virtual hosts whose links can be cut. Needs root.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "launcher/virtual_hosts.h"

namespace muster {

class NetworkHosts {
 public:
  explicit NetworkHosts(int count) {
    auto hosts = VirtualHosts::Create({.count = count, .folder = folder_.path()});
    status_ = hosts.status();
    if (hosts.ok()) hosts_ = *std::move(hosts);
  }

  /// Not OK: why this machine or user cannot have them.
  const absl::Status& status() const { return status_; }

  std::string Address(int host) const { return VirtualHosts::Address(host); }
  /// What a command line begins with to run there.
  std::vector<std::string> On(int host) const { return hosts_->network(host).command_prefix(); }

  /// Nothing arrives from it or at it any more, without a word to anybody.
  void Cut(int host) { EXPECT_TRUE(hosts_->SetLink(host, false).ok()); }
  void Mend(int host) { EXPECT_TRUE(hosts_->SetLink(host, true).ok()); }
  /// Another address, free now, instead of the one it had: both in the hosts' network. Nobody is told, but
  /// that neighbours forget whose addresses were whose, as a switch and DHCP clients take care of.
  void Readdress(int host, const std::string& before, const std::string& after) {
    const NetworkNamespace& network = hosts_->network(host);
    EXPECT_TRUE(network.Ip({"address", "del", before + "/24", "dev", "eth0"}).ok());
    EXPECT_TRUE(network.Ip({"address", "add", after + "/24", "dev", "eth0"}).ok());
    for (int i = 0; i < hosts_->count(); ++i)
      EXPECT_TRUE(hosts_->network(i).Ip({"neighbour", "flush", "dev", "eth0"}).ok());
  }
  /// An address of no host.
  std::string FreeAddress() { return "10.99.0." + std::to_string(next_free_++); }

  /// The same between two of them alone.
  void Part(int host, int other) { Route("add", host, other); }
  void Join(int host, int other) { Route("del", host, other); }

 private:
  void Route(const std::string& verb, int host, int other) {
    for (const auto& [from, to] : {std::pair(host, other), std::pair(other, host)})
      EXPECT_TRUE(hosts_->network(from).Ip({"route", verb, "blackhole", Address(to) + "/32"}).ok());
  }

  TemporaryDirectory folder_;
  int next_free_ = 150;
  absl::Status status_;
  std::unique_ptr<VirtualHosts> hosts_;
};

}  // namespace muster
