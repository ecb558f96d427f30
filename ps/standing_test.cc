// Parameter servers that stand before their jobs and after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Servers on threads of this process, whose jobs come with their workers.
class StandingServers {
 public:
  explicit StandingServers(int count, bool tls = false) : current_(count) {
    for (int i = 0; i < count; ++i) addresses_.push_back(FreeAddress());
    if (tls) authority_ = *MakeAuthority("test");
    for (int i = 0; i < count; ++i) {
      views_.push_back(std::make_shared<ClusterView>(ClusterSpec{.ps = addresses_}, TaskId{Role::kPs, i},
                                                     ClusterView::Workers::kMayComeAndGo));
    }
  }
  ~StandingServers() { Stop(); }

  /// As if their processes had been killed.
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      for (ParameterServer* const server : current_) {
        if (server != nullptr) server->Kill();
      }
    }
    threads_.clear();
    is_stopping_ = false;
  }

  void Start(const std::filesystem::path& checkpoints = "", bool keeps_journal = false) {
    for (int i = 0; i < static_cast<int>(current_.size()); ++i) {
      const ParameterServerOptions options{.cluster = {.ps = addresses_},
                                           .view = views_[i],
                                           .shard_index = i,
                                           .tls = Identity({Role::kPs, i}),
                                           .transport = Transport::kTcp,
                                           .checkpoint_dir = checkpoints.string(),
                                           .checkpoint_every = 10,
                                           .journal = keeps_journal};
      threads_.emplace_back([this, i, options] {
        const absl::Status end = ServeJobs(options, [this, i](ParameterServer& server) {
          if (!SetCurrent(i, &server)) return absl::CancelledError("between two jobs");
          const absl::Status of_job = server.Wait();
          (void)SetCurrent(i, nullptr);
          return of_job;
        });
        EXPECT_TRUE(absl::IsCancelled(end)) << end;
      });
    }
  }

  ParameterServerClientOptions ClientOptions(uint64_t job, int workers, int rank,
                                             UpdateMode mode = UpdateMode::kSync, bool has_chief = false) {
    ClusterSpec cluster{.ps = addresses_};
    for (int i = 0; i < workers; ++i) {
      auto& addresses = has_chief && i == 0 ? cluster.chief : cluster.workers;
      addresses.push_back(absl::StrFormat("127.0.0.2:%d", 1000 + i));
    }
    const TaskId task = TaskOfRank(cluster, rank);
    const UpdateConfig update{.rule = {.mode = mode, .worker_count = workers}};
    return {.cluster = cluster,
            .task = task,
            .generation = job,
            .config = MakeJobConfig(layout_, kTables, update, kPlainSgd, kSeed),
            .layout = layout_,
            .connect_timeout = std::chrono::seconds(20),
            .server_timeout = std::chrono::seconds(20),
            .answer_timeout = std::chrono::seconds(60),
            .tls = Identity(task),
            .transport = Transport::kTcp};
  }

  // Each worker adds one to all parameters, `count` times, and the first one looks what has become of them.
  std::vector<float> PushOnes(uint64_t job, int workers, int count, UpdateMode mode, bool has_chief = false) {
    std::vector<float> biases;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> parameters(layout_.size()), gradient(layout_.size(), -1.0f);
        ParameterServerClient client(ClientOptions(job, workers, rank, mode, has_chief));
        absl::Status status = client.Join(parameters).status();
        for (int i = 0; i < count && status.ok(); ++i) status = Push(client, gradient, parameters).status();
        if (status.ok() && rank == 0) status = client.AwaitOthers(parameters).status();
        if (rank == 0) biases = BiasesOf(layout_, parameters);
        if (status.ok()) status = client.Finish();
        EXPECT_TRUE(status.ok()) << "job " << job << ", rank " << rank << ": " << status;
      });
    }
    threads.clear();
    return biases;
  }

  std::optional<TlsIdentity> Identity(TaskId task) const { return IdentityFrom(authority_, task); }

  /// The first of them has another address from now on, of which all hear.
  void MoveFirst() {
    addresses_[0] = FreeAddress("127.0.0.3");
    for (const auto& view : views_) {
      ASSERT_TRUE(*view->Update({.generation = 1, .cluster = {.ps = addresses_}}));
    }
  }

  std::vector<float> Parameters() const { return std::vector<float>(layout_.size()); }
  std::vector<float> Biases(std::span<const float> parameters) const { return BiasesOf(layout_, parameters); }

 private:
  // False: it is not to be served any more.
  bool SetCurrent(int index, ParameterServer* server) {
    const std::lock_guard lock(mutex_);
    current_[index] = server;
    return !is_stopping_;
  }

  const ParameterLayout layout_ = TestLayout();
  std::optional<Certificate> authority_;
  std::vector<std::string> addresses_;
  std::vector<std::shared_ptr<ClusterView>> views_;  // of the servers
  std::mutex mutex_;                                 // guards the following
  std::vector<ParameterServer*> current_;            // null: between two jobs
  bool is_stopping_ = false;
  std::vector<std::jthread> threads_;  // the last member: they use the others
};

