#include "launcher/running_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Tasks as "ps:0@a", in force under generation 1.
record::JobRecord Running(const std::vector<std::pair<std::string, std::string>>& tasks) {
  record::JobRecord record;
  record.set_id("j-1");
  record.set_elastic(true);
  record.mutable_cluster()->set_generation(1);
  record.mutable_cluster()->set_fixed(true);
  for (const auto& [id, host] : tasks) {
    record::Task* const task = record.add_tasks();
    task->set_id(id);
    task->set_host(host);
    task->set_is_chief(id == "worker:0");
    task->set_tensorflow_flags(true);
  }
  return record;
}

TEST(GoesOn, WhereOnlyWorkersOfAnElasticJobJoinAndLeave) {
  const auto two = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  const auto three = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}, {"worker:2", "a"}});
  EXPECT_TRUE(GoesOn(two, two));
  EXPECT_TRUE(GoesOn(two, three));
  EXPECT_TRUE(GoesOn(three, two));
  EXPECT_FALSE(GoesOn(two, Running({{"ps:0", "a"}, {"ps:1", "a"}, {"worker:0", "b"}, {"worker:1", "c"}})));
  EXPECT_FALSE(GoesOn(two, Running({{"worker:0", "b"}, {"worker:1", "c"}})));
  EXPECT_FALSE(GoesOn(two, Running({{"ps:0", "a"}, {"worker:0", "c"}, {"worker:1", "c"}}))) << "elsewhere";
  EXPECT_FALSE(GoesOn(Running({{"worker:1", "a"}}), Running({{"worker:0", "a"}}))) << "nobody goes on";
  record::JobRecord plan = three;
  plan.set_elastic(false);
  EXPECT_FALSE(GoesOn(two, plan));
  EXPECT_TRUE(GoesOn(three, plan));
}

// Scaled down, and up again before the first has come about.
TEST(GoesOn, WhoHasNotLeftTheClusterYetIsWhereItIsThere) {
  record::JobRecord running = Running({{"worker:0", "a"}});
  for (const auto& [task, host] : {std::pair("worker:0", "a"), std::pair("worker:1", "b")}) {
    running.mutable_cluster()->add_members()->set_task(task);
    running.mutable_cluster()->mutable_members()->rbegin()->set_host(host);
  }
  EXPECT_EQ(PlacesOf(running).at("worker:1"), "b");
  EXPECT_TRUE(GoesOn(running, Running({{"worker:0", "a"}, {"worker:1", "b"}})));
  EXPECT_FALSE(GoesOn(running, Running({{"worker:0", "a"}, {"worker:1", "c"}})));
}

TEST(GoesOn, NotWhereNothingIsInForce) {
  record::JobRecord running = Running({{"worker:0", "a"}});
  const record::JobRecord plan = running;
  running.mutable_cluster()->set_fixed(false);
  EXPECT_FALSE(GoesOn(running, plan));
  running.mutable_cluster()->set_fixed(true);
  running.mutable_cluster()->mutable_ending()->set_message("stopped on request");
  EXPECT_FALSE(GoesOn(running, plan));
}

TEST(FirstWorkers, AreCountedInARecordThatDoesNotSay) {
  record::JobRecord running = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  EXPECT_EQ(FirstWorkers(running), 2);
  running.set_first_workers(5);
  EXPECT_EQ(FirstWorkers(running), 5);
}

TEST(ContinueJob, AnotherClusterIsNoneThatIsInForce) {
  const auto running = Running({{"ps:0", "a"}, {"worker:0", "b"}});
  record::JobRecord joined = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  ContinueJob(running, &joined);
  EXPECT_TRUE(joined.cluster().fixed());
  record::JobRecord other = Running({{"ps:0", "a"}, {"ps:1", "c"}, {"worker:0", "b"}});
  ContinueJob(running, &other);
  EXPECT_FALSE(other.cluster().fixed());
  EXPECT_EQ(other.cluster().generation(), 1u);
}

TEST(ContinueJob, AHostThatIsUsedNoMoreIsThereOnceThoughItIsASpareOne) {
  record::JobRecord running = Running({{"worker:0", "a"}, {"worker:1", "b"}});
  for (const char* host : {"a", "b"}) running.add_hosts()->set_name(host);
  running.mutable_hosts(1)->add_contents("old");
  record::JobRecord plan = Running({{"worker:0", "a"}});
  plan.add_hosts()->set_name("a");
  plan.add_spare_hosts()->set_name("b");
  plan.mutable_spare_hosts(0)->add_contents("new");
  ContinueJob(running, &plan);
  EXPECT_EQ(plan.spare_hosts_size(), 0);
  ASSERT_EQ(plan.hosts_size(), 2);
  EXPECT_EQ(plan.hosts(1).name(), "b");
  EXPECT_EQ(plan.hosts(1).contents(0), "new");
}

