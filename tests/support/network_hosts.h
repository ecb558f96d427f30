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
  /// The same between two of them alone.
  void Part(int host, int other) { Route("add", host, other); }
  void Join(int host, int other) { Route("del", host, other); }

 private:
  void Route(const std::string& verb, int host, int other) {
    for (const auto& [from, to] : {std::pair(host, other), std::pair(other, host)})
      EXPECT_TRUE(hosts_->network(from).Ip({"route", verb, "blackhole", Address(to) + "/32"}).ok());
  }

  TemporaryDirectory folder_;
  absl::Status status_;
  std::unique_ptr<VirtualHosts> hosts_;
};

}  // namespace muster
