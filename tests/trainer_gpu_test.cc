// Trainers with a GPU each, as far as they can tell: the module that they load has CUDA made up. What workers
// do together does not depend on where they compute and have their parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class TrainerGpu : public Trainers {
 protected:
  static constexpr int kSteps = 100;

  // It looks for modules in ../lib, and for a driver where the loader does.
  TrainerGpu() {
    const std::filesystem::path lib = folder.path() / "gpu/lib", bin = folder.path() / "gpu/bin";
    std::filesystem::create_directories(lib);
    std::filesystem::create_directories(bin);
    std::filesystem::copy_file(BuildPath("tests/fake_cuda/libmuster_cuda.so"), lib / "libmuster_cuda.so");
    std::filesystem::create_symlink("libmuster_cuda.so", lib / "libcuda.so.1");
    std::filesystem::copy_file(BuildPath("bin/muster-trainer"), trainer());
    environment_ = {"LD_LIBRARY_PATH=" + lib.string()};
  }

  std::string trainer() const override { return Path("gpu/bin/muster-trainer"); }

  static std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  // With the default seed an output lies so near to zero once that the order of a sum decides about its ReLU.
  static std::vector<std::string> Mlp(const std::vector<std::string>& more,
                                      const std::string& learning_rate = "0.02") {
    return With({"--model=mnist_mlp", "--hidden=300,300", "--data_dir=synthetic", "--global_batch_size=300",
                 "--seed=3", "--optimizer=momentum", "--learning_rate=" + learning_rate,
                 "--train_steps=" + std::to_string(kSteps)},
                more);
  }
  static std::vector<std::string> WideDeep(const std::vector<std::string>& more) {
    return With({"--model=wide_deep", "--data_dir=synthetic", "--global_batch_size=40",
                 "--train_steps=" + std::to_string(kSteps)},
                more);
  }

  Json RunAlone(const std::vector<std::string>& flags, const std::string& run) {
    auto alone =
        Start(run, With(flags, {"--job_name=local", "--result_json=" + Path(run + ".json")}), environment_);
    EXPECT_EQ(alone.process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 0) << *ReadFile(alone.log);
    return Result(run);
  }

  // Each of the workers on its device.
  std::vector<Started> StartOn(const std::vector<std::string>& devices, const ClusterSpec& cluster,
                               const std::vector<std::string>& flags, const std::string& run) {
    std::vector<Started> tasks;
    for (int i = 0; i < static_cast<int>(cluster.ps.size()); ++i) {
      tasks.push_back(StartTask(cluster, {Role::kPs, i}, flags, run));
    }
    for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
      tasks.push_back(StartWorker(devices[i], cluster, i, flags, run));
    }
    return tasks;
  }
  Started StartWorker(const std::string& device, const ClusterSpec& cluster, int worker,
                      const std::vector<std::string>& flags, const std::string& run) {
    return StartTask(cluster, {Role::kWorker, worker}, With(flags, {"--device=" + device}), run,
                     {"env", environment_.front()});
  }

  static void ExpectTheSame(const Json& result, const Json& expected) {
    EXPECT_EQ(result["steps"], expected["steps"]);
    EXPECT_EQ(result["samples"], expected["samples"]);
    for (const char* name : {"train_loss", "test_loss"}) {
      EXPECT_NEAR(result[name], expected[name], 1e-5 * double(expected[name])) << name;
    }
    EXPECT_NEAR(result["test_accuracy"], expected["test_accuracy"], 0.002);
  }

  std::vector<std::string> environment_;
};

