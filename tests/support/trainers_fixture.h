// muster-trainer as people start it by hand: real processes, alone or as a cluster on loopback.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "cluster/cluster_spec.h"
#include "tests/support/checkout.h"
#include "tests/support/free_port.h"

namespace muster {

using Json = nlohmann::json;

class Trainers : public testing::Test {
 protected:
  struct Started {
    std::string name;
    Process process;
    std::filesystem::path log;
  };

  static ClusterSpec MakeCluster(int ps, int workers) {
    ClusterSpec cluster;
    for (int i = 0; i < ps; ++i) cluster.ps.push_back(FreeAddress());
    for (int i = 0; i < workers; ++i) cluster.workers.push_back(FreeAddress());
    return cluster;
  }

  virtual std::string trainer() const { return BuildPath("bin/muster-trainer"); }

  Started Start(const std::string& name, std::vector<std::string> arguments,
                const std::vector<std::string>& environment = {},
                const std::vector<std::string>& runs_it = {}) {
    const std::filesystem::path log = folder.path() / (name + ".log");
    const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    arguments.insert(arguments.begin(), trainer());
    arguments.insert(arguments.begin(), runs_it.begin(), runs_it.end());
    std::vector<std::string> all = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
    auto process = Process::Spawn(
        {.argv = arguments, .environment = all, .stdout_fd = output.get(), .stderr_fd = output.get()});
    EXPECT_TRUE(process.ok()) << process.status();
    return {name, *std::move(process), log};
  }

  std::vector<Started> StartCluster(const ClusterSpec& cluster, const std::vector<std::string>& flags,
                                    const std::string& run) {
    std::vector<Started> started;
    for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
      for (int i = 0; i < static_cast<int>(cluster.addresses(role).size()); ++i) {
        started.push_back(StartTask(cluster, {role, i}, flags, run));
      }
    }
    return started;
  }

  /// `runs_it`: a command that the trainer's command line is given to.
  Started StartTask(const ClusterSpec& cluster, TaskId task, const std::vector<std::string>& flags,
                    const std::string& run, const std::vector<std::string>& runs_it = {}) {
    std::vector<std::string> arguments = ToFlags(cluster, task);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    if (IsChief(cluster, task)) {
      arguments.push_back("--result_json=" + Path(run + ".json"));
      arguments.push_back("--metrics_jsonl=" + Path(run + ".jsonl"));
      arguments.push_back("--save_model=" + Path(run + ".safetensors"));
    }
    return Start(run + "-" + TaskName(task), arguments, {}, runs_it);
  }

  void WaitForSuccess(std::vector<Started>& tasks, Duration timeout = std::chrono::minutes(3)) {
    const TimePoint deadline = Now() + timeout;
    for (Started& task : tasks) {
      const auto code = task.process.Wait(deadline);
      EXPECT_TRUE(code.ok() && *code == 0)
          << task.name << ": " << (code.ok() ? std::to_string(*code) : "no end") << "\n"
          << ReadFile(task.log).value_or("");
    }
  }

  Json Run(const ClusterSpec& cluster, const std::vector<std::string>& flags, const std::string& run) {
    auto tasks = StartCluster(cluster, flags, run);
    WaitForSuccess(tasks);
    return Result(run);
  }

  /// The result of a cluster of 2 ps and 2 workers of which worker:1 is killed in training and started again.
  Json RunWithAKilledWorker(const std::vector<std::string>& flags, const std::string& run) {
    const ClusterSpec cluster = MakeCluster(2, 2);
    auto tasks = StartCluster(cluster, flags, run);
    // Training is under way when the chief's metrics show it.
    const TimePoint deadline = Now() + std::chrono::minutes(2);
    while (Losses(run).empty() && Now() < deadline) {
      (void)tasks[2].process.Wait(Now() + std::chrono::milliseconds(5));
    }
    EXPECT_FALSE(Losses(run).empty());
    tasks[3].process.Signal(SIGKILL);
    EXPECT_EQ(tasks[3].process.Wait(deadline).value_or(-1), 128 + SIGKILL);
    tasks[3] = StartTask(cluster, {Role::kWorker, 1}, flags, run);
    WaitForSuccess(tasks);
    return Result(run);
  }

  /// The chief's metrics have so many lines.
  void AwaitLosses(const std::string& run, size_t count, Process& chief) {
    const TimePoint deadline = Now() + std::chrono::minutes(2);
    while (Losses(run).size() < count && Now() < deadline) {
      (void)chief.Wait(Now() + std::chrono::milliseconds(5));
    }
    ASSERT_GE(Losses(run).size(), count);
  }

  void Kill(Started& task) {
    task.process.Signal(SIGKILL);
    EXPECT_EQ(task.process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 128 + SIGKILL);
  }

  /// A line of /proc/PID/status, in bytes: "VmHWM:", the most that a process has had in memory, "VmRSS:",
  /// what it has. 0: it has ended.
  static int64_t MemoryOf(pid_t pid, const std::string& line_name) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(line_name)) return std::stoll(line.substr(line_name.size())) * 1024;
    }
    return 0;
  }

  /// In all of their logs together.
  static int TimesLogged(const std::vector<Started>& tasks, const std::string& text) {
    int count = 0;
    for (const Started& task : tasks) {
      const std::string log = *ReadFile(task.log);
      for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    }
    return count;
  }

  struct ShardView {
    int number = 0;
    bool has_backup = false;
  };

  /// By shard, "ps:0": the latest of the views that the servers of a replicated job have logged.
  static std::map<std::string, ShardView> ViewsOf(const std::vector<Started>& tasks) {
    static const std::regex view_line(R"((ps:\d+)( \(at ps:\d+\))?: .* in view (\d+).*)");
    std::map<std::string, ShardView> views;
    for (const Started& task : tasks) {
      std::istringstream lines(*ReadFile(task.log));
      for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (!std::regex_search(line, match, view_line)) continue;
        ShardView& view = views[match[1]];
        if (const int number = std::stoi(match[3]); number > view.number) {
          view = {number, line.find("is its backup") != std::string::npos};
        }
      }
    }
    return views;
  }

  /// Each of the shards has a backup, in a later view than `before`. False: not by the deadline.
  [[nodiscard]] static bool AwaitBackups(const std::vector<Started>& tasks, int shards,
                                         const std::map<std::string, ShardView>& before = {},
                                         TimePoint deadline = Now() + std::chrono::minutes(1)) {
    const auto are_there = [&] {
      auto views = ViewsOf(tasks);
      for (int shard = 0; shard < shards; ++shard) {
        const std::string name = TaskName({Role::kPs, shard});
        const auto earlier = before.find(name);
        if (!views[name].has_backup) return false;
        if (earlier != before.end() && views[name].number <= earlier->second.number) return false;
      }
      return true;
    };
    while (!are_there()) {
      if (Now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  Json Result(const std::string& run) { return Json::parse(ReadFile(Path(run + ".json")).value_or("{}")); }

  std::vector<double> Losses(const std::string& run) {
    std::vector<double> losses;
    std::istringstream lines(ReadFile(Path(run + ".jsonl")).value_or(""));
    // The last line may be half written.
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      const Json json = Json::parse(line);
      if (!json["loss"].is_null()) losses.push_back(json["loss"]);
    }
    return losses;
  }

  int ExitCode(Started started) {
    const auto code = started.process.Wait(Now() + std::chrono::minutes(2));
    EXPECT_TRUE(code.ok()) << code.status();
    return code.value_or(-1);
  }

  std::string Path(const std::string& name) const { return (folder.path() / name).string(); }

  TemporaryDirectory folder;
};

}  // namespace muster
