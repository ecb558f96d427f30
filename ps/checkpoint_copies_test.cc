// Servers that lose their host with its disk: all go on from the newest checkpoint.
#include "ps/checkpoint_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSteps = 40;

TEST(BuddyOf, IsOnAnotherHostAndOneForEach) {
  const auto buddies = [](std::vector<std::string> servers) {
    ClusterSpec cluster{.ps = std::move(servers)};
    std::vector<int> all;
    for (size_t i = 0; i < cluster.ps.size(); ++i) all.push_back(BuddyOf(cluster, static_cast<int>(i)));
    return all;
  };
  EXPECT_THAT(buddies({"a:1", "b:1", "c:1"}), testing::ElementsAre(1, 2, 0));
  EXPECT_THAT(buddies({"a:1", "a:2", "b:1", "b:2"}), testing::ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(buddies({"a:1", "b:1", "a:2", "c:1"}), testing::ElementsAre(1, 0, 3, 0));
  EXPECT_THAT(buddies({"a:1", "a:2"}), testing::ElementsAre(1, 0));
}

// Steps of the checkpoints that are in a server's folder with this shard's file, whole.
std::vector<uint64_t> CheckpointsWith(const Cluster& cluster, int server, int shard) {
  const CheckpointStore store(cluster.CheckpointsOf(server));
  std::vector<uint64_t> steps;
  for (const uint64_t step : store.List().value_or(std::vector<uint64_t>())) {
    const auto manifest = store.ReadManifest(step);
    if (manifest.ok() && store.HasShard(step, manifest->files(shard), /*read=*/true)) steps.push_back(step);
  }
  return steps;
}

void AwaitCheckpointWith(const Cluster& cluster, int server, int shard, uint64_t at_least = 1) {
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  const auto is_there = [&] {
    const std::vector<uint64_t> steps = CheckpointsWith(cluster, server, shard);
    return !steps.empty() && steps.front() >= at_least;
  };
  while (!is_there()) {
    ASSERT_LT(Now(), deadline) << "ps:" << server << " has no checkpoint with the file of ps:" << shard;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(CheckpointCopies, AServerThatLosesItsDiskTakesAllToTheCheckpointAndNoBitChanges) {
  Cluster undisturbed(3, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, kSteps);
  for (const bool tls : {false, true}) {
    for (const int lost : {0, 2}) {
      Cluster cluster(3, 2, UpdateMode::kSync, {{}, {}}, tls);
      cluster.KeepCopiesOfCheckpoints(10);
      const int buddy = BuddyOf(cluster.spec, lost);
      EXPECT_EQ(TrainWithFault(cluster, kSteps, 25,
                               [&] {
                                 AwaitCheckpointWith(cluster, buddy, lost);
                                 cluster.StopServer(lost);
                                 EXPECT_TRUE(RemoveTree(cluster.CheckpointsOf(lost)).ok());
                                 cluster.StartServer(lost);
                               }),
                expected)
          << "ps:" << lost;
      for (int server = 0; server < 3; ++server) {
        const int kept = (server + 2) % 3;
        AwaitCheckpointWith(cluster, server, kept, kSteps);
      }
    }
  }
}

// Of two workers, none of which ever goes back.
std::vector<float> TrainRankOnceOfTwo(const Cluster& cluster, uint64_t steps, const StepHook& before_step) {
  absl::StatusOr<std::vector<float>> results[2];
  {
    const auto train = [&](int rank) {
      ParameterServerClient client(cluster.ClientOptions(rank));
      results[rank] = TrainRankOnce(cluster, client, rank, steps, false, rank == 0 ? before_step : nullptr);
    };
    std::jthread other([&] { train(1); });
    train(0);
  }
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.status();
  return results[0].value_or(std::vector<float>());
}

// Whatever is a checkpoint has its copies.
TEST(CheckpointCopies, AreThereBeforeACheckpointIs) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.KeepCopiesOfCheckpoints(2);
  std::atomic<int> seen = 0;
  std::jthread watcher([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const int server : {0, 1}) {
        // It may be pruned meanwhile, but the newest not.
        const CheckpointStore store(cluster.CheckpointsOf(server));
        const auto steps = store.List();
        if (!steps.ok() || steps->empty()) continue;
        const auto manifest = store.ReadManifest(steps->front());
        if (!manifest.ok()) continue;
        for (const int shard : {0, 1}) {
          const bool has_it = store.HasShard(manifest->step(), manifest->files(shard), /*read=*/true);
          const auto after = store.List();
          const bool pruned = !after.ok() || after->empty() || after->back() > manifest->step();
          EXPECT_TRUE(has_it || pruned) << "ps:" << server << " " << manifest->step();
          seen += has_it;
        }
      }
    }
  });
  TrainAll(cluster, 200);
  EXPECT_GT(seen, 0);
}