TEST_F(TrainerGpu, WorkersOnGpusAndOthersAddUpTheSame) {
  const Json expected = RunAlone(Mlp({"--device=cpu"}), "cpu");
  const Json alone = RunAlone(Mlp({"--device=cuda"}), "gpu");
  EXPECT_THAT(std::string(alone["device"]), HasSubstr("cuda:0"));
  ExpectTheSame(alone, expected);
  auto one = StartOn({"cuda"}, MakeCluster(0, 1), Mlp({"--strategy=allreduce"}), "one");
  WaitForSuccess(one);
  ExpectTheSame(Result("one"), expected);
  auto tasks = StartOn({"cuda", "cpu", "auto"}, MakeCluster(0, 3),
                       Mlp({"--strategy=allreduce", "--eval_every=50"}), "mixed");
  WaitForSuccess(tasks);
  EXPECT_THAT(std::string(Result("mixed")["device"]), HasSubstr("cuda:0"));
  EXPECT_EQ(TimesLogged(tasks, "computing on cuda:0"), 2);
  ExpectTheSame(Result("mixed"), expected);
}

TEST_F(TrainerGpu, SparseTablesAreOnServersAndTheRestOnGpus) {
  const Json expected = RunAlone(WideDeep({"--device=cpu"}), "cpu");
  auto tasks = StartOn({"cuda", "cuda"}, MakeCluster(1, 2), WideDeep({"--strategy=hybrid"}), "hybrid");
  WaitForSuccess(tasks);
  ExpectTheSame(Result("hybrid"), expected);
}

// Whoever returns gets parameters and the optimizer's state from a GPU, onto one; so does a chief.
TEST_F(TrainerGpu, WhoReturnsGoesOnWithWhatTheOthersHave) {
  const Json expected = RunAlone(Mlp({"--device=cpu"}), "cpu");
  for (const int killed : {1, 0}) {
    const ClusterSpec cluster = MakeCluster(0, 2);
    const std::string run = "killed-" + std::to_string(killed);
    const std::vector<std::string> flags = Mlp({"--strategy=allreduce", "--log_every=1"});
    auto tasks = StartOn({"cuda", "cuda"}, cluster, flags, run);
    AwaitLosses(run, 20, tasks[0].process);
    Kill(tasks[killed]);
    tasks[killed] = StartWorker("cuda", cluster, killed, flags, run);
    WaitForSuccess(tasks);
    EXPECT_THAT(*ReadFile(tasks[1 - killed].log), HasSubstr(TaskName({Role::kWorker, killed}) + " ("));
    EXPECT_THAT(*ReadFile(tasks[killed].log), HasSubstr("going on from step"));
    ExpectTheSame(Result(run), expected);
  }
}

// Where nobody is left the checkpoint is, here in a folder of both.
TEST_F(TrainerGpu, AllThatReturnGoOnWithWhatACheckpointHas) {
  const ClusterSpec cluster = MakeCluster(0, 2);
  const std::vector<std::string> flags =
      Mlp({"--strategy=allreduce", "--log_every=1", "--checkpoint_dir=" + Path("checkpoints"),
           "--checkpoint_every=5"});
  auto tasks = StartOn({"cuda", "cuda"}, cluster, flags, "lost");
  AwaitLosses("lost", 20, tasks[0].process);
  for (Started& task : tasks) Kill(task);
  tasks = StartOn({"cuda", "cpu"}, cluster, flags, "lost");
  WaitForSuccess(tasks);
  EXPECT_EQ(TimesLogged(tasks, "there is a checkpoint of step "), 2);
  for (const Started& task : tasks) EXPECT_THAT(*ReadFile(task.log), HasSubstr("going on from step "));
  ExpectTheSame(Result("lost"), RunAlone(Mlp({"--device=cpu"}), "cpu"));
}

TEST_F(TrainerGpu, AWorkerThatDivergesEndsAllWithItsNameAndSaysWhere) {
  auto tasks = StartOn({"cuda", "cuda"}, MakeCluster(0, 2),
                       Mlp({"--strategy=allreduce"}, /*learning_rate=*/"1e30"), "diverges");
  for (Started& task : tasks) EXPECT_NE(task.process.Wait(Now() + std::chrono::minutes(1)).value_or(0), 0);
  EXPECT_THAT(*ReadFile(tasks[0].log) + *ReadFile(tasks[1].log), HasSubstr("is not finite at step"));
  EXPECT_FALSE(std::filesystem::exists(Path("diverges.safetensors")));
}

}  // namespace
}  // namespace muster
