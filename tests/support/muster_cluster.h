// For end-to-end tests: a loopback cluster, a muster home of its own, and the real muster command.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/checkout.h"
#include "tests/support/loopback_cluster.h"

namespace muster {

class MusterCluster {
 public:
  explicit MusterCluster(int hosts, const std::vector<std::string>& sshd_options = {},
                         LoopbackCluster::Network network = LoopbackCluster::Network::kLoopback)
      : cluster_(hosts, sshd_options, network) {}

  /// Runs muster to its end with the cluster's keys and this object's home; `arguments` as typed after
  /// `muster`.
  CommandResult Muster(const std::vector<std::string>& arguments,
                       Duration timeout = std::chrono::seconds(90)) {
    const auto result = RunCommand({.argv = Argv(arguments), .environment = Environment()}, Now() + timeout);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }

  /// Runs a line of sh in which `muster` is the command under test, with the same surroundings.
  CommandResult Shell(const std::string& line, Duration timeout = std::chrono::seconds(90)) {
    const std::string script = "muster() { \"$MUSTER\" \"$@\"; }\n" + line;
    std::vector<std::string> environment = Environment();
    environment.push_back("MUSTER=" + binary_);
    const auto result =
        RunCommand({.argv = {"sh", "-c", script}, .environment = environment}, Now() + timeout);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }

  /// The muster to run from now on, of another installation.
  void set_binary(const std::string& path) { binary_ = path; }

  /// Starts muster with both outputs in the file `name` of folder().
  Process Start(const std::vector<std::string>& arguments, const std::string& name) {
    const UniqueFd output(::open(Path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    auto process = Process::Spawn({.argv = Argv(arguments),
                                   .environment = Environment(),
                                   .stdout_fd = output.get(),
                                   .stderr_fd = output.get()});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }

  /// Waits until `text` stands in a file of folder(); false at the deadline.
  bool WaitForText(const std::string& name, const std::string& text,
                   Duration timeout = std::chrono::seconds(60)) {
    const TimePoint deadline = Now() + timeout;
    while (Now() < deadline) {
      if (ReadFile(Path(name)).value_or("").find(text) != std::string::npos) return true;
      ::usleep(10'000);
    }
    return false;
  }

  /// Writes a file into folder() and returns its path.
  std::string Write(const std::string& name, const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(Path(name), text).ok());
    return Path(name);
  }

  std::string Text(const std::string& name) const { return ReadFile(Path(name)).value_or(""); }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string inventory() const { return cluster_.folder() + "/inventory.yaml"; }
  LoopbackCluster& hosts() { return cluster_; }
  std::filesystem::path home() const { return folder_.path() / "home"; }

 private:
  std::vector<std::string> Argv(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), binary_);
    return arguments;
  }

  std::vector<std::string> Environment() const {
    std::vector<std::string> environment = {"HOME=" + cluster_.folder(), "MUSTER_HOME=" + home().string(),
                                            "MUSTER_KNOWN_HOSTS=" + cluster_.folder() + "/known_hosts"};
    for (const char* name : {"PATH", "MUSTER_DATA", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
    }
    return environment;
  }

  TemporaryDirectory folder_;
  LoopbackCluster cluster_;
  std::string binary_ = BuildPath("bin/muster");
};

}  // namespace muster
