// What a primary keeps for a backup that is to come has a bound.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "proto/replication.pb.h"
#include "ps/frame_server.h"
#include "ps/replication.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

// Says that it lives, and has nothing until it is let.
class SlowBackup final : public FrameServer::Handler {
 public:
  explicit SlowBackup(const std::string& address) {
    auto server = FrameServer::Listen(address, std::nullopt, Transport::kTcp, this);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void OnFrame(FrameServer::StreamId stream, grpc::ByteBuffer* frame) override {
    ps::ClientHeader header;
    FloatPayload payload;
    replication::Message message;
    ASSERT_TRUE(DecodeFrame(*frame, &header, &payload).ok());
    ASSERT_TRUE(message.ParseFromString(header.replication()));
    replication::Answer answer;
    {
      const std::lock_guard lock(mutex_);
      if (message.has_hello()) answer.mutable_hello()->set_shard_count(2);
      has_base_ = has_base_ || message.has_base_end();
      if (message.number() > 0) newest_ = message.number();
      if (message.has_in_sync()) follows_ = message.in_sync().view();
      if (is_quick_ && has_base_) answer.set_applied(newest_);
      answer.set_follows(follows_);
    }
    ps::ServerHeader out;
    out.set_version(kWireVersion);
    out.set_replication(answer.SerializeAsString());
    server_->Send(stream, EncodeFrame(out));
  }
  void OnClosed(FrameServer::StreamId) override {}

  bool has_base() const {
    const std::lock_guard lock(mutex_);
    return has_base_;
  }
  void BeQuick() {
    const std::lock_guard lock(mutex_);
    is_quick_ = true;
  }

 private:
  mutable std::mutex mutex_;  // guards the following
  bool has_base_ = false, is_quick_ = false;
  uint64_t newest_ = 0, follows_ = 0;
  std::unique_ptr<FrameServer> server_;
};

struct Primary final : Replication::Host {
  void TakeOver(std::unique_ptr<ShardReplay>) override {}
  void StepDown() override {}
  void Propose() override {}
  void LetGo() override {}
  void GoOn() override {}
  int64_t FrameBytes() const override { return 0; }
  std::optional<ReplicaBase> Base() override { return ReplicaBase(); }
  void OnEnd(const absl::Status& status) override { FAIL() << status; }
};

TEST(BackupBacklog, AnswersWaitForABackupThatIsFarBehindUntilItHasTheShardOrIsLost) {
  for (const bool is_lost : {false, true}) {
    ClusterSpec cluster{.ps = {FreeAddress(), FreeAddress()}, .workers = {"127.0.0.2:1"}};
    std::optional<SlowBackup> backup(std::in_place, cluster.ps[1]);
    std::mutex mutex;
    Outbox outbox;
    Primary host;
    int answered = 0, told = 0;
    constexpr int kPushes = 100;
    constexpr size_t kFloats = 100;
    Replication primary({.cluster = cluster,
                         .view = std::make_shared<ClusterView>(cluster, TaskId{Role::kPs, 0}),
                         .own = {Role::kPs, 0},
                         .partner = {Role::kPs, 1},
                         .transport = Transport::kTcp,
                         .silence = std::chrono::minutes(1),  // a lost one is known by its connection
                         .most_behind_bytes = 10 * kFloats * sizeof(float),
                         .name = "ps:0"},
                        /*frames=*/nullptr, &outbox, &host, &mutex);
    const auto push = [&] {
      const std::lock_guard lock(mutex);
      const auto values = std::make_shared<std::vector<float>>(kFloats);
      primary.Log(journal::Record(), FloatPayload({ShareFloats(values)}, /*skip_bytes=*/0));
      outbox.Answer([&] { ++answered; });
    };
    const auto await_answered = [&](int count) {
      return Eventually([&] {
        const std::lock_guard lock(mutex);
        return answered == count;
      });
    };
    push();
    ASSERT_TRUE(Eventually([&] { return backup->has_base(); }));
    // Without the first one nothing is answered at all.
    backup.reset();
    ASSERT_TRUE(await_answered(1));
    backup.emplace(cluster.ps[1]);
    ASSERT_TRUE(Eventually([&] { return backup->has_base(); }));
    for (int i = 1; i < kPushes; ++i) push();
    {
      const std::lock_guard lock(mutex);
      EXPECT_GE(answered, 10);
      EXPECT_LE(answered, 12);
      outbox.Send([&] { ++told; });
      EXPECT_EQ(told, 1) << "other servers hear on";
    }
    is_lost ? backup.reset() : backup->BeQuick();
    EXPECT_TRUE(await_answered(kPushes));
    EXPECT_TRUE(Eventually([&] {
      const std::lock_guard lock(mutex);
      return primary.is_safe() == !is_lost;
    }));
  }
}

}  // namespace
}  // namespace muster
