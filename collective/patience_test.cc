// Operations that take longer than anybody waits for a rank that does not get on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <thread>

#include "base/logging.h"
#include "collective/local_group.h"
#include "collective/peer_links.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// Made before there are threads, as meeting_test.cc has it.
[[maybe_unused]] const auto* const kLogger = spdlog::default_logger_raw();

// Far longer than a loaded machine keeps a thread waiting.
constexpr Duration kTimeout = seconds(5);
// What a slow rank does between two parts of an operation, which takes longer than that: to be slow is what
// is tested here, and nothing waits for the pause to have been enough.
constexpr Duration kPause = milliseconds(10);
constexpr size_t kPauses = 3 * (kTimeout / kPause) / 2;

// As many bytes in each direction; before it sends another one it does something else.
class ByteByByte : public Flow {
 public:
  ByteByByte(size_t bytes, std::function<void(size_t sent)> between)
      : from_(bytes), to_(bytes), between_(std::move(between)) {}
  std::span<const std::byte> ToSend() override {
    return std::span(from_).subspan(sent_, std::min<size_t>(1, from_.size() - sent_));
  }
  void Sent(size_t bytes) override { between_(sent_ += bytes); }
  std::span<std::byte> Room() override { return std::span(to_).subspan(received_); }
  void Received(size_t bytes) override { received_ += bytes; }
  bool is_done() const override { return sent_ == from_.size() && received_ == to_.size(); }

 private:
  std::vector<std::byte> from_, to_;
  size_t sent_ = 0, received_ = 0;
  const std::function<void(size_t)> between_;
};

class PeerLinksTest : public testing::Test {
 protected:
  PeerLinksTest() {
    std::vector<GroupMember> members;
    for (int rank = 0; rank < 2; ++rank) {
      listeners_.push_back(*PeerListener::Listen("127.0.0.1:0", nullptr));
      members.push_back({{Role::kWorker, rank}, listeners_.back()->address()});
    }
    for (int rank = 0; rank < 2; ++rank) {
      const GroupIdentity identity{.members = members, .rank = rank};
      links_.push_back(std::make_unique<PeerLinks>(identity, *listeners_[rank], kTimeout, never_));
    }
  }

  absl::Status Drive(
      int rank, std::function<void(size_t)> between = [](size_t) {}) {
    MUSTER_RETURN_IF_ERROR(links_[rank]->Connect({1 - rank}, Now() + seconds(20)));
    ByteByByte flow(kPauses, std::move(between));
    return links_[rank]->Drive(flow, 1 - rank, 1 - rank);
  }

  Interrupt never_;
  std::vector<std::unique_ptr<PeerListener>> listeners_;
  std::vector<std::unique_ptr<PeerLinks>> links_;
};

TEST_F(PeerLinksTest, WhoIsSlowIsWaitedForWhileItGetsOn) {
  auto slow = std::async(std::launch::async,
                         [&] { return Drive(1, [](size_t) { std::this_thread::sleep_for(kPause); }); });
  EXPECT_EQ(Drive(0), absl::OkStatus());
  EXPECT_EQ(slow.get(), absl::OkStatus());
}

TEST_F(PeerLinksTest, WhoStopsIsNot) {
  std::latch has_failed(1);
  auto stops = std::async(std::launch::async, [&] {
    return Drive(1, [&](size_t sent) {
      if (sent == kPauses / 2) has_failed.wait();
    });
  });
  const absl::Status status = Drive(0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker:1"));
  links_[0] = nullptr;
  has_failed.count_down();
  EXPECT_FALSE(stops.get().ok());
}

// As the first rank of a host does, which exchanges sums with other hosts meanwhile.
TEST(LocalGroupTest, WhoGetsOnElsewhereIsWaitedFor) {
  Interrupt never;
  const auto options = [](int index) {
    return LocalGroupOptions{.index = index, .names = {"worker:0", "worker:1"}, .timeout = kTimeout};
  };
  LocalMeetingPlace place = *MakeLocalMeetingPlace();
  auto waits = std::async(std::launch::async, [&, secret = place.secret]() -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(const auto group,
                            LocalGroup::Follow(options(1), secret, Now() + seconds(20), never));
    std::byte data[1];
    return group->Broadcast(data, 0);
  });
  const auto group = LocalGroup::Lead(options(0), std::move(place), Now() + seconds(20), never);
  ASSERT_TRUE(group.ok()) << group.status();
  for (size_t i = 0; i < kPauses; ++i) {
    ++*(*group)->progress();
    std::this_thread::sleep_for(kPause);
  }
  std::byte data[1];
  EXPECT_EQ((*group)->Broadcast(data, 0), absl::OkStatus());
  EXPECT_EQ(waits.get(), absl::OkStatus());
}

}  // namespace
}  // namespace muster
