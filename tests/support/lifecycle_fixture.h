// What tests of a job's life share: a cluster of hosts, three if not said otherwise, jobs of shell scripts,
// and the check that nothing of any job is left when a test ends.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/job_processes.h"
#include "tests/support/muster_cluster.h"

namespace muster {

class LifecycleTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  /// A script, until a test creates the file `go`.
  static constexpr char kWaitForGo[] = "while [ ! -e \"$DIR/go\" ]; do sleep 0.02; done\n";

  explicit LifecycleTest(LoopbackCluster::Network network = LoopbackCluster::Network::kLoopback,
                         int hosts = 3)
      : cluster_(hosts, {}, network) {}

  void SetUp() override {
    if (cluster_.hosts().targets().empty()) GTEST_SKIP() << "no network namespaces can be made here";
  }
  void TearDown() override {
    if (cluster_.hosts().targets().empty()) return;
    // No time is given: what a command has said is stopped is stopped.
    EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), testing::IsEmpty());
    EXPECT_EQ(LeasedPorts(), ports_left_);
  }

  /// Writes a job that runs a shell script as each of its workers. `replicas`: what stands in braces behind
  /// `worker:`. The scripts find the folder of Path() in $DIR.
  std::string ScriptJob(const std::string& name, const std::string& script,
                        const std::string& replicas = "count: 3", const std::string& env = "") {
    std::string text = "name: " + name + "\nprogram:\n  - sh\n  - -c\n  - |\n";
    std::istringstream lines(script);
    for (std::string line; std::getline(lines, line);) text += "    " + line + "\n";
    text += "env: {DIR: \"" + Path("") + "\"" + (env.empty() ? "" : ", " + env) + "}\n";
    return cluster_.Write(name + ".yaml", text + "replicas: {worker: {" + replicas + "}}\n");
  }

  std::string InventoryText() { return cluster_.hosts().Text("inventory.yaml"); }
  /// In which host-3 is no place for tasks.
  std::string InventoryWithHead() {
    std::string inventory = InventoryText();
    inventory.replace(inventory.find("cpu", inventory.find("host-3")), 3, "head");
    return cluster_.Write("labels.yaml", inventory);
  }

  CommandResult Muster(const std::vector<std::string>& arguments) { return cluster_.Muster(arguments); }
  CommandResult RunJob(const std::string& file, const std::vector<std::string>& more = {}) {
    return cluster_.Muster(RunArguments(file, more));
  }
  /// In the background, with both outputs in the file `output`.
  Process StartJob(const std::string& file, const std::string& output,
                   const std::vector<std::string>& more = {}) {
    return cluster_.Start(RunArguments(file, more), output);
  }

  /// The exit code of a muster in the background; -1 if it does not end.
  static int ExitCodeOf(Process& process, Duration timeout = std::chrono::seconds(180)) {
    return process.Wait(Now() + timeout).value_or(-1);
  }

  /// Of the newest job, with what came back.
  std::filesystem::path JobFolder() {
    const Json jobs = Json::parse(Muster({"list", "-o", "json"}).stdout_text);
    return cluster_.home() / "jobs" / std::string(jobs[0]["job"]);
  }

  std::string Path(const std::string& name) const { return cluster_.Path(name); }
  bool WaitForFile(const std::string& name) {
    return Eventually([&] { return std::filesystem::exists(Path(name)); });
  }
  void Touch(const std::string& name) { cluster_.Write(name, ""); }

  /// What runs of the newest job of this name, by task: its first process.
  std::map<std::string, JobProcess> FirstProcesses(const std::string& name) {
    std::map<std::string, JobProcess> first;
    for (const JobProcess& process : JobProcesses(cluster_.hosts().folder())) {
      if (process.job.starts_with(name + "-")) first.emplace(process.task, process);
    }
    return first;
  }
  /// Waits until this many tasks of the job run.
  std::map<std::string, JobProcess> WaitForTasks(const std::string& name, size_t count) {
    std::map<std::string, JobProcess> first;
    EXPECT_TRUE(Eventually([&] { return (first = FirstProcesses(name)).size() == count; })) << first.size();
    return first;
  }
  size_t ProcessCount(const std::string& name) {
    size_t count = 0;
    for (const JobProcess& process : JobProcesses(cluster_.hosts().folder()))
      count += process.job.starts_with(name + "-");
    return count;
  }
  /// Kills a task's first process in the given incarnation, as soon as it runs.
  void KillTask(const std::string& name, const std::string& task, int incarnation) {
    JobProcess victim;
    ASSERT_TRUE(Eventually([&] {
      const auto first = FirstProcesses(name);
      const auto found = first.find(task);
      if (found != first.end()) victim = found->second;
      return victim.incarnation == incarnation;
    })) << "incarnation "
        << incarnation;
    ASSERT_EQ(::kill(victim.pid, SIGKILL), 0);
  }

  Json Show(const std::string& job) {
    const CommandResult result = Muster({"show", job, "-o", "json"});
    const Json json = Json::parse(result.stdout_text, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << result.stdout_text << result.stderr_text;
    return json;
  }
  /// The row of a task in what `muster show` says.
  Json ShowTask(const std::string& job, const std::string& task) {
    const Json shown = Show(job);
    for (const Json& row : shown["tasks"]) {
      if (row["task"] == task) return row;
    }
    ADD_FAILURE() << "no task " << task;
    return Json::object();
  }

  /// Files that say which ports are leased, on all hosts.
  size_t LeasedPorts() {
    size_t count = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().folder(), error))
      count += entry.path().parent_path().filename() == "ports";
    return count;
  }

  static std::string Lines(int first, int last, const std::string& prefix = "") {
    std::string text;
    for (int i = first; i <= last; ++i) text += prefix + "line " + std::to_string(i) + "\n";
    return text;
  }

  MusterCluster cluster_;
  size_t ports_left_ = 0;  // by hosts that are down when the test ends

 private:
  std::vector<std::string> RunArguments(const std::string& file, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", file, "-i", cluster_.inventory()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

}  // namespace muster