// One that finds its file without a copy has been killed before that was made.
TEST(CheckpointCopies, AreMadeOfWhatAJournalGoesOnWith) {
  constexpr uint64_t kMoreSteps = 120;
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, kMoreSteps);
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.keeps_journal = true;
  cluster.KeepCopiesOfCheckpoints(5);
  int step = 0;
  const auto result = TrainRankOnceOfTwo(cluster, kMoreSteps, [&](uint64_t at) {
    if (at % 7 == 3 && step++ < 10) cluster.StartServer(static_cast<int>(at / 7 % 2));
  });
  EXPECT_EQ(result, expected);
  // Only the end of a job makes all of them: its last checkpoint.
  for (const int server : {0, 1}) {
    for (const int shard : {0, 1}) AwaitCheckpointWith(cluster, server, shard, kMoreSteps);
  }
}

// On a host that it has left before: the journal there has less than the others have checkpoints of.
TEST(CheckpointCopies, AreAskedForBesideAnOldJournal) {
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, kSteps);
  for (const int moved : {0, 1}) {
    Cluster cluster(2, 2, UpdateMode::kSync);
    cluster.keeps_journal = true;
    cluster.keep_checkpoints = 1;
    cluster.KeepCopiesOfCheckpoints(10);
    const std::filesystem::path folder = cluster.CheckpointsOf(moved);
    const std::filesystem::path left = cluster.checkpoints.path() / "left";
    const auto leave = [&] {
      AwaitCheckpointWith(cluster, 1 - moved, moved, 10);
      cluster.StopServer(moved);
      std::filesystem::rename(folder, left);
      cluster.StartServer(moved);
    };
    const auto come_back = [&] {
      AwaitCheckpointWith(cluster, 1 - moved, moved, 20);  // 10 is kept no more
      cluster.StopServer(moved);
      ASSERT_TRUE(RemoveTree(folder).ok());
      std::filesystem::rename(left, folder);
      cluster.StartServer(moved);
    };
    EXPECT_EQ(TrainWithFaults(cluster, kSteps, {{15, leave}, {35, come_back}}), expected) << "ps:" << moved;
  }
}

// One conversation after the other with a server that keeps copies, as of another one.
class KeeperTest : public testing::Test {
 protected:
  KeeperTest() {
    cluster_.KeepCopiesOfCheckpoints(10);
    auto connected = ShardConnection::Connect(cluster_.spec.ps[1], {Role::kPs, 1}, std::nullopt,
                                              Transport::kTcp, Now() + std::chrono::seconds(20));
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection_ = *std::move(connected);
  }

  checkpoint_copy::Request Request() {
    checkpoint_copy::Request request;
    request.set_shard_count(2);
    return request;
  }

  ps::ServerHeader Ask(const std::string& request) {
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.set_request(++number_);
    header.set_checkpoint_copy(request);
    connection_->Send(header, {});
    const auto reply = connection_->Receive(Now() + std::chrono::seconds(20));
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->header.request(), number_);
    return reply->header;
  }
  std::string ErrorOf(const checkpoint_copy::Request& request) {
    return Ask(request.SerializeAsString()).error().message();
  }
  checkpoint_copy::Answer AnswerTo(const checkpoint_copy::Request& request) {
    const ps::ServerHeader header = Ask(request.SerializeAsString());
    EXPECT_FALSE(header.has_error()) << header.error().message();
    checkpoint_copy::Answer answer;
    EXPECT_TRUE(answer.ParseFromString(header.checkpoint_copy()));
    return answer;
  }

  // A file of ps:0 elsewhere, with its summary.
  std::string MakeFile(checkpoint::Manifest::File* file) {
    checkpoint::ShardHeader header;
    header.set_shard_count(2);
    header.set_step(10);
    const std::vector<float> values(1000, 1.5f);
    const CheckpointSection section{{}, BytesOf(values)};
    const auto written = CheckpointStore(folder_.path()).WriteShard(10, header, {&section, 1});
    EXPECT_TRUE(written.ok()) << written.status();
    *file = *written;
    return *ReadFile(CheckpointStore(folder_.path()).PathOf(10, file->name()));
  }

  std::vector<std::string> Kept() {
    return ListDirectory(cluster_.CheckpointsOf(1) / "step-000000000010")
        .value_or(std::vector<std::string>());
  }

  Cluster cluster_{2, 1, UpdateMode::kSync};
  TemporaryDirectory folder_;
  std::unique_ptr<ShardConnection> connection_;
  uint64_t number_ = 0;
};

