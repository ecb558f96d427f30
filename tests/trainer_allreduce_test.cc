// Training by allreduce, with real processes: the same losses as with servers and as alone.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/certificates.h"
#include "cluster/tls_identity.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

#ifdef __SANITIZE_ADDRESS__
constexpr int kLenetSteps = 50;  // each takes thirty times as long
#else
constexpr int kLenetSteps = 200;
#endif

class TrainerAllReduce : public Trainers {
 protected:
  const std::vector<std::string> kPatience = {"--strategy=allreduce",  "--data_dir=synthetic",
                                              "--model=mnist_softmax", "--batch_size=5",
                                              "--train_steps=20",      "--worker_timeout=6"};

  static std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // Sums of the same numbers in another order: their rounding, carried on through all steps.
  void ExpectSameLosses(const std::string& run, const std::string& other, size_t steps = 200) {
    const std::vector<double> a = Losses(run), b = Losses(other);
    ASSERT_GE(a.size(), steps) << run;
    ASSERT_EQ(a.size(), b.size()) << run;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 1e-5 * std::abs(b[i])) << run << " and " << other << " at line " << i;
    }
  }

  // One process, synchronous servers, and allreduce of 1, 2 and 4 workers on one host and as if on several.
  // 101 samples: the parts of a batch are unequal.
  void ExpectTheLossesOfOneProcess(const std::vector<std::string>& model) {
    const std::vector<std::string> flags = With(
        model, {"--global_batch_size=101", "--train_steps=200", "--log_every=1", "--data_dir=synthetic"});
    auto local = Start("local", With(flags, {"--job_name=local", "--metrics_jsonl=" + Path("local.jsonl")}));
    EXPECT_EQ(local.process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 0);
    Run(MakeCluster(2, 2), With(flags, {"--sync_replicas"}), "servers");
    ExpectSameLosses("servers", "local");
    for (const int workers : {1, 2, 4}) {
      const std::string run = "allreduce-" + std::to_string(workers);
      const Json result = Run(MakeCluster(0, workers), With(flags, {"--strategy=allreduce"}), run);
      EXPECT_EQ(result["strategy"], "allreduce");
      EXPECT_EQ(result["update_mode"], "sync");
      EXPECT_EQ(result["workers"], workers);
      EXPECT_EQ(result["ps"], 0);
      EXPECT_EQ(result["samples"], 200 * 101);
      EXPECT_TRUE(result["pushes"].is_null());
      EXPECT_EQ(result["bytes_pushed"] > 0, workers > 1);
      ExpectSameLosses(run, "local");
    }
    Run(MakeCluster(0, 3), With(flags, {"--strategy=allreduce", "--transport=tcp"}), "tcp");
    ExpectSameLosses("tcp", "local");
  }
};

TEST_F(TrainerAllReduce, AMlpHasTheLossesOfOneProcess) {
  ExpectTheLossesOfOneProcess({"--model=mnist_mlp", "--hidden=50"});
}

// In many, and with those that are tried out on the way: the model is large enough for two. The sum of two
// gradients is the same in any order, so not a bit may differ.
TEST_F(TrainerAllReduce, BucketsChangeNoBitOfTwoWorkers) {
  const std::vector<std::string> flags = {"--model=mnist_mlp",       "--hidden=512,300",
                                          "--global_batch_size=101", "--train_steps=100",
                                          "--data_dir=synthetic",    "--strategy=allreduce"};
  const Json whole = Run(MakeCluster(0, 2), With(flags, {"--bucket_bytes=1000000000"}), "whole");
  EXPECT_EQ(whole["steps"], 100);
  for (const std::string bytes : {"auto", "200000"}) {
    for (const std::string transport : {"auto", "tcp"}) {
      const std::string run = bytes + "-" + transport;
      const Json result =
          Run(MakeCluster(0, 2), With(flags, {"--bucket_bytes=" + bytes, "--transport=" + transport}), run);
      EXPECT_EQ(result["parameters_crc32c"], whole["parameters_crc32c"]) << run;
      EXPECT_EQ(result["train_loss"], whole["train_loss"]) << run;
    }
  }
}

// Where pooling meets two values that are nearly equal, rounding decides which of them wins, and after some
// steps the losses of another division into batches, or another order of sums, are others. With two workers
// neither is another.
TEST_F(TrainerAllReduce, LenetHasTheLossesOfTwoWorkersWithServers) {
  const std::vector<std::string> flags = {
      "--model=mnist_cnn",       "--variant=lenet",
      "--global_batch_size=101", "--train_steps=" + std::to_string(kLenetSteps),
      "--log_every=1",           "--data_dir=synthetic"};
  Run(MakeCluster(2, 2), With(flags, {"--sync_replicas"}), "servers");
  Run(MakeCluster(0, 2), With(flags, {"--strategy=allreduce"}), "allreduce");
  ExpectSameLosses("allreduce", "servers", kLenetSteps);
  Run(MakeCluster(0, 2), With(flags, {"--strategy=allreduce", "--transport=tcp"}), "tcp");
  ExpectSameLosses("tcp", "servers", kLenetSteps);
}

