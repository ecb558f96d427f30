// Shards on two servers each: whichever server is lost, nothing that was acknowledged is, and nobody goes
// back.
#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "cluster/replica_view.h"
#include "proto/replication.pb.h"
#include "tests/support/ps_cluster.h"
#include "tests/support/slow_door.h"

namespace muster {
namespace {

uint64_t SeedCount() {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  return seeds != nullptr ? std::stoul(seeds) : 3;
}

// Loses one server after the other while training goes on: each time when all shards have a backup again.
class Killer {
 public:
  Killer(Cluster& cluster, uint64_t seed)
      : thread_([this, &cluster, seed](const std::stop_token& stop) {
          RandomStream random(seed, 5);
          while (!stop.stop_requested()) {
            if (!cluster.AwaitBackups(stop)) return;
            std::this_thread::sleep_for(std::chrono::microseconds(random.NextBelow(20'000)));
            // On a busy machine one may have been lost to silence meanwhile: two at a time are too many.
            if (stop.stop_requested() || !cluster.AwaitBackups(stop)) return;
            ++kills_;
            cluster.StartServer(static_cast<int>(random.NextBelow(cluster.servers.size())));
          }
        }) {}
  int kills() const { return kills_; }

 private:
  std::atomic<int> kills_ = 0;
  std::jthread thread_;
};

TEST(Replication, AnUndisturbedTrainingHasTheSameBits) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded}) {
    Cluster alone(3, 2, mode);
    const std::vector<float> expected = TrainAll(alone, 30);
    Cluster cluster(3, 2, mode);
    cluster.Replicate();
    EXPECT_EQ(TrainAll(cluster, 30), expected);
  }
}

// MUSTER_SIMULATION_SEEDS: how many.
TEST(Replication, LostServersChangeNoBit) {
  constexpr uint64_t kSteps = 150;
  for (const UpdateConfig& update : kReproducibleUpdates) {
    Cluster undisturbed(2, 2, update);
    const std::vector<float> expected = TrainAll(undisturbed, kSteps);
    for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
      Cluster cluster(2, 2, update);
      cluster.Replicate();
      absl::StatusOr<std::vector<float>> results[2];
      int kills = 0;
      {
        std::optional<Killer> killer(std::in_place, cluster, seed);
        const auto train = [&](int rank) {
          ParameterServerClient client(cluster.ClientOptions(rank));
          results[rank] = TrainRankOnce(cluster, client, rank, kSteps, false, [&](uint64_t step) {
            if (rank == 0 && step == kSteps - 50) {
              // All of the steps may take less time than a server takes to get its backup.
              EXPECT_TRUE(Eventually([&] { return killer->kills() > 0; }));
              kills = killer->kills();
              killer.reset();
            }
          });
        };
        std::jthread rank1([&] { train(1); });
        train(0);
      }
      EXPECT_GT(kills, 0);
      for (const auto& result : results) {
        ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
        EXPECT_EQ(*result, expected) << "seed " << seed;
      }
    }
  }
}

// Both are needed for the next view. This one computes, or waits for the other one elsewhere.
TEST(Replication, AWorkerThatAsksForNothingGivesItsVoteAllTheSame) {
  Cluster cluster(2, 2, UpdateMode::kAsync, kPlainSgd);
  cluster.Replicate();
  ParameterServerClient idle(cluster.ClientOptions(1)), client(cluster.ClientOptions(0));
  std::vector<float> of_idle(cluster.layout.size()), parameters(cluster.layout.size());
  const std::vector<float> gradient(cluster.layout.size(), -1.0f);
  const auto join_both = [&] {
    std::jthread other([&] { EXPECT_TRUE(idle.Join(of_idle).ok()); });
    EXPECT_TRUE(client.Join(parameters).ok());
  };
  join_both();
  for (const int server : {0, 1, 0}) {
    ASSERT_TRUE(cluster.AwaitBackups());
    cluster.StopServer(server);
    const auto pushed = Push(client, gradient, parameters);
    ASSERT_TRUE(pushed.ok()) << "without ps:" << server << ": " << pushed.status();
    cluster.StartServer(server);
  }
  const auto pushed = Push(idle, gradient, of_idle);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(BiasesOf(cluster.layout, of_idle), std::vector<float>(5, 4.0f));
}

// So that it can tell a server that stands still from one that it has asked for nothing.
TEST(Replication, AHeartbeatOfWhoAwaitsNothingIsAnswered) {
  Cluster cluster(2, 2, UpdateMode::kAsync);
  cluster.Replicate();
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  RawWorker worker(cluster, "process", 1, /*rank=*/1);
  ASSERT_TRUE(worker.Receive().has_join());
  ps::ClientHeader header = worker.Header();
  header.mutable_heartbeat();
  worker.connection->Send(header, {});
  const ps::ServerHeader reply = worker.Receive();
  ASSERT_TRUE(reply.has_heartbeat()) << reply.ShortDebugString();
  EXPECT_EQ(reply.heartbeat().awaiting(), 0u);
  EXPECT_FALSE(reply.heartbeat().unknown());
}

TEST(Replication, TenThousandPushesAreTenThousand) {
  Cluster cluster(2, 1, UpdateMode::kAsync, kPlainSgd);
  cluster.Replicate();
  PushOnes(cluster, 10'000, [&](int i) {
    if (i % 1500 != 700) return;
    ASSERT_TRUE(cluster.AwaitBackups());
    cluster.StartServer(i / 1500 % 2);
  });
}

