// What tasks tell Prometheus, with real processes and over HTTP.
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/eventually.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;

class TrainerMetrics : public Trainers {
 protected:
  using Samples = std::map<std::string, double>;  // by name and labels

  static std::string Read(const std::string& address) {
    const auto result =
        RunCommand({.argv = {"python3", "-c",
                             "import sys, urllib.request as u; "
                             "print(u.urlopen(sys.argv[1], timeout=10).read().decode(), end='')",
                             "http://" + address + "/metrics"}},
                   Now() + std::chrono::minutes(1));
    return result.ok() && result->exit_code == 0 ? result->stdout_text : "";
  }

  static Samples Parse(const std::string& text) {
    Samples samples;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('#')) continue;
      const size_t space = line.rfind(' ');
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
      EXPECT_TRUE(samples.emplace(line.substr(0, space), value).second) << "twice: " << line;
    }
    return samples;
  }

  // The first page of which it holds.
  static Samples Await(const std::string& address, const std::function<bool(const Samples&)>& condition) {
    const TimePoint deadline = Now() + std::chrono::minutes(2);
    Samples samples;
    while (!condition(samples = Parse(Read(address)))) {
      if (Now() >= deadline) {
        ADD_FAILURE() << address << " does not get there";
        break;
      }
    }
    return samples;
  }
};