TEST(ContinueJob, AHostThatAJobGetsOnceItHasBegunIsNotReachedYet) {
  record::JobRecord running = Running({{"worker:0", "a"}, {"worker:1", "b"}});
  for (const char* host : {"a", "b"}) running.add_hosts()->set_name(host);
  running.mutable_hosts(1)->set_unreached(true);
  const auto plan_of = [] {
    record::JobRecord plan = Running({{"worker:0", "a"}, {"worker:1", "b"}, {"worker:2", "c"}});
    for (const char* host : {"a", "b", "c"}) plan.add_hosts()->set_name(host);
    return plan;
  };
  record::JobRecord plan = plan_of();
  ContinueJob(running, &plan);
  EXPECT_FALSE(plan.hosts(0).unreached());
  EXPECT_TRUE(plan.hosts(1).unreached());
  EXPECT_TRUE(plan.hosts(2).unreached());
  EXPECT_FALSE(DesiredOf(plan).hosts[0].unreached);
  EXPECT_TRUE(DesiredOf(plan).hosts[2].unreached);

  // What begins it has all of them first.
  running.mutable_cluster()->set_generation(0);
  record::JobRecord first = plan_of();
  ContinueJob(running, &first);
  EXPECT_FALSE(first.hosts(2).unreached());
}

TEST(UseSpareHost, IsOneThatIsNotReachedYet) {
  record::JobRecord record = Running({{"worker:0", "a"}});
  record.add_hosts()->set_name("a");
  record.add_spare_hosts()->set_name("b");
  for (const char* host : {"a", "b"}) UseSpareHost(host, &record);
  EXPECT_FALSE(record.hosts(0).unreached());
  EXPECT_TRUE(record.hosts(1).unreached());
}

record::JobRecord StandingServers(const std::string& port) {
  record::JobRecord servers = Running({{"ps:0", "s"}});
  servers.set_id("pool-1");
  servers.set_standing(true);
  servers.set_authority_certificate_pem("certificate of pool");
  auto* const member = servers.mutable_cluster()->add_members();
  member->set_task("ps:0");
  member->set_host("s");
  member->set_data_address("10.0.0.9");
  member->set_port(static_cast<uint32_t>(std::stoi(port)));
  return servers;
}

TEST(UseServers, WorkersAreToldWhereTheyAreAndWhichJobThisIs) {
  record::JobRecord record = Running({{"worker:0", "a"}});
  record.set_elastic(false);
  UseServers(StandingServers("20009"), &record);
  ASSERT_TRUE(BeginJob(&record).ok());
  EXPECT_EQ(record.authority_certificate_pem(), "certificate of pool");
  record.mutable_servers()->set_number(100);
  const auto cluster =
      std::make_shared<reconcile::Cluster>(reconcile::Cluster{{"worker:0", "a", "10.0.0.1", 20001}});
  const auto start = [&](uint64_t base_generation) {
    return *MakeStartRequest(record, {.task = "worker:0",
                                      .generation = 7,
                                      .base_generation = base_generation,
                                      .follows_cluster = true,
                                      .cluster = cluster});
  };
  EXPECT_THAT(start(1).argv(), Contains("--ps_hosts=10.0.0.9:20009"));
  EXPECT_THAT(start(1).argv(), Contains("--job_number=101"));
  EXPECT_THAT(start(1).files(0).content(), HasSubstr("\"ps\":[\"10.0.0.9:20009\"]"));
  UseServers(StandingServers("20010"), &record);
  EXPECT_THAT(start(3).argv(), Contains("--ps_hosts=10.0.0.9:20010"));
  EXPECT_THAT(start(3).argv(), Contains("--job_number=103")) << "all of them are started anew";
}

