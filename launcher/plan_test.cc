#include "launcher/plan.h"
#include "launcher/running_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/archive.h"
#include "base/file.h"

namespace muster {
namespace {

class PlanOfAProgram : public ::testing::Test {
 protected:
  // What is wrong with a job of a program; `keys` begin at line 4 of its file.
  std::string ErrorOf(const std::string& keys) {
    const auto job = ParseJob("name: j\nprogram: [x]\nreplicas: {worker: {count: 1}}\n" + keys,
                              (folder_.path() / "job.yaml").string(), "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
    EXPECT_TRUE(inventory.ok()) << inventory.status();
    const auto plan = MakePlan(*job, *inventory, {});
    if (plan.ok()) return "OK";
    EXPECT_EQ(ExitCodeFor(plan.status()), 2);
    return std::string(plan.status().message());
  }

  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  TemporaryDirectory folder_;
};

TEST_F(PlanOfAProgram, NamesThePlaceOfAFileThatCannotBeSent) {
  ASSERT_TRUE(WriteFileAtomically(Path("train.py"), "x").ok());
  ASSERT_TRUE(MakeDirectories(Path("lib")).ok());
  EXPECT_EQ(ErrorOf("files: [train.py]\n"), "OK");
  const std::string files_only = " (`files` takes files only, no folders and no patterns)";
  EXPECT_EQ(ErrorOf("files: [train.py, nope.py]\n"),
            Path("job.yaml") + ":4:19: " + Path("nope.py") + ": No such file or directory" + files_only);
  EXPECT_EQ(ErrorOf("files:\n- lib\n"),
            Path("job.yaml") + ":5:3: " + Path("lib") + ": Is a directory" + files_only);

  const std::string large((5 << 20), 'x');
  for (const char* name : {"a", "b"}) ASSERT_TRUE(WriteFileAtomically(Path(name), large).ok());
  EXPECT_EQ(
      ErrorOf("files: [a, b]\n"),
      Path("job.yaml") + ":4:12: the files together are larger than 8 MiB; put large ones under `data`");
}

TEST_F(PlanOfAProgram, NamesThePlaceOfADataFolderThatIsNone) {
  EXPECT_EQ(ErrorOf("data: /nonexist\n"), Path("job.yaml") + ":4:7: /nonexist is no folder of this machine");
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "x").ok());
  EXPECT_EQ(ErrorOf("env: {A: b}\ndata: file\n"),
            Path("job.yaml") + ":5:7: " + Path("file") + " is no folder of this machine");
}

// Files with the names of the set's, in `folder`/mnist.
void WriteMnist(const std::filesystem::path& folder) {
  ASSERT_TRUE(MakeDirectories(folder / "mnist").ok());
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz"}) {
    ASSERT_TRUE(WriteFileAtomically(folder / "mnist" / name, name).ok());
  }
}

// What a task of a job with these lines is started with: task 0 is the server, 1 the worker.
std::vector<std::string> FlagsOfAModel(const std::string& lines, int task) {
  TemporaryDirectory trainer;
  EXPECT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
  const auto job =
      ParseJob("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n" + lines,
               "job.yaml", "/home/me");
  EXPECT_TRUE(job.ok()) << job.status();
  const auto plan = MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}});
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto& argv = plan->record.tasks(task).start().argv();
  return {argv.begin(), argv.end()};
}