TEST_F(TrainerMetrics, AreThereWhileTasksTrain) {
  const ClusterSpec cluster = MakeCluster(2, 2);
  std::vector<std::string> addresses;
  std::vector<Started> tasks;
  for (const Role role : {Role::kPs, Role::kWorker}) {
    for (const int index : {0, 1}) {
      addresses.push_back(FreeAddress());
      tasks.push_back(
          StartTask(cluster, {role, index},
                    {"--metrics_address=" + addresses.back(), "--model=mnist_mlp", "--batch_size=10",
                     "--train_steps=100000", "--sync_replicas", "--checkpoint_dir=" + Path("checkpoints"),
                     "--checkpoint_every=10", "--metrics_file=" + Path(TaskName({role, index}) + ".prom")},
                    "run"));
    }
  }
  const Samples worker = Await(addresses[3], [](const Samples& samples) {
    const auto steps = samples.find("muster_worker_steps_total{task=\"worker:1\"}");
    return steps != samples.end() && steps->second >= 20;
  });
  const double steps = worker.at("muster_worker_steps_total{task=\"worker:1\"}");
  EXPECT_EQ(worker.at("muster_worker_samples_total{task=\"worker:1\"}"), 10 * steps);
  EXPECT_EQ(worker.at("muster_worker_step{task=\"worker:1\"}"), steps);
  EXPECT_THAT(worker.at("muster_worker_loss{task=\"worker:1\"}"), Gt(0));
  const double bytes = steps * 4 * 79510;  // of the parameters
  EXPECT_THAT(worker.at("muster_worker_sent_bytes_total{task=\"worker:1\"}"), Gt(bytes));
  EXPECT_THAT(worker.at("muster_worker_received_bytes_total{task=\"worker:1\"}"), Gt(bytes));
  EXPECT_THAT(worker.at("process_resident_memory_bytes{task=\"worker:1\"}"), Gt(1 << 20));
  EXPECT_THAT(worker.at("process_cpu_seconds_total{task=\"worker:1\"}"), Gt(0));
  EXPECT_FALSE(worker.contains("muster_training_seconds{task=\"worker:1\"}")) << "it has not ended";
  for (const std::string phase : {"compute", "push", "wait", "pull"}) {
    const std::string labels = "{task=\"worker:1\",phase=\"" + phase + "\"}";
    EXPECT_EQ(worker.at("muster_worker_step_seconds_count" + labels), steps);
    EXPECT_THAT(worker.at("muster_worker_step_seconds_sum" + labels), Gt(0)) << phase;
  }
  for (const int shard : {0, 1}) {
    const std::string task = absl::StrFormat("task=\"ps:%d\"", shard);
    const std::string labels = absl::StrFormat("{%s,shard=\"%d\"", task, shard);
    const Samples server = Await(addresses[shard], [&](const Samples& samples) {
      return samples.contains("muster_ps_checkpoint_age_seconds" + labels + "}") &&
             samples.contains("muster_training_seconds{" + task + "}");
    });
    EXPECT_THAT(server.at("muster_training_seconds{" + task + "}"), Gt(0));
    EXPECT_THAT(server.at("muster_training_cpu_seconds{" + task + "}"), Gt(0));
    EXPECT_FALSE(server.contains("muster_training_host_sent_bytes{" + task + "}")) << "over the loopback";
    EXPECT_THAT(server.at("muster_ps_step" + labels + "}"), Gt(0));
    EXPECT_EQ(server.at("muster_ps_primary" + labels + "}"), 1);
    EXPECT_THAT(server.at("muster_ps_held_pushes" + labels + "}"), Le(2));
    EXPECT_EQ(server.at("muster_ps_queued_pushes" + labels + "}"), 0);
    EXPECT_THAT(server.at("muster_ps_received_bytes_total{" + task + "}"), Gt(0));
    EXPECT_THAT(server.at("muster_ps_sent_bytes_total{" + task + "}"), Gt(0));
    EXPECT_THAT(server.at("process_resident_memory_bytes{" + task + "}"), Gt(1 << 20));
    double received = 0, sum = 0;
    for (const std::string of_worker : {"worker:0", "worker:1"}) {
      const std::string both = labels + ",worker=\"" + of_worker + "\"";
      received += server.at("muster_ps_pushes_received_total" + both + "}");
      for (const std::string outcome : {"applied", "stale", "duplicate", "rejected"}) {
        sum += server.at("muster_ps_pushes_total" + both + ",outcome=\"" + outcome + "\"}");
      }
      const double applied = server.at("muster_ps_pushes_total" + both + ",outcome=\"applied\"}");
      EXPECT_THAT(applied, Gt(0));
      EXPECT_EQ(server.at("muster_ps_push_staleness_steps_count" + both + "}"), applied);
      EXPECT_EQ(server.at("muster_ps_push_staleness_steps_bucket" + both + ",le=\"0\"}"), applied) << "sync";
      EXPECT_EQ(server.at("muster_ps_push_staleness_steps_bucket" + both + ",le=\"+Inf\"}"), applied);
    }
    EXPECT_EQ(received, sum);
  }
  const std::string file = "worker:1.prom";
  const std::string name = "muster_worker_steps_total{task=\"worker:1\"}";
  const TimePoint deadline = Now() + std::chrono::minutes(1);
  const auto written = [&] { return Parse(ReadFile(Path(file)).value_or(""))[name]; };
  while (written() <= steps && Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_THAT(written(), Gt(steps)) << "the file is written again and again";
  for (Started& task : tasks) Kill(task);
}

TEST_F(TrainerMetrics, SayWhatTrainingTookOfTheProcessors) {
  const ClusterSpec cluster = MakeCluster(1, 1);
  std::vector<Started> tasks;
  for (const TaskId task : {TaskId{Role::kPs, 0}, TaskId{Role::kWorker, 0}}) {
    tasks.push_back(StartTask(cluster, task,
                              {"--model=mnist_mlp", "--batch_size=10", "--train_steps=300", "--sync_replicas",
                               "--metrics_file=" + Path(TaskName(task) + ".prom")},
                              "whole"));
  }
  for (Started& task : tasks) EXPECT_EQ(ExitCode(std::move(task)), 0);
  const Samples worker = Parse(ReadFile(Path("worker:0.prom")).value_or(""));
  const std::string task = "{task=\"worker:0\"}";
  ASSERT_TRUE(worker.contains("muster_training_seconds" + task));
  EXPECT_THAT(worker.at("muster_training_seconds" + task), Gt(0));
  EXPECT_THAT(worker.at("muster_training_cpu_seconds" + task), Gt(0));
  EXPECT_THAT(worker.at("muster_training_cpu_seconds" + task),
              Le(worker.at("process_cpu_seconds_total" + task)));
}

TEST_F(TrainerMetrics, AnAddressThatCannotBeListenedOnIsSaid) {
  const ClusterSpec cluster = MakeCluster(1, 1);
  for (const TaskId task : {TaskId{Role::kPs, 0}, TaskId{Role::kWorker, 0}}) {
    Started started = StartTask(cluster, task, {"--metrics_address=192.0.2.1:9464"}, "elsewhere");
    const std::filesystem::path log = started.log;
    EXPECT_EQ(ExitCode(std::move(started)), ExitCodeFor(absl::UnavailableError("")));
    EXPECT_THAT(*ReadFile(log), HasSubstr("--metrics_address: cannot listen on 192.0.2.1:9464"));
  }
}

TEST_F(TrainerMetrics, AFileThatCannotBeTheirsIsRefused) {
  const ClusterSpec cluster = MakeCluster(1, 1);
  const auto refused = [&](TaskId task, const std::string& file) {
    Started started = StartTask(
        cluster, task,
        {"--metrics_file=" + file, "--data_dir=synthetic", "--connect_timeout=1", "--worker_timeout=1"},
        "refused");
    const std::filesystem::path log = started.log;
    EXPECT_EQ(ExitCode(std::move(started)), 2);
    return ReadFile(log).value_or("");
  };
  for (const TaskId task : {TaskId{Role::kPs, 0}, TaskId{Role::kWorker, 0}}) {
    EXPECT_THAT(refused(task, Path("nowhere/m")),
                HasSubstr("--metrics_file=" + Path("nowhere/m") + ": cannot write into " + Path("nowhere")));
  }
  EXPECT_THAT(refused({Role::kWorker, 0}, Path("refused.json")),
              HasSubstr("--metrics_file and --result_json name the same file, " + Path("refused.json")));
}

TEST_F(TrainerMetrics, AFileThatCanBeWrittenNoMoreIsSaidByItsName) {
  ASSERT_TRUE(MakeDirectories(Path("folder")).ok());
  const std::string file = Path("folder/metrics");
  Started server = StartTask(MakeCluster(1, 1), {Role::kPs, 0}, {"--metrics_file=" + file}, "file");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(file); }));
  ASSERT_TRUE(Eventually([&] { return RemoveTree(Path("folder")).ok(); }));  // it may write meanwhile
  EXPECT_TRUE(Eventually([&] {
    return ReadFile(server.log).value_or("").find("--metrics_file=" + file + ": ") != std::string::npos;
  })) << ReadFile(server.log).value_or("");
  Kill(server);
}

}  // namespace
}  // namespace muster
