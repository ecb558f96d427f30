// Checkpoints of real processes: servers that are killed and started again, jobs that go on where an earlier
// one was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/file.h"
#include "ps/checkpoint_store.h"
#include "tests/support/eventually.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainerCheckpoints : public Trainers {
 protected:
  std::vector<std::string> WithCheckpoints(std::vector<std::string> flags, int every) {
    flags.push_back("--checkpoint_dir=" + Path("checkpoints"));
    flags.push_back(absl::StrFormat("--checkpoint_every=%d", every));
    return flags;
  }

  void KillAndStartAgain(const ClusterSpec& cluster, Started& task, int ps,
                         const std::vector<std::string>& flags, const std::string& run) {
    Kill(task);
    task = StartTask(cluster, {Role::kPs, ps}, flags, run);
  }

  CheckpointStore Store() { return CheckpointStore(Path("checkpoints")); }
};

const std::vector<std::string> kSync = {"--model=mnist_mlp", "--hidden=300", "--sync_replicas",
                                        "--train_steps=400", "--log_every=10"};

TEST_F(TrainerCheckpoints, KilledServersThatStartAgainChangeNoBit) {
  const Json expected = Run(MakeCluster(2, 2), kSync, "undisturbed");
  const ClusterSpec cluster = MakeCluster(2, 2);
  const std::vector<std::string> flags = WithCheckpoints(kSync, 30);
  auto tasks = StartCluster(cluster, flags, "killed");
  size_t lines = 5;
  for (const int ps : {1, 0, 1}) {
    AwaitLosses("killed", lines, tasks[2].process);
    KillAndStartAgain(cluster, tasks[ps], ps, flags, "killed");
    lines = Losses("killed").size() + 5;
  }
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("killed")["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(Result("killed")["pushes"], expected["pushes"]);
  const std::string log = *ReadFile(tasks[0].log);
  EXPECT_THAT(log, HasSubstr("ps:1 has started again: all go back to step"));
  EXPECT_THAT(log, HasSubstr("ps:0 has started again: all go back to step"));
  EXPECT_EQ(Store().List()->front(), 400u) << "what the job ended with";
  EXPECT_EQ(Store().List()->size(), 3u);
}

// As when its host is lost with its disk.
TEST_F(TrainerCheckpoints, KilledServersThatLoseTheirFolderChangeNoBit) {
  const Json expected = Run(MakeCluster(2, 2), kSync, "undisturbed");
  const ClusterSpec cluster = MakeCluster(2, 2);
  const auto folder = [&](int ps) { return Path("checkpoints-" + std::to_string(ps)); };
  const auto flags_of = [&](int ps) {
    std::vector<std::string> flags = kSync;
    flags.insert(flags.end(),
                 {"--checkpoint_dir=" + folder(ps), "--checkpoint_every=30", "--checkpoint_buddy"});
    return flags;
  };
  std::vector<Started> tasks;
  for (const int ps : {0, 1}) tasks.push_back(StartTask(cluster, {Role::kPs, ps}, flags_of(ps), "lost"));
  for (const int rank : {0, 1}) tasks.push_back(StartTask(cluster, {Role::kWorker, rank}, kSync, "lost"));
  // A checkpoint with both parts is there.
  const auto has_all = [&](int ps) {
    const CheckpointStore store(folder(ps));
    const auto steps = store.List();
    return steps.ok() && std::ranges::any_of(*steps, [&](uint64_t step) {
             const auto manifest = store.ReadManifest(step);
             return manifest.ok() && store.VerifyShard(*manifest, 0).ok() &&
                    store.VerifyShard(*manifest, 1).ok();
           });
  };
  size_t lines = 8;
  for (const int ps : {1, 0, 1}) {
    AwaitLosses("lost", lines, tasks[2].process);
    ASSERT_TRUE(Eventually([&] { return has_all(1 - ps); })) << ps;
    Kill(tasks[ps]);
    ASSERT_TRUE(RemoveTree(folder(ps)).ok());
    tasks[ps] = StartTask(cluster, {Role::kPs, ps}, flags_of(ps), "lost");
    lines = Losses("lost").size() + 5;
  }
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("lost")["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(Result("lost")["pushes"], expected["pushes"]);
  EXPECT_THAT(*ReadFile(tasks[1].log), HasSubstr("ps:1: has its part of checkpoint"));
  for (const int ps : {0, 1}) {
    const CheckpointStore store(folder(ps));
    const auto manifest = store.ReadManifest(400);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    for (const int shard : {0, 1}) EXPECT_TRUE(store.VerifyShard(*manifest, shard).ok()) << ps << shard;
  }
}

// Nobody goes back, in any mode.
TEST_F(TrainerCheckpoints, KilledServersWithAJournalLoseNothing) {
  const Json expected = Run(MakeCluster(2, 2), kSync, "undisturbed");
  const std::vector<std::string> async = {"--model=mnist_softmax", "--train_steps=3000",
                                          "--learning_rate=0.1", "--log_every=10"};
  for (const bool sync : {true, false}) {
    const std::string run = sync ? "sync" : "async";
    const ClusterSpec cluster = MakeCluster(2, 2);
    std::vector<std::string> flags = sync ? kSync : async;
    flags.insert(flags.end(),
                 {"--checkpoint_dir=" + Path(run), "--checkpoint_every=70", "--durability=journal"});
    auto tasks = StartCluster(cluster, flags, run);
    size_t lines = 5;
    for (const int ps : {1, 0, 0, 1, 0}) {
      AwaitLosses(run, lines, tasks[2].process);
      KillAndStartAgain(cluster, tasks[ps], ps, flags, run);
      lines = Losses(run).size() + 3;
    }
    WaitForSuccess(tasks);
    const Json result = Result(run), pushes = result["pushes"];
    for (const Started& task : tasks) {
      EXPECT_THAT(*ReadFile(task.log), Not(HasSubstr("go back"))) << task.name;
      EXPECT_THAT(*ReadFile(task.log), Not(HasSubstr("gone back"))) << task.name;
    }
    EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("as its journal says"));
    if (sync) {
      EXPECT_EQ(result["parameters_crc32c"], expected["parameters_crc32c"]);
      EXPECT_EQ(pushes["applied"], expected["pushes"]["applied"]);
    } else {
      EXPECT_EQ(pushes["applied"], result["steps"]);
      EXPECT_GE(result["test_accuracy"], 0.85);
    }
  }
}

TEST_F(TrainerCheckpoints, AJobThatIsKilledGoesOnWithTheSameBits) {
  const Json expected = Run(MakeCluster(2, 2), kSync, "undisturbed");
  const ClusterSpec cluster = MakeCluster(2, 2);
  const std::vector<std::string> flags = WithCheckpoints(kSync, 30);
  auto tasks = StartCluster(cluster, flags, "killed");
  AwaitLosses("killed", 10, tasks[2].process);
  ASSERT_TRUE(Eventually([&] {
    const auto steps = Store().List();
    return steps.ok() && !steps->empty();
  }));
  for (Started& task : tasks) Kill(task);
  ASSERT_FALSE(Store().List()->empty());
  tasks = StartCluster(cluster, flags, "again");
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("going on from the checkpoint of step"));
  EXPECT_EQ(Result("again")["parameters_crc32c"], expected["parameters_crc32c"]);
}