TEST(PlanOfAModel, EachTaskIsToldOfItsClusterByAFile) {
  TemporaryDirectory trainer;
  ASSERT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
  const auto job = ParseJob("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n",
                            "job.yaml", "/home/me");
  auto plan = MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(BeginJob(&plan->record).ok());
  const auto cluster = std::make_shared<reconcile::Cluster>(
      reconcile::Cluster{{"ps:0", "here", "10.0.0.1", 20001}, {"worker:0", "here", "10.0.0.2", 20002}});
  for (const reconcile::DesiredTask& task : DesiredOf(plan->record).tasks) {
    EXPECT_TRUE(task.follows_cluster) << task.id;
    EXPECT_EQ(task.ends_last, task.id == "ps:0");
    const auto request = MakeStartRequest(plan->record, {.host = "here",
                                                         .task = task.id,
                                                         .generation = 7,
                                                         .follows_cluster = task.follows_cluster,
                                                         .cluster = cluster,
                                                         .minimum_incarnation = 5,
                                                         .restarts = 2});
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->minimum_incarnation(), 5u);
    EXPECT_EQ(request->restarts(), 2u);
    EXPECT_THAT(request->argv(), testing::Contains("--cluster_file={task_dir}/cluster.json"));
    const auto file = std::find_if(request->files().begin(), request->files().end(),
                                   [](const auto& each) { return each.path() == "cluster.json"; });
    ASSERT_NE(file, request->files().end());
    EXPECT_EQ(file->content(),
              "{\"version\":1,\"generation\":7,\"cluster\":{\"ps\":[\"10.0.0.1:20001\"],"
              "\"worker\":[\"10.0.0.2:20002\"]}}\n");
  }
}

TEST(PlanOfAModel, StandingServersHaveNoWorkersAndTheirJobsNoServers) {
  TemporaryDirectory trainer;
  ASSERT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto inventory =
      ParseInventory("hosts: {a: {ssh: 10.0.0.1}, b: {ssh: 10.0.0.2}}\n", "hosts.yaml", "/home/me");
  const auto pool = ParseStandingServers(
      "name: pool\nreplicas: {ps: {count: 1}}\ncheckpoint: {every_steps: 9}\n", "pool.yaml");
  auto servers = MakePlan(*pool, *inventory, {.installation = {.trainer = trainer.path()}});
  ASSERT_TRUE(servers.ok()) << servers.status();
  ASSERT_EQ(servers->record.tasks_size(), 1);
  const record::Task& server = servers->record.tasks(0);
  EXPECT_THAT(server.start().argv(),
              testing::IsSupersetOf(
                  {"--standing", "--checkpoint_dir={task_dir}/checkpoints", "--checkpoint_every=9"}));
  EXPECT_FALSE(server.ends_with_others());
  EXPECT_EQ(server.start().restart(), agent::RESTART_POLICY_ALWAYS);
  EXPECT_TRUE(servers->record.standing());
  EXPECT_FALSE(servers->record.elastic());
  EXPECT_TRUE(servers->record.hears_of_workers());
  servers->record.set_id("pool-1");
  auto* const member = servers->record.mutable_cluster()->add_members();
  member->set_task("ps:0");
  member->set_host("a");

  const auto job = ParseJob("name: j\nmodel: mnist_mlp\nreplicas: {worker: {count: 1}}\n", "job.yaml",
                            "/home/me", {.servers_stand = true});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto plan =
      MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}, .servers = &servers->record});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->record.tasks_size(), 1);
  EXPECT_EQ(plan->record.tasks(0).host(), "b") << "where no server is";
  EXPECT_TRUE(plan->record.elastic());
  EXPECT_EQ(WhyNotElastic(*job, &servers->record), "");
  EXPECT_EQ(plan->record.servers().job(), "pool-1");

  // Its tables would go back, and all else would not.
  const auto hybrid =
      ParseJob("name: j\nmodel: wide_deep\nstrategy: hybrid\nreplicas: {worker: {count: 1}}\n", "job.yaml",
               "/home/me", {.servers_stand = true});
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  const auto plan_hybrid = [&] {
    return MakePlan(*hybrid, *inventory,
                    {.installation = {.trainer = trainer.path()}, .servers = &servers->record})
        .status();
  };
  EXPECT_THAT(std::string(plan_hybrid().message()), testing::HasSubstr("nobody can go back to a checkpoint"));
  servers->record.mutable_tasks(0)->mutable_start()->add_argv("--durability=journal");
  EXPECT_TRUE(plan_hybrid().ok()) << plan_hybrid();
  servers->record.set_hears_of_workers(false);
  EXPECT_THAT(WhyNotElastic(*job, &servers->record),
              testing::HasSubstr("pool-1 know those that there were at first"));
  const auto counted =
      MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}, .servers = &servers->record});
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_FALSE(counted->record.elastic());
  // Where its workers could not reach them.
  servers->record.mutable_hosts(0)->set_data_address("127.0.1.1");
  EXPECT_THAT(std::string(plan_hybrid().message()), testing::HasSubstr("which other hosts cannot reach"));
  for (const char* address : {"::1", "fe80::1%eth0", "FE80::1"}) {
    servers->record.mutable_hosts(0)->set_data_address(address);
    EXPECT_THAT(std::string(plan_hybrid().message()), testing::HasSubstr("which other hosts cannot reach"))
        << address;
  }
}