std::vector<float> Ones(int count) { return std::vector<float>(5, static_cast<float>(count)); }

TEST(Standing, JobsFollowEachOtherEachWithItsOwnWorkersAndRule) {
  for (const bool tls : {false, true}) {
    StandingServers servers(2, tls);
    servers.Start();
    EXPECT_EQ(servers.PushOnes(1, 1, 20, UpdateMode::kSync), Ones(20));
    EXPECT_EQ(servers.PushOnes(2, 3, 20, UpdateMode::kAsync), Ones(60));
    EXPECT_EQ(servers.PushOnes(7, 2, 5, UpdateMode::kSync, /*has_chief=*/true), Ones(5));
    EXPECT_EQ(servers.PushOnes(8, 1, 20, UpdateMode::kAsync), Ones(20));
  }
}

// Whoever starts them counts for himself that they come one after the other.
TEST(Standing, JobsWithoutANumberMayFollowEachOtherAsWell) {
  StandingServers servers(1);
  servers.Start();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(servers.PushOnes(0, 2, 4, UpdateMode::kAsync), Ones(8));
}

TEST(Standing, ALaterJobEndsAnEarlierOne) {
  StandingServers servers(2);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  const std::vector<float> gradient(parameters.size(), -1.0f);
  ParameterServerClient earlier(servers.ClientOptions(3, 1, 0));
  ASSERT_TRUE(earlier.Join(parameters).ok());
  ASSERT_TRUE(Push(earlier, gradient, parameters).ok());
  EXPECT_EQ(servers.PushOnes(4, 2, 10, UpdateMode::kAsync), Ones(20));
  EXPECT_FALSE(Push(earlier, gradient, parameters).ok());
  ParameterServerClient again(servers.ClientOptions(3, 1, 0));
  const auto joined = again.Join(parameters);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition) << joined.status();
  // Both refuse it; whose answer comes first, chance decides.
  EXPECT_THAT(std::string(joined.status().message()),
              AnyOf(HasSubstr("job 4 has come to ps:0, which is later than job 3"),
                    HasSubstr("job 4 has come to ps:1, which is later than job 3")));
}

// Its last answer was lost.
TEST(Standing, WhoseJobIsOverHearsThat) {
  StandingServers servers(1);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  ParameterServerClient client(servers.ClientOptions(3, 1, 0));
  ASSERT_TRUE(client.Join(parameters).ok());
  ASSERT_TRUE(client.Finish().ok());
  EXPECT_TRUE(client.Finish().ok());
  ParameterServerClientOptions options = servers.ClientOptions(3, 1, 0);
  options.connect_timeout = std::chrono::seconds(1);
  // As long as the server of that job is just ending, it lets anybody in.
  const TimePoint deadline = Now() + std::chrono::minutes(1);
  absl::Status joined;
  while (joined.ok() && Now() < deadline) joined = ParameterServerClient(options).Join(parameters).status();
  EXPECT_TRUE(absl::IsUnavailable(joined)) << joined;
  EXPECT_THAT(std::string(joined.message()), HasSubstr("this job is over"));
  EXPECT_EQ(servers.PushOnes(4, 1, 3, UpdateMode::kAsync), Ones(3));
}

TEST(Standing, WhoIsNotTheWorkerThatHeClaimsToBeNeitherBeginsAJobNorEndsOne) {
  StandingServers servers(1, /*tls=*/true);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  const auto join_as_another = [&] {
    ParameterServerClientOptions options = servers.ClientOptions(9, 2, 0);
    options.tls = servers.Identity({Role::kWorker, 1});
    ParameterServerClient client(options);
    const auto joined = client.Join(parameters);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kPermissionDenied) << joined.status();
  };
  join_as_another();
  ParameterServerClient client(servers.ClientOptions(3, 1, 0));
  ASSERT_TRUE(client.Join(parameters).ok());
  join_as_another();
  EXPECT_TRUE(client.Finish().ok());
}

TEST(Standing, AJobWithoutWorkersOrWithTooManyIsRefused) {
  StandingServers servers(1);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  for (const uint32_t count : {0u, 100'001u, 4'294'967'295u}) {
    ParameterServerClientOptions options = servers.ClientOptions(3, 1, 0);
    options.config.set_worker_count(count);
    ParameterServerClient client(options);
    const auto joined = client.Join(parameters);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument) << joined.status();
  }
  EXPECT_EQ(servers.PushOnes(1, 1, 3, UpdateMode::kAsync), Ones(3));
}