TEST_F(TrainerAllReduce, AChiefAndTls) {
  ClusterSpec cluster = MakeCluster(0, 2);
  cluster.chief.push_back(FreeAddress());
  const auto authority = MakeAuthority("test");
  std::vector<Started> tasks;
  for (int rank = 0; rank < 3; ++rank) {
    const TaskId task = TaskOfRank(cluster, rank);
    const auto certificate = IssueCertificate(*authority, TlsName(task));
    const std::filesystem::path folder = Path(TlsName(task));
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "ca.pem") << authority->certificate_pem;
    std::ofstream(folder / "cert.pem") << certificate->certificate_pem;
    std::ofstream(folder / "key.pem") << certificate->key_pem;
    tasks.push_back(StartTask(cluster, task,
                              {"--strategy=allreduce", "--train_steps=50", "--data_dir=synthetic",
                               "--transport=tcp", "--tls_dir=" + folder.string()},
                              "tls"));
  }
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("tls")["workers"], 3);
  EXPECT_THAT(*ReadFile(tasks[0].log), testing::Not(HasSubstr("without TLS")));
}

// Whoever it is that lacks something, all say what.
TEST_F(TrainerAllReduce, NcclThatIsAskedForAndNotThereIsNamed) {
  if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    GTEST_SKIP() << "this host has an NVIDIA driver";
  }
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags = {"--strategy=allreduce", "--data_dir=synthetic"};
  auto first = StartTask(cluster, {Role::kWorker, 0}, flags, "a");
  auto second = StartTask(cluster, {Role::kWorker, 1}, With(flags, {"--collective=nccl"}), "b");
  for (Started* task : {&first, &second}) {
    EXPECT_EQ(task->process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
    const std::string log = *ReadFile(task->log);
    EXPECT_THAT(log, HasSubstr("--collective=nccl is not possible: worker:0 (" + cluster.workers[0] +
                               ") has no GPU for it: it computes on the CPU"));
  }
}

// The others wait for the chief meanwhile, and would for ten minutes.
TEST_F(TrainerAllReduce, WhatTheChiefFindsAtTheEndEndsAll) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags = {"--strategy=allreduce", "--data_dir=synthetic",
                                          "--optimizer=sgd",      "--learning_rate=1e30",
                                          "--train_steps=1",      "--model=mnist_mlp"};
  std::vector<Started> tasks;
  for (const int index : {0, 1}) tasks.push_back(StartTask(cluster, {Role::kWorker, index}, flags, "run"));
  for (Started& task : tasks) {
    EXPECT_EQ(task.process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
    EXPECT_THAT(*ReadFile(task.log), HasSubstr("not finite after step 1: lower the learning rate"));
  }
}

// The others keep what was trained, so that the chief, started again, has only to write it.
TEST_F(TrainerAllReduce, AChiefThatCannotWriteTheModelMayTryAgain) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags = {"--strategy=allreduce", "--data_dir=synthetic", "--model=mnist_mlp",
                                          "--hidden=300", "--train_steps=400"};
  const std::filesystem::path folder = Path("models");
  std::filesystem::create_directory(folder);
  const auto start_chief = [&](const std::string& run) {
    return Start(run, With(ToFlags(cluster, {Role::kWorker, 0}),
                           With(flags, {"--save_model=" + (folder / "model.safetensors").string(),
                                        "--metrics_jsonl=" + Path(run + ".jsonl"), "--log_every=1"})));
  };
  std::vector<Started> tasks;
  tasks.push_back(start_chief("first"));
  tasks.push_back(StartTask(cluster, {Role::kWorker, 1}, flags, "run"));
  AwaitLosses("first", 1, tasks[0].process);
  std::filesystem::remove(folder);
  EXPECT_EQ(tasks[0].process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 1);
  EXPECT_THAT(*ReadFile(tasks[0].log), AllOf(HasSubstr("--save_model"), Not(HasSubstr("has gone"))));
  std::filesystem::create_directory(folder);
  tasks[0] = start_chief("second");
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("going on from step 400"));
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
}

// It says that it lives all the time, so that nothing but the others' patience ends this.
TEST_F(TrainerAllReduce, AWorkerThatIsWaitedForInVainEndsAllWithItsName) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  std::vector<Started> tasks;
  for (const int index : {0, 1}) {
    tasks.push_back(StartTask(cluster, {Role::kWorker, index},
                              With(kPatience, {index == 1 ? "--device=wait:9000" : "--device=wait:10"}),
                              "run"));
  }
  for (Started& task : tasks) {
    EXPECT_EQ(task.process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 124) << task.name;
    EXPECT_THAT(*ReadFile(task.log),
                HasSubstr(" in vain for worker:1 (" + cluster.workers[1] + "), which lives: tried for "));
  }
}

TEST_F(TrainerAllReduce, OrIsLeftBehindWhereFewerAreEnough) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags = With(kPatience, {"--min_workers=1"});
  std::vector<Started> tasks;
  tasks.push_back(StartTask(cluster, {Role::kWorker, 0}, With(flags, {"--device=wait:10"}), "run"));
  tasks.push_back(StartTask(cluster, {Role::kWorker, 1}, With(flags, {"--device=wait:9000"}), "run"));
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), AllOf(HasSubstr("in vain for worker:1 (" + cluster.workers[1] +
                                                       "), which lives: they go on without"),
                                             HasSubstr("going on from step 0 with 1 of 2 workers")));
  EXPECT_EQ(Result("run")["steps"], 20);
}

TEST_F(TrainerAllReduce, OtherFlagsThanTheOthersAreRefused) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags = {"--strategy=allreduce", "--data_dir=synthetic"};
  for (const char* other : {"--seed=2", "--train_steps=11"}) {
    std::vector<Started> tasks;
    tasks.push_back(StartTask(cluster, {Role::kWorker, 0}, flags, other));
    tasks.push_back(StartTask(cluster, {Role::kWorker, 1}, With(flags, {other}), other));
    for (Started& task : tasks) {
      EXPECT_EQ(task.process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
      EXPECT_THAT(*ReadFile(task.log), HasSubstr("the same program, model and flags?"));
    }
  }
}

}  // namespace
}  // namespace muster