TEST(WhyNotElastic, WhereAllWorkersAreCountedOnce) {
  const auto why = [](const std::string& rest) {
    const auto job = ParseJob("name: j\n" + rest, "job.yaml", "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    return WhyNotElastic(*job);
  };
  const std::string servers = "model: mnist_mlp\nreplicas: {ps: {count: 2}, worker: {count: 1}}\n";
  EXPECT_EQ(why("model: mnist_mlp\nstrategy: allreduce\nreplicas: {worker: {count: 1}}\n"), "");
  EXPECT_EQ(why(servers), "");
  EXPECT_EQ(why(servers + "checkpoint: {every_steps: 9, buddy: true}\n"), "");
  EXPECT_EQ(why(servers + "update: {mode: sync}\n"), "");
  EXPECT_THAT(why(servers + "update: {mode: sync, aggregate: 1}\n"), testing::HasSubstr("`aggregate`"));
  EXPECT_THAT(why(servers + "update: {mode: bounded, staleness: 2}\n"), testing::HasSubstr("bounded"));
  EXPECT_THAT(why(servers + "durability: journal\n"), testing::HasSubstr("journal"));
  EXPECT_THAT(why(servers + "durability: replicated\n"), testing::HasSubstr("replicated"));
  EXPECT_THAT(why("model: wide_deep\nstrategy: hybrid\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n"),
              testing::HasSubstr("hybrid"));
  EXPECT_THAT(why("program: [x]\nreplicas: {worker: {count: 1}}\n"), testing::HasSubstr("its program"));
}

TEST(PlanOfAModel, AllTasksKnowTheTransport) {
  for (const int task : {0, 1}) {
    EXPECT_THAT(FlagsOfAModel("transport: tcp\n", task), testing::Contains("--transport=tcp"));
    EXPECT_THAT(FlagsOfAModel("", task), testing::Not(testing::Contains(testing::HasSubstr("transport"))));
  }
}

// Only servers write checkpoints, and where other parameters were is none of them.
TEST(PlanOfAModel, ServersOfOtherParametersHaveAnotherFolderOfCheckpoints) {
  const auto checkpoint_flags = [&](const std::string& rest, int task) {
    std::vector<std::string> flags = FlagsOfAModel(rest, task);
    std::erase_if(flags, [](const auto& flag) { return flag.find("checkpoint") == std::string::npos; });
    return flags;
  };
  const std::string every = "checkpoint: {every_steps: 20, keep: 2}\n";
  const std::vector<std::string> flags = checkpoint_flags(every, 0);
  EXPECT_THAT(flags, testing::ElementsAre(testing::StartsWith("--checkpoint_dir={task_dir}/checkpoints-"),
                                          "--checkpoint_every=20", "--keep_checkpoints=2"));
  EXPECT_THAT(checkpoint_flags(every, 1), testing::IsEmpty());
  EXPECT_THAT(checkpoint_flags("", 0), testing::IsEmpty());
  EXPECT_EQ(checkpoint_flags(every + "train: {steps: 5}\n", 0), flags);
  EXPECT_NE(checkpoint_flags(every + "train: {seed: 5}\n", 0)[0], flags[0]);
}

TEST(PlanOfAModel, WorkersKnowWhenRowsAreDropped) {
  const std::string after = "update: {evict_rows_after: 5}\n";
  EXPECT_THAT(FlagsOfAModel(after + "checkpoint: {every_steps: 20}\n", 1),
              testing::IsSupersetOf({"--evict_rows_after=5", "--checkpoint_every=20"}));
  EXPECT_THAT(FlagsOfAModel(after, 1), testing::Contains("--evict_rows_after=5"));
}

TEST(PlanOfAModel, WithAllReduceOnlyTheChiefIsWaitedFor) {
  TemporaryDirectory trainer;
  ASSERT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
  const auto job =
      ParseJob("name: j\nmodel: mnist_mlp\nstrategy: allreduce\nreplicas: {worker: {count: 3, min: 2}}\n",
               "job.yaml", "/home/me");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto plan = MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->record.tasks_size(), 3);
  for (const record::Task& task : plan->record.tasks()) {
    EXPECT_EQ(task.ends_with_others(), task.id() != "worker:0");
    EXPECT_THAT(task.start().argv(), testing::IsSupersetOf({"--strategy=allreduce", "--min_workers=2"}));
  }
  for (const reconcile::DesiredTask& task : DesiredOf(plan->record).tasks) {
    EXPECT_EQ(task.ends_last, task.id != "worker:0") << "they end once it has its result";
  }
}