// Only a server that begins with it sees that. It must not keep the place for a job that nobody can join.
TEST(Standing, AJobThatCannotBeginIsInNobodysWay) {
  StandingServers servers(1);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  ParameterServerClientOptions options = servers.ClientOptions(0, 1, 0);
  for (auto& optimizer : *options.config.mutable_optimizers()) optimizer.set_learning_rate(-1);
  const auto joined = ParameterServerClient(options).Join(parameters);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument) << joined.status();
  EXPECT_EQ(servers.PushOnes(0, 2, 3, UpdateMode::kAsync), Ones(6));
}

// Their cluster says nothing of workers, however often it changes.
TEST(Standing, AMoveLeavesTheWorkersOfAJobAndTheNextOneAlone) {
  StandingServers servers(2);
  servers.Start();
  EXPECT_EQ(servers.PushOnes(1, 2, 5, UpdateMode::kAsync), Ones(10));
  servers.MoveFirst();
  EXPECT_EQ(servers.PushOnes(2, 2, 5, UpdateMode::kAsync), Ones(10));
  EXPECT_EQ(servers.PushOnes(3, 2, 5, UpdateMode::kSync), Ones(5));
}

// Which the workers tell them, as their cluster file says; one that has not heard yet says something older.
TEST(Standing, WorkersComeAndGo) {
  StandingServers servers(2);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  const std::vector<float> gradient(parameters.size(), -1.0f);
  std::vector<std::unique_ptr<ParameterServerClient>> clients;
  std::vector<std::shared_ptr<ClusterView>> views;
  const auto spec = [&](int workers) { return servers.ClientOptions(3, workers, 0).cluster; };
  const auto add = [&](int of) {
    ParameterServerClientOptions options =
        servers.ClientOptions(3, of, static_cast<int>(clients.size()), UpdateMode::kAsync);
    options.config.set_worker_count(1);  // at first
    options.config.set_aggregate(1);
    views.push_back(
        std::make_shared<ClusterView>(options.cluster, options.task, ClusterView::Workers::kMayComeAndGo));
    options.view = views.back();
    clients.push_back(std::make_unique<ParameterServerClient>(options));
    return clients.back()->Join(parameters).status();
  };
  ASSERT_TRUE(add(1).ok());
  const auto tell = [&](int view, uint64_t generation, int workers) {
    ASSERT_TRUE(*views[view]->Update({.generation = generation, .cluster = spec(workers)}));
  };
  tell(0, 1, 2);
  ASSERT_TRUE(add(2).ok());
  tell(0, 2, 3);
  ASSERT_TRUE(add(3).ok());
  for (const auto& client : clients) EXPECT_TRUE(Push(*client, gradient, parameters).ok());
  EXPECT_EQ(servers.Biases(parameters), Ones(3));

  // worker:1 and worker:2 leave it, which worker:0 is the first to hear.
  tell(0, 3, 1);
  EXPECT_TRUE(Eventually([&] { return !Push(*clients[2], gradient, parameters).ok(); }));
  EXPECT_TRUE(Push(*clients[0], gradient, parameters).ok());
  EXPECT_TRUE(clients[0]->AwaitOthers(parameters).ok());
  EXPECT_TRUE(clients[0]->Finish().ok());
  clients.clear();
  EXPECT_EQ(servers.PushOnes(4, 2, 3, UpdateMode::kSync), Ones(3)) << "the next job has others";
}

// It would wait for others of its kind for ever, in the way of everybody.
TEST(Standing, AWorkerThatCannotTakePartNeitherBeginsAJobNorEndsOne) {
  StandingServers servers(2);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  const auto refused = [&](uint64_t job) {
    ParameterServerClientOptions options = servers.ClientOptions(job, 1, 0);
    options.cluster.ps.pop_back();
    ParameterServerClient client(options);
    const auto joined = client.Join(parameters);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition) << joined.status();
    EXPECT_THAT(std::string(joined.status().message()), HasSubstr("compare --ps_hosts"));
  };
  refused(9);
  ParameterServerClient client(servers.ClientOptions(3, 1, 0));
  ASSERT_TRUE(client.Join(parameters).ok());
  refused(9);
  EXPECT_TRUE(client.Finish().ok());
}

// Which has come only, and done nothing.
TEST(Standing, AnEarlierJobDoesNotFollowALaterOne) {
  StandingServers servers(1);
  servers.Start();
  std::vector<float> parameters = servers.Parameters();
  for (const uint64_t job : {8, 9}) {
    ParameterServerClient client(servers.ClientOptions(job, 1, 0));
    ASSERT_TRUE(client.Join(parameters).ok());
  }
  for (const uint64_t job : {7, 8, 0}) {
    ParameterServerClient earlier(servers.ClientOptions(job, 1, 0));
    const auto joined = earlier.Join(parameters);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition) << joined.status();
  }
  EXPECT_EQ(servers.PushOnes(9, 1, 3, UpdateMode::kSync), Ones(3)) << "its worker has been started again";
}

