// For tests: hosts as network namespaces on one switch, whose links can be cut. Needs root.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/process.h"

namespace muster {

class NetworkHosts {
 public:
  explicit NetworkHosts(int count) : prefix_("muster-" + std::to_string(::getpid()) + "-") {
    is_up_ = Ip({"netns", "add", Switch()}) &&
             Ip({"-n", Switch(), "link", "add", "bridge", "type", "bridge", "forward_delay", "0"}) &&
             Ip({"-n", Switch(), "link", "set", "bridge", "up"});
    for (int host = 0; host < count && is_up_; ++host) Add(host);
  }
  ~NetworkHosts() {
    for (const std::string& name : names_) Ip({"netns", "del", name});
    Ip({"netns", "del", Switch()});
  }
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  /// False: this machine or user cannot have them.
  bool is_up() const { return is_up_; }

  std::string Address(int host) const { return "10.99.0." + std::to_string(host + 1); }
  /// What a command line begins with to run there.
  std::vector<std::string> On(int host) const { return {"ip", "netns", "exec", names_[host]}; }

  /// Nothing arrives from it or at it any more, without a word to anybody.
  void Cut(int host) { EXPECT_TRUE(Ip({"-n", Switch(), "link", "set", Port(host), "down"})); }
  void Mend(int host) { EXPECT_TRUE(Ip({"-n", Switch(), "link", "set", Port(host), "up"})); }
  /// The same between two of them alone.
  void Part(int host, int other) { Route("add", host, other); }
  void Join(int host, int other) { Route("del", host, other); }

 private:
  void Route(const std::string& verb, int host, int other) {
    EXPECT_TRUE(Ip({"-n", names_[host], "route", verb, "blackhole", Address(other) + "/32"}));
    EXPECT_TRUE(Ip({"-n", names_[other], "route", verb, "blackhole", Address(host) + "/32"}));
  }
  std::string Switch() const { return prefix_ + "switch"; }
  static std::string Port(int host) { return "port" + std::to_string(host); }

  void Add(int host) {
    const std::string name = prefix_ + std::to_string(host);
    is_up_ = Ip({"netns", "add", name});
    if (!is_up_) return;
    names_.push_back(name);
    is_up_ = Ip({"-n", Switch(), "link", "add", Port(host), "type", "veth", "peer", "name", "eth0", "netns",
                 name}) &&
             Ip({"-n", Switch(), "link", "set", Port(host), "master", "bridge", "up"}) &&
             Ip({"-n", name, "address", "add", Address(host) + "/24", "dev", "eth0"}) &&
             Ip({"-n", name, "link", "set", "eth0", "up"}) && Ip({"-n", name, "link", "set", "lo", "up"});
  }

  static bool Ip(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ip");
    const auto result = RunCommand({.argv = std::move(arguments)}, Now() + std::chrono::seconds(20));
    return result.ok() && result->exit_code == 0;
  }

  const std::string prefix_;
  std::vector<std::string> names_;
  bool is_up_ = false;
};

}  // namespace muster