TEST_F(KeeperTest, KeepsWhatIsWholeAndNothingElse) {
  checkpoint::Manifest::File file;
  const std::string bytes = MakeFile(&file);
  checkpoint_copy::Request offer = Request(), piece = Request();
  offer.mutable_offer()->set_step(10);
  *offer.mutable_offer()->mutable_file() = file;
  EXPECT_THAT(ErrorOf([&] {
                piece.mutable_piece()->set_data(bytes);
                return piece;
              }()),
              HasSubstr("a piece of no file"));

  EXPECT_EQ(AnswerTo(offer).next(), 0u);
  std::string damaged = bytes;
  damaged[2000] ^= 1;
  piece.mutable_piece()->set_data(damaged);
  EXPECT_THAT(ErrorOf(piece), HasSubstr("damaged"));
  EXPECT_THAT(Kept(), testing::IsEmpty());

  checkpoint_copy::Request other = offer;
  other.mutable_offer()->mutable_file()->set_digest(file.digest() + 1);
  EXPECT_EQ(AnswerTo(other).next(), 0u);
  piece.mutable_piece()->set_data(bytes);
  EXPECT_THAT(ErrorOf(piece), HasSubstr("is not the file that was announced"));
  EXPECT_THAT(Kept(), testing::IsEmpty());

  EXPECT_EQ(AnswerTo(offer).next(), 0u);
  piece.mutable_piece()->set_data(bytes.substr(0, 1000));
  EXPECT_EQ(AnswerTo(piece).next(), 1000u);
  EXPECT_EQ(AnswerTo(piece).next(), 1000u) << "what has come twice counts once";
  piece.mutable_piece()->set_offset(1000);
  piece.mutable_piece()->set_data(bytes.substr(1000) + "x");
  EXPECT_THAT(ErrorOf(piece), HasSubstr("more than the"));
  EXPECT_EQ(AnswerTo(offer).next(), 0u);
  piece.mutable_piece()->set_offset(0);
  piece.mutable_piece()->set_data(bytes);
  EXPECT_EQ(AnswerTo(piece).next(), bytes.size());
  EXPECT_THAT(Kept(), testing::ElementsAre("shard-00000-of-00002"));
  EXPECT_EQ(AnswerTo(offer).next(), bytes.size()) << "it is there";

  checkpoint_copy::Request list = Request();
  list.mutable_list();
  EXPECT_EQ(AnswerTo(list).manifests_size(), 0) << "no checkpoint is made of it";
  checkpoint::Manifest manifest;
  manifest.set_step(10);
  *manifest.add_files() = file;
  *manifest.add_files() = file;
  manifest.mutable_files(1)->set_name("shard-00001-of-00002");
  ASSERT_TRUE(CheckpointStore(cluster_.CheckpointsOf(1)).Commit(manifest).ok());
  EXPECT_EQ(AnswerTo(list).manifests_size(), 1);
  EXPECT_THAT(ErrorOf(other), HasSubstr("checkpoint 10 is made"));
  // The same one may come again, as to a buddy that had lost it.
  ASSERT_TRUE(RemoveTree(CheckpointStore(cluster_.CheckpointsOf(1)).PathOf(10, file.name())).ok());
  EXPECT_EQ(AnswerTo(offer).next(), 0u);
  EXPECT_EQ(AnswerTo(piece).next(), bytes.size());
  checkpoint_copy::Request read = Request();
  read.mutable_read()->set_step(10);
  read.mutable_read()->set_offset(1000);
  EXPECT_EQ(AnswerTo(read).data(), bytes.substr(1000));
  read.mutable_read()->set_offset(UINT64_MAX);
  Ask(read.SerializeAsString());
}

