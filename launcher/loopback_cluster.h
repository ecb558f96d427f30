// For tests: a cluster of private sshd's from tests/cluster/loopback, down again with the object.
#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "launcher/ssh_transport.h"

namespace muster {

class LoopbackCluster {
 public:
  /// `sshd_options`: lines for all sshd_configs.
  explicit LoopbackCluster(int hosts, const std::vector<std::string>& sshd_options = {}) {
    std::vector<std::string> arguments = {"up", folder(), std::to_string(hosts)};
    for (const std::string& line : sshd_options) arguments.insert(arguments.end(), {"--option", line});
    Run(arguments);
    const std::string inventory = Text("inventory.yaml");
    const std::regex pattern("(host-[0-9]+): \\{ssh: \"([0-9.]+):([0-9]+)\"");
    for (std::sregex_iterator match(inventory.begin(), inventory.end(), pattern), end; match != end; ++match) {
      targets_.push_back({.name = (*match)[1],
                          .address = (*match)[2],
                          .port = static_cast<uint16_t>(std::stoi((*match)[3])),
                          .identities = {folder() + "/id_ed25519"}});
    }
  }
  ~LoopbackCluster() { Run({"down", folder()}); }

  void Kill(const std::string& host) { Run({"kill", folder(), host}); }
  void Start(const std::string& host) { Run({"start", folder(), host}); }

  std::string folder() const { return folder_.path().string() + "/cluster"; }
  std::string HomeOf(const std::string& host) const { return folder() + "/" + host + "/home"; }
  const std::vector<SshTarget>& targets() const { return targets_; }

  /// Nothing from the environment: the tests must not depend on the keys of who runs them.
  SshOptions options() const { return {.known_hosts = folder() + "/known_hosts", .home = folder()}; }

  std::string Text(const std::string& file) const {
    auto text = ReadFile(folder() + "/" + file);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }

 private:
  static void Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MUSTER_LOOPBACK);
    const auto result = RunCommand({.argv = arguments}, Now() + std::chrono::seconds(60));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->exit_code, 0) << result->stderr_text;
  }

  TemporaryDirectory folder_;
  std::vector<SshTarget> targets_;
};

}  // namespace muster