TEST_F(TrainerCheckpoints, MoreStepsOnAnotherNumberOfServersGiveTheSameBits) {
  std::vector<std::string> flags = {"--model=mnist_cnn", "--sync_replicas", "--batch_size=20",
                                    "--train_steps=20"};
  const Json expected = Run(MakeCluster(1, 2), flags, "undisturbed");
  flags.back() = "--train_steps=10";
  Run(MakeCluster(2, 2), WithCheckpoints(flags, 1000), "half");
  EXPECT_THAT(*Store().List(), testing::ElementsAre(10u));
  flags.back() = "--train_steps=20";
  const Json whole = Run(MakeCluster(3, 2), WithCheckpoints(flags, 1000), "whole");
  EXPECT_EQ(whole["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(whole["test_accuracy"], expected["test_accuracy"]);
}

TEST_F(TrainerCheckpoints, AsyncTrainingGoesBackAndGoesOn) {
  const ClusterSpec cluster = MakeCluster(2, 2);
  const std::vector<std::string> flags = WithCheckpoints(
      {"--model=mnist_softmax", "--train_steps=2000", "--learning_rate=0.1", "--log_every=10"}, 100);
  auto tasks = StartCluster(cluster, flags, "async");
  AwaitLosses("async", 30, tasks[2].process);
  KillAndStartAgain(cluster, tasks[1], 1, flags, "async");
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("ps:1 has started again: all go back to step"));
  const Json result = Result("async"), pushes = result["pushes"];
  EXPECT_EQ(pushes["applied"], result["steps"]) << "what was lost does not count";
  EXPECT_EQ(pushes["received"], pushes["applied"]);
  EXPECT_GE(result["test_accuracy"], 0.85);
}

// The first thing that people change: how far a step goes, and of how many samples it is made.
TEST_F(TrainerCheckpoints, TrainingGoesOnWithAnotherRateAndOtherBatches) {
  const ClusterSpec cluster = MakeCluster(2, 1);
  const auto flags = [&](int steps, int batch, const std::string& more) {
    return WithCheckpoints(
        {"--model=mnist_softmax", "--sync_replicas", "--log_every=1", more,
         absl::StrFormat("--train_steps=%d", steps), absl::StrFormat("--batch_size=%d", batch)},
        10);
  };
  Run(cluster, flags(20, 50, "--learning_rate=0.5"), "run");
  const Json result = Run(cluster, flags(30, 10, "--learning_rate_schedule=cosine"), "run");
  EXPECT_EQ(result["steps"], 30);
  EXPECT_EQ(result["samples"], 20 * 50 + 10 * 10);
  std::istringstream lines(*ReadFile(Path("run.jsonl")));
  std::set<int> steps;
  for (std::string line; std::getline(lines, line);) steps.insert(Json::parse(line)["step"].get<int>());
  EXPECT_EQ(steps.size(), 30u) << "the curve goes on, too";

  auto tasks = StartCluster(cluster, flags(40, 10, "--seed=9"), "other");
  EXPECT_EQ(tasks[2].process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
  EXPECT_THAT(
      *ReadFile(tasks[2].log),
      HasSubstr("the job differs from the one whose checkpoint this is (seed: 1 -> 9): give it the same "
                "flags, or another --checkpoint_dir"));
}

TEST_F(TrainerCheckpoints, ADamagedOneIsNotUsedAndTheOneBeforeIs) {
  const ClusterSpec cluster = MakeCluster(1, 1);
  const std::vector<std::string> flags =
      WithCheckpoints({"--model=mnist_softmax", "--sync_replicas", "--train_steps=20"}, 10);
  Run(cluster, flags, "first");
  ASSERT_THAT(*Store().List(), testing::ElementsAre(20u, 10u));
  const auto flip = [&](uint64_t step) {
    const std::filesystem::path path = Store().PathOf(step, CheckpointStore::ShardFileName(0, 1));
    std::string bytes = *ReadFile(path);
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  };
  EXPECT_NE(ExitCode(Start("none", {"--inspect_checkpoint=" + Path("none")})), 0);
  EXPECT_THAT(*ReadFile(Path("none.log")), HasSubstr("has no checkpoints"));
  const auto inspect = [&] { return Start("inspect", {"--inspect_checkpoint=" + Path("checkpoints")}); };
  EXPECT_EQ(ExitCode(inspect()), 0);
  EXPECT_THAT(*ReadFile(Path("inspect.log")),
              HasSubstr("step 20: mnist_softmax, sync, workers: 1, seed 1\n"));
  flip(20);
  EXPECT_NE(ExitCode(inspect()), 0);
  EXPECT_THAT(*ReadFile(Path("inspect.log")), HasSubstr("damaged"));
  auto tasks = StartCluster(cluster, flags, "second");
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("checkpoint 20 is not used: "));
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("going on from the checkpoint of step 10"));
  EXPECT_EQ(Result("second")["parameters_crc32c"], Result("first")["parameters_crc32c"]);

  // Without any that is whole it does not begin anew, and removes nothing.
  flip(20);
  flip(10);
  Started server = StartTask(cluster, {Role::kPs, 0}, flags, "third");
  const std::filesystem::path log = server.log;
  EXPECT_NE(ExitCode(std::move(server)), 0);
  EXPECT_THAT(*ReadFile(log), HasSubstr("can go on from none of the 2 checkpoints in"));
  EXPECT_EQ(Store().List()->size(), 2u);
}