// With a thousand tasks, what all are told of all would else be made a thousand times.
TEST(MakeStartRequest, StartsOfOneClusterShareItsTexts) {
  record::JobRecord record =
      Running({{"ps:0", "a"}, {"worker:0", "a"}, {"worker:1", "b"}, {"worker:2", "a"}});
  for (record::Task& task : *record.mutable_tasks()) task.set_rank_environment(true);
  const auto cluster =
      std::make_shared<reconcile::Cluster>(reconcile::Cluster{{"ps:0", "a", "10.0.0.1", 20001},
                                                              {"worker:0", "a", "10.0.0.1", 20002},
                                                              {"worker:1", "b", "10.0.0.2", 20001},
                                                              {"worker:2", "a", "10.0.0.1", 20003}});
  reconcile::StartTask start{.generation = 7, .follows_cluster = true, .cluster = cluster};
  ClusterTexts texts;
  const auto expect_as_alone = [&] {
    for (const record::Task& task : record.tasks()) {
      start.task = task.id();
      EXPECT_EQ(MakeStartRequest(record, start, texts)->SerializeAsString(),
                MakeStartRequest(record, start)->SerializeAsString())
          << task.id();
      const TaskId id = *ParseTaskId(task.id());
      EXPECT_EQ(texts.FlagsOf(id), ToFlags(texts.cluster(), id));
      EXPECT_EQ(texts.TfConfigOf(id), ToTfConfig(texts.cluster(), id));
    }
  };
  expect_as_alone();
  const char* const text = texts.file().data();
  expect_as_alone();
  EXPECT_EQ(texts.file().data(), text) << "it was made again";
  EXPECT_EQ(texts.LocalRankOf("worker:2"), 1);
  start.generation = 8;
  expect_as_alone();
  EXPECT_THAT(texts.file(), HasSubstr("8"));
  UseServers(StandingServers("20009"), &record);
  expect_as_alone();
  EXPECT_THAT(texts.file(), HasSubstr("10.0.0.9:20009"));
}

record::JobRecord OnServers(const std::string& port, uint64_t number,
                            const std::vector<std::pair<std::string, std::string>>& tasks) {
  record::JobRecord record = Running(tasks);
  record.set_elastic(false);
  UseServers(StandingServers(port), &record);
  record.mutable_servers()->set_number(number);
  return record;
}

// Who drives the job next has to tell them.
TEST(ContinueJob, TasksThatGoOnKnowWhereServersWere) {
  const record::JobRecord running = OnServers("20009", 100, {{"worker:0", "a"}});
  record::JobRecord plan = OnServers("20010", 0, {{"worker:0", "a"}});
  ContinueJob(running, &plan);
  EXPECT_TRUE(plan.cluster().fixed());
  EXPECT_EQ(plan.servers().number(), 100u);
  EXPECT_EQ(plan.servers().members(0).port(), 20009u);
}

