// muster-trainer as people start it by hand: real processes, alone or as a cluster on loopback.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "cluster/cluster_spec.h"
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

  Started Start(const std::string& name, std::vector<std::string> arguments,
                const std::vector<std::string>& environment = {}) {
    const std::filesystem::path log = folder.path() / (name + ".log");
    const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    arguments.insert(arguments.begin(), MUSTER_TRAINER);
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

  Started StartTask(const ClusterSpec& cluster, TaskId task, const std::vector<std::string>& flags,
                    const std::string& run) {
    std::vector<std::string> arguments = ToFlags(cluster, task);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    if (IsChief(cluster, task)) {
      arguments.push_back("--result_json=" + Path(run + ".json"));
      arguments.push_back("--metrics_jsonl=" + Path(run + ".jsonl"));
      arguments.push_back("--save_model=" + Path(run + ".safetensors"));
    }
    return Start(run + "-" + TaskName(task), arguments);
  }

  void WaitForSuccess(std::vector<Started>& tasks) {
    const TimePoint deadline = Now() + std::chrono::minutes(3);
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

  /// How often a server has found a backup for a part of the parameters.
  static int BackupsFound(const std::vector<Started>& tasks) {
    return TimesLogged(tasks, "is its backup in view");
  }

  static void AwaitBackups(const std::vector<Started>& tasks, int count) {
    const TimePoint deadline = Now() + std::chrono::minutes(1);
    while (BackupsFound(tasks) < count && Now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_GE(BackupsFound(tasks), count);
  }

  Json Result(const std::string& run) { return Json::parse(ReadFile(Path(run + ".json")).value_or("{}")); }

  std::vector<double> Losses(const std::string& run) {
    std::vector<double> losses;
    std::istringstream lines(ReadFile(Path(run + ".jsonl")).value_or(""));
    for (std::string line; std::getline(lines, line);) {
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

  std::string Path(const std::string& name) { return (folder.path() / name).string(); }

  TemporaryDirectory folder;
};

}  // namespace muster