// NCCL has no encryption, whatever the rest of the job has.
TEST(PlanOfAModel, GpusOfSeveralHostsNeedATrustedNetwork) {
  TemporaryDirectory trainer;
  ASSERT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto plan = [&](const std::string& keys, int workers = 2) {
    const auto inventory =
        ParseInventory("hosts: {a: {ssh: 127.0.0.1}, b: {ssh: 127.0.0.2}}\n", "hosts.yaml", "/home/me");
    const auto job = ParseJob(absl::StrFormat("name: j\nmodel: mnist_mlp\nstrategy: allreduce\n"
                                              "replicas: {worker: {count: %d}}\n%s",
                                              workers, keys),
                              "job.yaml", "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    return MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}});
  };
  const std::string why =
      "the GPUs of 2 hosts would exchange gradients by NCCL, which has no encryption: add `trusted_network: "
      "true` if nobody else can listen between these hosts, or `collective: native`";
  EXPECT_EQ(plan("train: {device: cuda:0}\n").status(), InvalidArgument("job.yaml:5:17: %s", why));
  EXPECT_EQ(plan("collective: nccl\n").status(), InvalidArgument("job.yaml:5:13: %s", why));
  for (const std::string keys :
       {"", "train: {device: cpu}\n", "train: {device: cuda}\ncollective: native\n",
        "train: {device: cuda}\ntrusted_network: true\n", "collective: nccl\ntrusted_network: true\n"}) {
    EXPECT_TRUE(plan(keys).ok()) << keys << plan(keys).status();
  }
  EXPECT_TRUE(plan("collective: nccl\n", 1).ok()) << "there is one host";
  const auto trusted = plan("collective: nccl\ntrusted_network: true\n");
  EXPECT_THAT(trusted->record.tasks(0).start().argv(),
              testing::IsSupersetOf({"--collective=nccl", "--trusted_network"}));
}

// What a server keeps to from its first worker on is part of what it is, so that a change starts it again.
TEST(PlanOfAModel, AServersSpecHashCoversHowParametersAreUpdated) {
  TemporaryDirectory trainer;
  ASSERT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
  const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const auto hash = [&](const std::string& train) {
    const auto job = ParseJob(
        "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ntrain: {" + train + "}\n",
        "job.yaml", "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    const auto plan = MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}});
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->record.tasks(0).ends_with_others());
    return plan->record.tasks(0).spec_hash();
  };
  const std::vector<std::string> different = {
      "steps: 5",
      "optimizer: sgd",
      "optimizer: sgd, learning_rate: 0.25",
      "optimizer: sgd, weight_decay: 0.25",
      "optimizer: momentum",
      "optimizer: momentum, momentum: 0.25",
      "optimizer: momentum, nesterov: true",
      "optimizer: adam",
      "optimizer: adam, beta1: 0.25",
      "optimizer: adam, beta2: 0.25",
      "optimizer: adam, epsilon: 0.25",
      "optimizer: adagrad",
      "optimizer: adagrad, initial_accumulator: 0.25",
      "optimizer: ftrl",
      "optimizer: ftrl, l1: 0.25",
      "optimizer: ftrl, l2: 0.25",
      "schedule: {warmup_steps: 5}",
      "schedule: {kind: constant}",
      "schedule: {kind: inverse}",
      "schedule: {kind: inverse, gamma: 0.25}",
      "schedule: {kind: inverse, power: 0.25}",
      "schedule: {kind: step, step_size: 5}",
      "schedule: {kind: step, step_size: 5, gamma: 0.25}",
      "steps: 5, schedule: {kind: cosine}",
      "steps: 6, schedule: {kind: cosine}",
      "steps: 5, schedule: {kind: cosine, final_fraction: 0.25}",
      "steps: 5, schedule: {kind: cosine, decay_steps: 5}",
  };
  std::map<std::string, std::string> seen;
  for (const std::string& train : different) {
    const auto [other, is_new] = seen.emplace(hash(train), train);
    EXPECT_TRUE(is_new) << train << " is the same as " << other->second;
  }
  // More steps are no reason to begin again, unless the rate depends on them.
  EXPECT_EQ(hash("steps: 6"), hash("steps: 5"));
  EXPECT_EQ(hash("steps: 6, schedule: {kind: cosine, decay_steps: 5}"),
            hash("steps: 5, schedule: {kind: cosine, decay_steps: 5}"));
}

class DataOfAPlan : public ::testing::Test {
 protected:
  DataOfAPlan() {
    Write("trainer/required_glibc", "2.34\n");
    WriteMnist(Path("cache"));
    WriteMnist(Path("mine"));
    Write("mine/mnist/mine", "mine");
  }

  absl::StatusOr<JobPlan> TryPlan(const std::string& data, const std::string& data_folder,
                                  const std::string& data_cache) {
    const auto job = ParseJob(
        "name: j\ndata: " + data + "\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n",
        Path("job.yaml"), "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
    EXPECT_TRUE(inventory.ok()) << inventory.status();
    return MakePlan(*job, *inventory,
                    {.installation = {.trainer = Path("trainer")},
                     .data_folder = data_folder.empty() ? "" : Path(data_folder),
                     .data_cache = data_cache.empty() ? "" : Path(data_cache)});
  }
  JobPlan Plan(const std::string& data_folder, const std::string& data_cache) {
    const auto plan = TryPlan("auto", data_folder, data_cache);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or(JobPlan());
  }
  // The files of the data that the plan sends, sorted.
  std::vector<std::string> Sent(const JobPlan& plan) {
    for (const auto& [sha256, content] : plan.contents) {
      if (content.name != "data") continue;
      const TemporaryDirectory unpacked;
      EXPECT_TRUE(UnpackArchive(*content.bytes, unpacked.path()).ok());
      std::vector<std::string> names;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(unpacked.path())) {
        if (!entry.is_regular_file()) continue;
        names.push_back(entry.path().lexically_relative(unpacked.path()).string());
      }
      std::sort(names.begin(), names.end());
      return names;
    }
    return {};
  }
  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(Path(name)).parent_path()).ok());
    ASSERT_TRUE(WriteFileAtomically(Path(name), bytes).ok());
  }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  TemporaryDirectory folder_;
};