TEST(ContinueJob, ServersBeginAnewForAllTasksOrForNone) {
  const record::JobRecord running = OnServers("20009", 100, {{"chief:0", "a"}, {"worker:0", "b"}});
  record::JobRecord changed = OnServers("20010", 0, {{"chief:0", "a"}, {"worker:0", "b"}});
  changed.mutable_tasks(1)->set_spec_hash("another");
  ContinueJob(running, &changed);
  EXPECT_FALSE(changed.cluster().fixed());
  EXPECT_EQ(changed.servers().number(), 100u);
  EXPECT_EQ(changed.servers().members(0).port(), 20010u);
  record::JobRecord elsewhere = OnServers("20009", 0, {{"chief:0", "a"}, {"worker:0", "c"}});
  ContinueJob(running, &elsewhere);
  EXPECT_FALSE(elsewhere.cluster().fixed());
  record::JobRecord fewer = OnServers("20009", 0, {{"chief:0", "a"}});
  ContinueJob(running, &fewer);
  EXPECT_FALSE(fewer.cluster().fixed());
  // Workers may come and go.
  record::JobRecord grown = OnServers("20010", 0, {{"chief:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  grown.set_elastic(true);
  ContinueJob(running, &grown);
  EXPECT_TRUE(grown.cluster().fixed());
  EXPECT_EQ(grown.servers().members(0).port(), 20009u);
  grown.mutable_tasks(0)->set_spec_hash("another");
  ContinueJob(running, &grown);
  EXPECT_FALSE(grown.cluster().fixed());
  // It had servers of its own before.
  record::JobRecord own = Running({{"ps:0", "a"}, {"worker:0", "a"}});
  own.set_authority_certificate_pem("own");
  record::JobRecord now = OnServers("20009", 0, {{"worker:0", "a"}});
  ContinueJob(own, &now);
  EXPECT_FALSE(now.cluster().fixed());
  EXPECT_EQ(now.servers().number(), 0u) << "it has none yet";
  EXPECT_EQ(now.authority_certificate_pem(), "certificate of pool");
}

std::string SpecHash(const record::JobRecord& record, size_t task) {
  return DesiredOf(record).tasks[task].spec_hash;
}

TEST(RestartTasks, AreOtherTasksToTheirAgentsWhoeverDrivesTheJobNext) {
  const record::JobRecord running = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  record::JobRecord restarted = running;
  RestartTasks({"worker:1"}, &restarted);
  EXPECT_EQ(SpecHash(restarted, 0), SpecHash(running, 0));
  EXPECT_NE(SpecHash(restarted, 2), SpecHash(running, 2));
  EXPECT_TRUE(GoesOn(running, restarted));
  EXPECT_TRUE(HasSameTasks(running, restarted)) << "to a plan";
  record::JobRecord plan = running;
  ContinueJob(restarted, &plan);
  EXPECT_EQ(SpecHash(plan, 2), SpecHash(restarted, 2));
  RestartTasks({"worker:1"}, &plan);
  EXPECT_NE(SpecHash(plan, 2), SpecHash(restarted, 2)) << "once more";
}

TEST(DesiredOf, AServerNeedsItsFolderIfNobodyElseHasWhatItKeeps) {
  record::JobRecord record = Running({{"ps:0", "a"}, {"worker:0", "b"}});
  record.mutable_tasks(0)->set_follows_cluster(true);
  const auto needs_it = [&] { return DesiredOf(record).tasks[0].needs_its_folder; };
  EXPECT_FALSE(needs_it());
  record.mutable_tasks(0)->mutable_start()->add_argv("--checkpoint_dir={task_dir}/checkpoints");
  EXPECT_TRUE(needs_it());
  record.mutable_tasks(0)->mutable_start()->add_argv("--checkpoint_buddy");
  EXPECT_FALSE(needs_it());
}

// Who goes on with a job that a host has driven drives it here, or gives it away once more.
TEST(ContinueJob, IsDrivenByNoHost) {
  record::JobRecord running = Running({{"worker:0", "a"}});
  running.mutable_controller()->set_name("head");
  record::JobRecord plan = running;
  ContinueJob(running, &plan);
  EXPECT_FALSE(plan.has_controller());
}

// With as many workers as there are.
TEST(RestartAllTasks, BeginAnew) {
  record::JobRecord record = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:1", "c"}});
  record.set_first_workers(5);
  record.set_fewest_workers(1);
  RestartAllTasks(&record);
  EXPECT_FALSE(record.cluster().fixed());
  EXPECT_EQ(record.cluster().generation(), 1u);
  EXPECT_EQ(FirstWorkers(record), 2);
  EXPECT_EQ(FewestWorkers(record), 2);
}

TEST(StartTimeout, HasTimeForTheFilesOfAllTasks) {
  record::JobRecord record = Running({{"worker:0", "a"}, {"worker:1", "a"}, {"worker:2", "b"}});
  EXPECT_EQ(StartTimeout(record), std::chrono::seconds(10));
  for (const size_t size : {500'000, 500'000})
    record.add_program_files()->set_content(std::string(size, 'x'));
  EXPECT_EQ(StartTimeout(record), std::chrono::seconds(10 + 3 * 8));
}

TEST(MakeStartRequest, WorkersOfAnElasticJobKnowHowManyTheTrainingBeganWith) {
  record::JobRecord record = Running({{"ps:0", "a"}, {"worker:0", "b"}, {"worker:2", "c"}});
  record.set_first_workers(2);
  const auto cluster =
      std::make_shared<reconcile::Cluster>(reconcile::Cluster{{"ps:0", "a", "10.0.0.1", 20001},
                                                              {"worker:0", "b", "10.0.0.2", 20002},
                                                              {"worker:2", "c", "10.0.0.3", 20003}});
  const auto start = [&](const std::string& task) {
    return *MakeStartRequest(record,
                             {.task = task, .generation = 7, .follows_cluster = true, .cluster = cluster});
  };
  EXPECT_THAT(start("worker:2").argv(), Contains("--first_workers=2"));
  EXPECT_THAT(start("ps:0").argv(), Not(Contains(HasSubstr("--first_workers"))));
  // Who has not joined yet is nowhere.
  EXPECT_THAT(start("worker:2").argv(),
              Contains("--worker_hosts=10.0.0.2:20002,worker-1.invalid:1,10.0.0.3:20003"));
  EXPECT_THAT(start("ps:0").files(0).content(), HasSubstr("\"worker-1.invalid:1\""));
  EXPECT_THAT(start("worker:2").argv(), Not(Contains(HasSubstr("--min_workers"))));
  record.set_min_workers(1);
  EXPECT_THAT(start("worker:2").argv(), Contains("--min_workers=1"));
  EXPECT_THAT(start("ps:0").argv(), Not(Contains("--min_workers=1")));
  record.set_elastic(false);
  EXPECT_THAT(start("worker:2").argv(), Not(Contains(HasSubstr("--first_workers"))));
}

}  // namespace
}  // namespace muster