// What is lost, doubled and late on the streams of workers, and between servers.
TEST(Replication, NothingIsLostOverABadNetwork) {
  Cluster cluster(2, 4, UpdateMode::kAsync, kPlainSgd);
  ShardConnection::InjectFaults(FrameFaultOptions{
      .lost = 0.1, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(200), .seed = 3});
  const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
  cluster.Replicate();
  PushOnesFromAll(cluster, 50);
}

TEST(Replication, AServerThatTakesLongToConnectToIsJoined) {
  Cluster cluster(2, 1, UpdateMode::kAsync, kPlainSgd);
  cluster.Replicate();
  ParameterServerClientOptions options = cluster.ClientOptions(0);
  const SlowDoor first(cluster.spec.ps[0], std::chrono::milliseconds(700)),
      second(cluster.spec.ps[1], std::chrono::milliseconds(700));
  options.cluster.ps = {first.address(), second.address()};
  ParameterServerClient client(options);
  std::vector<float> parameters(cluster.layout.size());
  const auto joined = client.Join(parameters);
  EXPECT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(client.Finish().ok());
}

// Its own attempt to find another one ends later than that.
TEST(Replication, WhoHasJustBecomeABackupStaysIt) {
  Cluster cluster(2, 1, UpdateMode::kAsync);
  cluster.replica_silence = std::chrono::seconds(5);
  cluster.Replicate();
  std::vector<float> parameters(cluster.layout.size());
  const std::vector<float> gradient(cluster.layout.size());
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  ASSERT_TRUE(cluster.AwaitBackups());
  const ClusterSpec spec = cluster.spec;
  const SlowDoor door(spec.ps[1], std::chrono::seconds(1));
  cluster.spec.ps[1] = door.address();
  cluster.StartServer(0);
  cluster.spec = spec;
  for (const TimePoint end = Now() + std::chrono::seconds(30); Now() < end && !cluster.HasBackups();) {
    ASSERT_TRUE(Push(client, gradient, parameters).ok());
  }
  for (const TimePoint end = Now() + std::chrono::seconds(1); Now() < end;) {
    ASSERT_TRUE(cluster.HasBackups());
    ASSERT_TRUE(Push(client, gradient, parameters).ok());
  }
  EXPECT_TRUE(client.Finish().ok());
}