TEST_F(DataOfAPlan, IsMusterDataThenTheCacheThenSynthetic) {
  const JobPlan mine = Plan("mine", "cache");
  EXPECT_EQ(mine.data, Path("mine"));
  EXPECT_THAT(Sent(mine), ::testing::AllOf(::testing::SizeIs(5), ::testing::Contains("mnist/mine")));
  const JobPlan cached = Plan("", "cache");
  EXPECT_EQ(cached.data, Path("cache"));
  EXPECT_EQ(Sent(cached).size(), 4u);
  for (const std::string cache : {"nowhere", ""}) {
    const JobPlan synthetic = Plan("", cache);
    EXPECT_EQ(synthetic.data,
              "synthetic (for the real set: `muster data fetch mnist`, or MUSTER_DATA=FOLDER with mnist/)");
    EXPECT_TRUE(Sent(synthetic).empty());
  }
}

TEST_F(DataOfAPlan, LeavesAHalfFetchedSetInTheCache) {
  ASSERT_TRUE(RemoveTree(Path("cache/mnist/t10k-images-idx3-ubyte")).ok());
  Write("cache/mnist/t10k-images-idx3-ubyte.gz.part", "half");
  EXPECT_TRUE(Sent(Plan("", "cache")).empty());
}

// A folder of many sets, or a whole disk.
TEST_F(DataOfAPlan, HasNothingToDoWithWhatIsBesideTheSet) {
  const auto hash = [](const JobPlan& plan) {
    for (const auto& [sha256, content] : plan.contents) {
      if (content.name == "data") return sha256;
    }
    return std::string();
  };
  const JobPlan before = Plan("mine", "");
  std::filesystem::create_directory_symlink("/usr/share", Path("mine/imagenet"));
  Write("mine/other/" + std::string(101, 'x'), "");
  EXPECT_EQ(hash(Plan("mine", "")), hash(before));
  // Nor does it matter where the set is.
  std::filesystem::rename(Path("mine/mnist"), Path("mnist-v1"));
  std::filesystem::create_directory_symlink("../mnist-v1", Path("mine/mnist"));
  const JobPlan linked = Plan("mine", "");
  EXPECT_EQ(Sent(linked), Sent(before));
  EXPECT_EQ(hash(linked), hash(before));
}