TEST_F(KeeperTest, GivesBackTheNewestThatIsNotThere) {
  const CheckpointStore kept(cluster_.CheckpointsOf(1)), own(folder_.path());
  for (const uint64_t step : {10, 20, 30}) {
    checkpoint::ShardHeader header;
    header.set_shard_count(2);
    header.set_step(step);
    const std::vector<float> values(1'000'000, static_cast<float>(step));
    const CheckpointSection section{{}, BytesOf(values)};
    const auto file = kept.WriteShard(step, header, {&section, 1});
    ASSERT_TRUE(file.ok()) << file.status();
    checkpoint::Manifest manifest;
    manifest.set_step(step);
    *manifest.add_files() = *file;
    *manifest.add_files() = *file;
    manifest.mutable_files(1)->set_name("shard-00001-of-00002");
    ASSERT_TRUE(kept.Commit(manifest).ok());
  }
  const CheckpointCopies copies({.cluster = cluster_.spec, .folder = folder_.path(), .has_buddy = true});
  const auto fetch = [&] {
    copies.Fetch(std::chrono::seconds(20), {});
    return own.List().value_or(std::vector<uint64_t>());
  };
  EXPECT_THAT(fetch(), testing::ElementsAre(30u));
  EXPECT_EQ(ReadFile(own.PathOf(30, "shard-00000-of-00002")),
            ReadFile(kept.PathOf(30, "shard-00000-of-00002")));
  // One that is damaged here comes again; of those that are damaged there the one before is taken.
  const auto damage = [](const CheckpointStore& store, uint64_t step) {
    std::string bytes = *ReadFile(store.PathOf(step, "shard-00000-of-00002"));
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(store.PathOf(step, "shard-00000-of-00002"), bytes).ok());
  };
  damage(own, 30);
  fetch();
  EXPECT_EQ(ReadFile(own.PathOf(30, "shard-00000-of-00002")),
            ReadFile(kept.PathOf(30, "shard-00000-of-00002")));
  damage(kept, 30);
  EXPECT_THAT(fetch(), testing::ElementsAre(30u)) << "it is whole here";
  ASSERT_TRUE(RemoveTree(folder_.path() / "step-000000000030").ok());
  EXPECT_THAT(fetch(), testing::ElementsAre(20u));
}

TEST_F(KeeperTest, RefusesWhatIsNotForIt) {
  checkpoint_copy::Request request = Request();
  EXPECT_THAT(ErrorOf(request), HasSubstr("that this version does not know"));
  request.mutable_list();
  request.set_shard_index(1);
  EXPECT_THAT(ErrorOf(request), HasSubstr("keeps no copies for ps:1 of 2"));
  request.set_shard_index(2);
  EXPECT_THAT(ErrorOf(request), HasSubstr("keeps no copies for ps:2 of 2"));
  request.set_shard_index(0);
  request.set_generation(3);
  EXPECT_THAT(ErrorOf(request), HasSubstr("generation 0 of the cluster, ps:0 to generation 3"));
  request.set_generation(0);
  request.mutable_offer()->mutable_file()->set_name("../../etc/passwd");
  EXPECT_THAT(ErrorOf(request), HasSubstr("a file of another name"));
  EXPECT_THAT(Ask("\xff\xff\xff").error().message(), HasSubstr("what is no request"));
}

TEST(CheckpointCopies, OnlyTheServerItselfIsAnswered) {
  Cluster cluster(3, 1, UpdateMode::kSync, {{}, {}}, /*tls=*/true);
  cluster.KeepCopiesOfCheckpoints(10);
  const auto error_for = [&](TaskId task) {
    const auto connection =
        ShardConnection::Connect(cluster.spec.ps[1], {Role::kPs, 1}, cluster.Identity(task), Transport::kTcp,
                                 Now() + std::chrono::seconds(20));
    EXPECT_TRUE(connection.ok()) << connection.status();
    checkpoint_copy::Request request;
    request.set_shard_count(3);
    request.mutable_list();
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.set_checkpoint_copy(request.SerializeAsString());
    (*connection)->Send(header, {});
    return std::string((*connection)->Receive(Now() + std::chrono::seconds(20))->header.error().message());
  };
  EXPECT_EQ(error_for({Role::kPs, 0}), "");
  EXPECT_THAT(error_for({Role::kPs, 2}), HasSubstr("ps:0"));
  EXPECT_THAT(error_for({Role::kWorker, 0}), HasSubstr("ps:0"));
}

TEST(CheckpointCopies, ACheckpointWithoutABuddyIsOneAllTheSame) {
  TemporaryDirectory folder;
  ClusterSpec cluster{.ps = {FreeAddress(), FreeAddress()}, .workers = {"127.0.0.1:1"}};
  const CheckpointCopies copies(
      {.cluster = cluster, .folder = folder.path(), .patience = std::chrono::milliseconds(300)});
  const absl::Status status = copies.Send(10, {}, {});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(cluster.ps[1]));
  copies.Fetch(std::chrono::milliseconds(300), {});  // nobody answers
}

}  // namespace
}  // namespace muster