TEST(Replication, WithoutAMajorityAServerEndsWithTheCause) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.server_timeout = std::chrono::seconds(2);
  cluster.Replicate();
  for (const int rank : {0, 1}) {
    std::vector<float> parameters(cluster.layout.size());
    ParameterServerClient client(cluster.ClientOptions(rank));
    ASSERT_TRUE(client.Join(parameters).ok());
  }
  ASSERT_TRUE(cluster.AwaitBackups());
  cluster.StopServer(1);
  const absl::Status end = cluster.AwaitEnd(0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(end)) << end;
  EXPECT_THAT(std::string(end.message()), testing::HasSubstr("ps:1 has been out of touch"));
}

// From whoever reaches the port, without TLS.
TEST(Replication, MessagesThatMakeNoSenseAreRefused) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  cluster.Replicate();
  using Messages = std::vector<replication::Message>;
  // What the backup of shard 0 answers to the last of them.
  const auto error = [&](const Messages& messages, const std::string& raw = "") {
    auto connection = ShardConnection::Connect(cluster.spec.ps[1], {Role::kPs, 1}, std::nullopt,
                                               Transport::kTcp, Now() + std::chrono::seconds(20));
    EXPECT_TRUE(connection.ok()) << connection.status();
    const auto send = [&](const std::string& bytes) {
      ps::ClientHeader header;
      header.set_version(kWireVersion);
      header.set_replication(bytes);
      (*connection)->Send(header, {});
    };
    uint64_t order = 0;
    for (replication::Message message : messages) {
      if (message.order() == 0) message.set_order(++order);
      send(message.SerializeAsString());
    }
    if (!raw.empty()) send(raw);
    while (true) {
      const auto reply = (*connection)->Receive(Now() + std::chrono::seconds(20));
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return std::string();
      if (reply->header.has_error()) return reply->header.error().message();
    }
  };
  const auto hello = [](uint32_t count, uint64_t generation) {
    replication::Message message;
    message.mutable_hello()->set_shard_count(count);
    message.mutable_hello()->set_generation(generation);
    message.mutable_hello()->set_role(static_cast<uint32_t>(ReplicaRole::kPrimary));
    message.mutable_hello()->set_view(1000);
    return message;
  };
  replication::Message base, piece, base_end, record, in_sync, late;
  base.mutable_base()->mutable_header()->add_sections()->set_bytes(UINT64_MAX);
  piece.mutable_piece();
  base_end.mutable_base_end();
  record.mutable_record()->mutable_decision();
  in_sync.mutable_in_sync()->set_view(1);
  late.mutable_ping();
  late.set_order(7);
  using testing::HasSubstr;
  EXPECT_THAT(error({}, "\xff\xff"), HasSubstr("cannot be read"));
  EXPECT_THAT(error({hello(3, 0)}), HasSubstr("shard 0 of 2 here, 0 of 3 there"));
  EXPECT_THAT(error({hello(2, 5)}), HasSubstr("generation 0 of the cluster here, 5 there"));
  EXPECT_THAT(error({record}), HasSubstr("another process is the primary"));
  EXPECT_THAT(error({hello(2, 0), base}), HasSubstr("a section of"));
  EXPECT_THAT(error({hello(2, 0), piece}), HasSubstr("more than the shard has"));
  EXPECT_THAT(error({hello(2, 0), base_end}), HasSubstr("less than the shard has"));
  EXPECT_THAT(error({hello(2, 0), record}), HasSubstr("a shard that is not here"));
  EXPECT_THAT(error({hello(2, 0), in_sync}), HasSubstr("no view of this shard"));
  EXPECT_THAT(error({hello(2, 0), late}), HasSubstr("a message has been lost"));
  // The primary goes on with it all the same.
  EXPECT_EQ(TrainAll(cluster, 3).empty(), false);
}

}  // namespace
}  // namespace muster