// A job that runs gets others like its own, wherever it is driven: there may be neither its file nor its
// data.
TEST_F(DataOfAPlan, StaysThatOfAJobThatRunsWhereItIsKept) {
  const auto inventory = ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  for (const auto& [data, folder] : {std::pair<std::string, std::string>("auto", "mine"),
                                     {"auto", ""},
                                     {Path("mine"), ""},
                                     {"{on_hosts: ~/sets}", ""}}) {
    auto before = TryPlan(data, folder, "");
    ASSERT_TRUE(before.ok()) << before.status();
    before->record.mutable_cluster()->set_generation(1);
    const auto job = JobOf(before->record);
    ASSERT_TRUE(job.ok()) << job.status();
    const auto after = MakePlan(
        *job, *inventory, {.data_folder = "/nowhere", .running = &before->record, .keeps_contents = true});
    ASSERT_TRUE(after.ok()) << after.status();
    record::JobRecord expected = before->record;
    expected.clear_cluster();
    EXPECT_TRUE(after->record.SerializeAsString() == expected.SerializeAsString()) << data;
    EXPECT_TRUE(after->contents.empty());
  }
}

TEST_F(DataOfAPlan, MustHoldTheSetOfTheModel) {
  const std::string holds_not =
      " does not hold mnist/ with its files; `muster data fetch mnist DIR` brings them";
  Write("other/census/adult.data", "mine");
  Write("half/mnist/train-images-idx3-ubyte", "mine");
  for (const std::string folder : {"other", "half"}) {
    const auto in_job = TryPlan(Path(folder), "", "cache");
    EXPECT_EQ(ExitCodeFor(in_job.status()), 2);
    EXPECT_EQ(in_job.status().message(), Path("job.yaml") + ":2:7: " + Path(folder) + holds_not);
    const auto in_variable = TryPlan("auto", folder, "cache");
    EXPECT_EQ(ExitCodeFor(in_variable.status()), 2);
    EXPECT_EQ(in_variable.status().message(), "MUSTER_DATA: " + Path(folder) + holds_not);
  }
  EXPECT_TRUE(TryPlan(Path("mine"), "", "").ok());
}

