// For tests: a cluster of private sshd's from tests/cluster/loopback, down again with the object, or with the
// test's process: what runs on a host has left that process's tree, and would go on when ctest kills a test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "launcher/transport/ssh_transport.h"
#include "tests/support/checkout.h"

namespace muster {

class LoopbackCluster {
 public:
  enum class Network { kLoopback, kNamespaces };

  /// `sshd_options`: lines for all sshd_configs. Namespaces where they cannot be made: a cluster without
  /// hosts.
  explicit LoopbackCluster(int hosts, const std::vector<std::string>& sshd_options = {},
                           Network network = Network::kLoopback) {
    if (network == Network::kNamespaces && !CanMakeNamespaces()) return;
    StartGuard();
    std::vector<std::string> arguments = {"up", folder(), std::to_string(hosts)};
    if (network == Network::kNamespaces) arguments.push_back("--namespaces");
    for (const std::string& line : sshd_options) arguments.insert(arguments.end(), {"--option", line});
    Run(arguments);
    std::istringstream lines(Text("inventory.yaml"));
    std::string line;
    while (std::getline(lines, line)) {
      // As the script writes it:   host-1: {ssh: "127.1.2.1:10022", data: 127.1.2.1, labels: [cpu]}
      char name[64], address[64];
      unsigned port = 0;
      if (std::sscanf(line.c_str(), " %63[^:]: {ssh: \"%63[^:]:%u\"", name, address, &port) != 3) continue;
      targets_.push_back({.name = name,
                          .address = address,
                          .port = static_cast<uint16_t>(port),
                          .identities = {folder() + "/id_ed25519"}});
    }
    EXPECT_EQ(targets_.size(), static_cast<size_t>(hosts));
  }
  ~LoopbackCluster() {
    Run({"down", folder()});
    if (guard_.valid()) (void)WriteAll(guard_.get(), "down\n");
  }

  static bool CanMakeNamespaces() {
    const auto result =
        RunCommand({.argv = {"unshare", "--net", "--mount", "ip", "link"}}, Now() + std::chrono::seconds(10));
    return result.ok() && result->exit_code == 0;
  }

  void Kill(const std::string& host) { Run({"kill", folder(), host}); }
  void Start(const std::string& host) { Run({"start", folder(), host}); }
  void Move(const std::string& host, const std::string& address) { Run({"move", folder(), host, address}); }

  std::string folder() const { return folder_.path().string() + "/cluster"; }
  /// Of namespaces: nothing arrives from the host or at it any more, without a word to anybody.
  void Cut(const std::string& host) { Run({"cut", folder(), host}); }
  /// "cut"; or in one direction only, "mute": nothing arrives of what the host sends, "deafen": nothing
  /// arrives at it.
  void Disturb(const std::string& host, const std::string& how) { Run({how, folder(), host}); }
  /// Likewise: what is sent to it comes at so many bits a second.
  void Slow(const std::string& host, uint64_t rate) {
    Run({"slow", folder(), host, std::to_string(rate) + "bit"});
  }
  void Join(const std::string& host) { Run({"join", folder(), host}); }

  /// From now on this is the PATH of what SSH starts there. What runs there ends.
  void SetPath(const std::string& host, const std::string& path) {
    const std::string config = folder() + "/" + host + "/sshd_config", from = "SetEnv HOME=" + HomeOf(host);
    Kill(host);
    std::string text = ReadFile(config).value_or("");
    ASSERT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), from + " PATH=" + path);
    ASSERT_TRUE(WriteFileAtomically(config, text).ok());
    Start(host);
  }

  /// How a host asks for a password: in one message, or through PAM with whatever that wants to know.
  enum class Asks { kPassword, kPrompts };

  /// From now on the host takes kPassword for this user, whom it has in a list of its own: where
  /// CanMakeNamespaces(). What runs there ends.
  void TakePassword(const std::string& host, Asks asks) {
    const std::string at = folder() + "/" + host;
    const auto write = [&](const std::string& name, const std::string& text, mode_t mode) {
      ASSERT_TRUE(WriteFileAtomically(at + "/" + name, text, mode).ok());
    };
    const passwd* user = ::getpwuid(::getuid());
    ASSERT_NE(user, nullptr);
    write("shadow", user->pw_name + (":" + std::string(kPasswordHash)) + ":19000:0:99999:7:::\n", 0600);
    write("pam",
          "auth required pam_unix.so\naccount required pam_permit.so\nsession required pam_permit.so\n",
          0644);
    write("enter",
          "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind " + at +
              "/shadow /etc/shadow && mount --bind " + at +
              "/pam /etc/pam.d/sshd && exec \"$@\"' enter \"$@\"\n",
          0755);
    // The first value of a keyword holds.
    const std::string config = Text(host + "/sshd_config");
    write("sshd_config",
          std::string("PermitRootLogin yes\n") +
              (asks == Asks::kPassword ? "PasswordAuthentication yes\n"
                                       : "KbdInteractiveAuthentication yes\nUsePAM yes\n") +
              config,
          0600);
    Kill(host);
    Start(host);
  }
  static constexpr char kPassword[] = "open sesame";

  /// An address of the hosts' network that no host has at first.
  std::string FreeAddress(int number) const {
    const std::string& first = targets_.front().address;
    return first.substr(0, first.rfind('.') + 1) + std::to_string(253 - number);
  }
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
  // What `openssl passwd -6 -salt muster` makes of kPassword.
  static constexpr char kPasswordHash[] =
      "$6$muster$kOmjHed6CLnNRtKsHAR5ujM.ZcmdXDYXKx/Q1/T.xYx6nyNGTSfuncXiYKNBGUMkL2GMczLcUCX2Uj31tptlQ/";

  // Outlives this process, and then does what the destructor has not.
  void StartGuard() {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    guard_ = UniqueFd(ends[1]);
    auto process = Process::Spawn({.argv = {"setsid", "--fork", "sh", "-c",
                                            "exec >/dev/null 2>&1; read -r said || exec \"$0\" down \"$1\"",
                                            SourcePath("tests/cluster/loopback"), folder()},
                                   .stdin_fd = read_end.get()});
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_EQ(process->Wait(Now() + std::chrono::seconds(10)).value_or(-1), 0);
  }

  static void Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SourcePath("tests/cluster/loopback"));
    const auto result = RunCommand({.argv = arguments}, Now() + std::chrono::seconds(60));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->exit_code, 0) << result->stderr_text;
  }

  TemporaryDirectory folder_;
  std::vector<SshTarget> targets_;
  UniqueFd guard_;
};

}  // namespace muster