TEST(Standing, WhatFailsBeforeAnybodyIsServedEndsTheServer) {
  int served = 0;
  const absl::Status end = ServeJobs({.cluster = {.ps = {FreeAddress()}}}, [&](ParameterServer&) {
    ++served;
    return absl::InternalError("no metrics");
  });
  EXPECT_EQ(end, absl::InternalError("no metrics"));
  EXPECT_EQ(served, 1);
}

TEST(Standing, CheckpointsAreKeptByTheNumberOfTheirJob) {
  const TemporaryDirectory folder;
  for (const std::string name : {"job-9", "job-2", "job-x", "2024"}) {
    std::filesystem::create_directory(folder.path() / name);
  }
  StandingServers servers(1);
  servers.Start(folder.path());
  std::vector<float> parameters = servers.Parameters();
  const auto error_of = [&](uint64_t job) {
    ParameterServerClient client(servers.ClientOptions(job, 1, 0));
    return std::string(client.Join(parameters).status().message());
  };
  EXPECT_THAT(error_of(0), HasSubstr("give the workers --job_number"));
  // Another process has served that.
  EXPECT_THAT(error_of(6), HasSubstr("job-9 is of job 9, which is later than job 6"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "job-9"));
  EXPECT_EQ(servers.PushOnes(10, 1, 3, UpdateMode::kAsync), Ones(3));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "job-9"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "job-2"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "2024")) << "is none of theirs";
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "job-x"));
}

// None of them knows of the job before its workers have come back to it.
TEST(Standing, ServersThatAreAllReplacedGoOnFromTheirCheckpoints) {
  const TemporaryDirectory folder;
  StandingServers servers(2);
  servers.Start(folder.path());
  std::vector<float> parameters = servers.Parameters();
  const std::vector<float> gradient(parameters.size(), -1.0f);
  ParameterServerClient client(servers.ClientOptions(5, 1, 0));
  absl::StatusOr<JoinResult> joined = client.Join(parameters);
  ASSERT_TRUE(joined.ok()) << joined.status();
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(Push(client, gradient, parameters).ok());
  const CheckpointStore store(folder.path() / "job-5");
  const auto has_checkpoint = [&] {
    const auto steps = store.List();
    return steps.ok() && *steps == std::vector<uint64_t>{10};
  };
  ASSERT_TRUE(Eventually(has_checkpoint));
  servers.Stop();
  servers.Start(folder.path());
  const auto lost = Push(client, gradient, parameters);
  ASSERT_TRUE(IsGoneBack(lost.status())) << lost.status();
  joined = client.Join(parameters);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->step, 10u);
  for (uint64_t step = joined->step; step < 25; ++step) {
    ASSERT_TRUE(Push(client, gradient, parameters).ok());
  }
  ASSERT_TRUE(client.AwaitOthers(parameters).ok());
  EXPECT_EQ(servers.Biases(parameters), Ones(25));
  EXPECT_TRUE(client.Finish().ok());
}

// A job that is started again goes on with its own; those of the job before are no use to anybody.
TEST(Standing, EachJobHasCheckpointsOfItsOwn) {
  const TemporaryDirectory folder;
  const auto jobs = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  };
  std::vector<float> gradient;
  {
    StandingServers servers(1);
    servers.Start(folder.path(), /*keeps_journal=*/true);
    EXPECT_EQ(servers.PushOnes(5, 1, 25, UpdateMode::kAsync), Ones(25));
    EXPECT_THAT(jobs(), ElementsAre("job-5"));
    std::vector<float> parameters = servers.Parameters();
    gradient.assign(parameters.size(), -1.0f);
    ParameterServerClient client(servers.ClientOptions(6, 1, 0, UpdateMode::kAsync));
    ASSERT_TRUE(client.Join(parameters).ok());
    for (int i = 0; i < 7; ++i) ASSERT_TRUE(Push(client, gradient, parameters).ok());
  }
  EXPECT_THAT(jobs(), ElementsAre("job-6"));
  StandingServers servers(1);  // as if the process had been killed
  servers.Start(folder.path(), /*keeps_journal=*/true);
  std::vector<float> parameters = servers.Parameters();
  ParameterServerClient client(servers.ClientOptions(6, 1, 0, UpdateMode::kAsync));
  const auto joined = client.Join(parameters);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->step, 7u);
  ASSERT_TRUE(Push(client, gradient, parameters).ok());
  ASSERT_TRUE(client.AwaitOthers(parameters).ok());
  EXPECT_EQ(servers.Biases(parameters), Ones(8));
  EXPECT_TRUE(client.Finish().ok());
}

}  // namespace
}  // namespace muster