record::JobRecord RecordOn(const std::string& host, uint64_t generation = 0) {
  record::JobRecord record;
  record.set_id("j-1");
  record.add_hosts()->set_name(host);
  record.mutable_cluster()->set_generation(generation);
  return record;
}

TEST(ContinueJob, KeepsOldHostsOnceTasksMayRunThere) {
  for (const uint64_t generation : {0, 1}) {
    record::JobRecord record = RecordOn("new");
    ContinueJob(RecordOn("old", generation), &record);
    EXPECT_EQ(record.id(), "j-1");
    ASSERT_EQ(record.hosts_size(), generation == 0 ? 1 : 2);
    EXPECT_EQ(record.hosts(0).name(), "new");
    if (generation > 0) {
      EXPECT_EQ(record.hosts(1).name(), "old");
    }
  }
  // One whose ending is decided is counted by what it was.
  record::JobRecord ending = RecordOn("old");
  ending.mutable_cluster()->mutable_ending()->set_message("stopped on request");
  record::JobRecord record = RecordOn("new");
  ContinueJob(ending, &record);
  EXPECT_EQ(record.hosts_size(), 1);
}

// Of a program on hosts w-1 to w-4 with the label `work`, and s-1 without.
class PlanWithSpares : public ::testing::Test {
 protected:
  record::JobRecord Plan(const std::string& job_text, const record::JobRecord* running = nullptr) {
    const auto plan = TryPlan(job_text, running);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->record;
  }
  static absl::StatusOr<JobPlan> TryPlan(const std::string& job_text, const record::JobRecord* running) {
    const std::string hosts = "  w-[1:4]: {labels: [work], data: 10.0.0.1}\n  s-1: {data: 10.0.0.1}\n";
    const auto inventory = ParseInventory("hosts:\n" + hosts, "hosts.yaml", "/home/me");
    EXPECT_TRUE(inventory.ok()) << inventory.status();
    const auto job = ParseJob("name: j\n" + job_text, "job.yaml", "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    TemporaryDirectory trainer;
    EXPECT_TRUE(WriteFileAtomically(trainer.path() / "required_glibc", "2.34\n").ok());
    return MakePlan(*job, *inventory, {.installation = {.trainer = trainer.path()}, .running = running});
  }
  static std::vector<std::string> SparesOf(const record::JobRecord& record, const std::string& task) {
    const record::Task* found = Named(record.tasks(), task, &record::Task::id);
    EXPECT_NE(found, nullptr) << task;
    return {found->spares().begin(), found->spares().end()};
  }
};

TEST_F(PlanWithSpares, WorkersThatJoinMakeTheStepsOfThoseThatRun) {
  const auto job = [](int workers, const std::string& more = "", const std::string& min = "") {
    return "model: mnist_mlp\nstrategy: allreduce\nreplicas: {worker: {count: " + std::to_string(workers) +
           ", on: work" + min + "}}\ntrain: {batch_size: 2" + more + "}\n";
  };
  record::JobRecord running = Plan(job(2));
  EXPECT_TRUE(running.elastic());
  EXPECT_EQ(running.first_workers(), 2);
  running.mutable_cluster()->set_generation(3);
  running.mutable_cluster()->set_fixed(true);
  const record::JobRecord grown = Plan(job(4), &running);
  EXPECT_EQ(grown.first_workers(), 2);
  EXPECT_EQ(grown.tasks(0).spec_hash(), running.tasks(0).spec_hash());
  EXPECT_EQ(grown.tasks(2).host(), "w-3");
  EXPECT_FALSE(grown.tasks(1).can_fail());
  EXPECT_TRUE(grown.tasks(2).can_fail()) << "whatever becomes of it, the others go on";
  // Fewer, and as many as at first again.
  record::JobRecord shrunk = Plan(job(1), &running);
  EXPECT_EQ(shrunk.fewest_workers(), 1);
  *shrunk.mutable_cluster() = running.cluster();
  const record::JobRecord again = Plan(job(2), &shrunk);
  EXPECT_EQ(again.first_workers(), 2);
  EXPECT_EQ(again.fewest_workers(), 1);
  EXPECT_TRUE(again.tasks(1).can_fail());
  EXPECT_EQ(grown.min_workers(), 0) << "nobody has left";
  EXPECT_EQ(again.min_workers(), 1);
  EXPECT_EQ(Plan(job(2, "", ", min: 1"), &shrunk).min_workers(), 0) << "the job file says it";
  EXPECT_EQ(
      TryPlan(job(5), &running).status().message(),
      "job.yaml: the batch of the 2 workers that the training began with has 4 samples: 5 workers cannot "
      "share it");
  running.mutable_cluster()->set_fixed(false);
  EXPECT_EQ(Plan(job(4), &running).first_workers(), 4) << "all of them begin anew";
}

TEST_F(PlanWithSpares, AHostWithTheLabelAndWithoutATaskIsASpareOne) {
  const record::JobRecord record = Plan("program: [x]\nreplicas: {worker: {count: 2, on: work, min: 1}}\n");
  ASSERT_EQ(record.spare_hosts_size(), 2);
  EXPECT_EQ(record.spare_hosts(0).name(), "w-3");
  EXPECT_THAT(SparesOf(record, "worker:1"), testing::ElementsAre("w-1", "w-2", "w-3", "w-4"));
  EXPECT_EQ(record.max_missing(), 1);
  EXPECT_FALSE(record.tasks(0).can_be_missing()) << "the chief";
  EXPECT_TRUE(record.tasks(1).can_be_missing());
}

TEST(PlanOfAProgramWithSpares, AHostThatNobodyElseReachesIsNone) {
  const auto inventory = ParseInventory(
      "hosts: {a: {ssh: 10.0.0.1}, b: {ssh: localhost}, c: {ssh: 10.0.0.3}}\n", "hosts.yaml", "/home/me");
  const auto job =
      ParseJob("name: j\nprogram: [x]\nreplicas: {worker: {count: 1}}\n", "job.yaml", "/home/me");
  const auto plan = MakePlan(*job, *inventory, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->record.spare_hosts_size(), 1);
  EXPECT_EQ(plan->record.spare_hosts(0).name(), "c");
  EXPECT_THAT(plan->record.tasks(0).spares(), testing::ElementsAre("a", "c"));
}

TEST_F(PlanWithSpares, AServerHasOneOnlyWhereItsPartCanComeFrom) {
  const std::string job = "model: mnist_mlp\nreplicas: {ps: {count: 2, on: work}, worker: {count: 1}}\n";
  EXPECT_THAT(SparesOf(Plan(job), "ps:0"), testing::IsEmpty());
  EXPECT_THAT(SparesOf(Plan(job + "checkpoint: {every_steps: 9}\n"), "ps:0"), testing::IsEmpty());
  EXPECT_THAT(SparesOf(Plan(job + "checkpoint: {every_steps: 9, buddy: true}\n"), "ps:0"),
              testing::Contains("w-4"));
  EXPECT_THAT(SparesOf(Plan(job + "durability: replicated\n"), "ps:0"), testing::Contains("w-4"));
}

TEST_F(PlanWithSpares, AnotherRunLeavesATaskOnItsSpareHostAndDoesNotStartItAgain) {
  const std::string job = "program: [x]\nreplicas: {worker: {count: 2, on: work}}\n";
  record::JobRecord running = Plan(job);
  running.mutable_cluster()->set_generation(3);
  running.mutable_tasks(1)->set_host("w-3");
  const record::JobRecord plan = Plan(job, &running);
  EXPECT_EQ(plan.tasks(1).host(), "w-3");
  EXPECT_NE(Named(plan.hosts(), "w-3", &record::Host::name), nullptr);
  EXPECT_EQ(Named(plan.spare_hosts(), "w-3", &record::Host::name), nullptr);
  EXPECT_EQ(plan.tasks(1).spec_hash(), running.tasks(1).spec_hash());
}

}  // namespace
}  // namespace muster