// Of servers that nobody supervises; the others' supervisor would start them again, or take a job that has
// its result for failed.
TEST_F(TrainerCheckpoints, ALastOneThatCannotBeWrittenIsTheExitStatusOfServers) {
  for (const bool supervised : {false, true}) {
    const std::string run = supervised ? "supervised" : "by-hand", folder = Path(run);
    const std::vector<std::string> flags = {"--model=mnist_softmax", "--sync_replicas", "--train_steps=20",
                                            "--checkpoint_dir=" + folder, "--checkpoint_every=100"};
    const std::filesystem::path file =
        CheckpointStore(folder).PathOf(20, CheckpointStore::ShardFileName(1, 2));
    std::filesystem::create_directories(file / "in the way");
    const ClusterSpec cluster = MakeCluster(2, 1);
    std::vector<Started> servers, workers;
    for (const int ps : {0, 1}) {
      std::vector<std::string> arguments = ToFlags(cluster, {Role::kPs, ps});
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      std::vector<std::string> environment;
      if (supervised) environment.push_back("MUSTER_DONE_FILE=" + Path(absl::StrFormat("done-%d", ps)));
      servers.push_back(Start(absl::StrFormat("%s-ps:%d", run, ps), arguments, environment));
    }
    workers.push_back(StartTask(cluster, {Role::kWorker, 0}, flags, run));
    WaitForSuccess(workers);
    EXPECT_EQ(Result(run)["steps"], 20);
    EXPECT_TRUE(std::filesystem::exists(Path(run + ".safetensors")));
    const std::filesystem::path logs[] = {servers[0].log, servers[1].log};
    for (Started& server : servers) EXPECT_EQ(ExitCode(std::move(server)), supervised ? 0 : 1) << run;
    EXPECT_THAT(*ReadFile(logs[0]), HasSubstr("the checkpoint of step 20, with which the job has ended"));
    EXPECT_THAT(*ReadFile(logs[1]), HasSubstr("was not made: " + file.string()));
  }
}

TEST_F(TrainerCheckpoints, AnotherJobIsRefused) {
  const ClusterSpec cluster = MakeCluster(1, 1);
  Run(cluster, WithCheckpoints({"--train_steps=5"}, 10), "first");
  auto tasks = StartCluster(cluster, WithCheckpoints({"--train_steps=5", "--seed=2"}, 10), "second");
  const std::filesystem::path worker = tasks[1].log;
  for (Started& task : tasks) EXPECT_NE(ExitCode(std::move(task)), 0);
  EXPECT_THAT(*ReadFile(worker), HasSubstr("seed"));
  EXPECT_THAT(*Store().List(), testing::ElementsAre(5u));
}

}  // namespace
}  // namespace muster
