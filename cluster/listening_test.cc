#include "cluster/listening.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cluster/acceptor.h"

namespace muster {
namespace {

ClusterSpec At(const std::string& address) { return {.workers = {address}}; }

// What a follower has tried, one after the other.
class Attempts {
 public:
  ListenerFollower::Listen Listen() {
    return [this](const std::string& address) -> absl::Status {
      const std::lock_guard lock(mutex_);
      addresses_.push_back(address);
      changed_.notify_all();
      return failures_-- > 0 ? Unavailable("not yet") : absl::OkStatus();
    };
  }
  void FailNext(int times) {
    const std::lock_guard lock(mutex_);
    failures_ = times;
  }
  std::vector<std::string> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return addresses_.size() >= count; });
    return addresses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> addresses_;
  int failures_ = 0;
};

TEST(ListenTcp, SaysThatAPortIsTaken) {
  const auto first = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  ASSERT_EQ(::getsockname(first->get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const auto second = ListenTcp(absl::StrFormat("127.0.0.1:%d", ntohs(bound.sin_port)));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
}

TEST(ListenTcp, SaysThatAnAddressIsNotHere) {
  EXPECT_TRUE(absl::IsUnavailable(ListenTcp("192.0.2.1:2222").status()));
}

TEST(Acceptor, TakesConnectionsAtAllItsSocketsUntilItEnds) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> taken;  // where
  const auto port_of = [](const UniqueFd& socket) {
    sockaddr_in bound{};
    socklen_t size = sizeof bound;
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
    return bound.sin_port;
  };
  std::optional<Acceptor> acceptor;
  acceptor.emplace([&](const UniqueFd&, int listening) {
    const std::lock_guard lock(mutex);
    taken.push_back(listening);
    changed.notify_all();
  });
  for (size_t count = 1; count <= 2; ++count) {
    UniqueFd listening = *ListenTcp("127.0.0.1:0");
    const int number = listening.get();
    sockaddr_in there{
        .sin_family = AF_INET, .sin_port = port_of(listening), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    acceptor->Add(std::move(listening));
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return taken.size() == count; }));
    EXPECT_EQ(taken.back(), number);
  }
  acceptor.reset();  // with its thread, and the sockets
}

TEST(AwaitOwnAddress, EndsWithAnAddressOfThisMachineOrTheTimeout) {
  ClusterView view(At("192.0.2.1:2222"), {Role::kWorker, 0});
  AwaitOwnAddress(view, "", std::chrono::milliseconds(1));
  AwaitOwnAddress(view, "127.0.0.1", std::chrono::hours(1));
  std::jthread mover(
      [&] { EXPECT_TRUE(view.Update({.generation = 1, .cluster = At("127.0.0.1:2222")}).ok()); });
  AwaitOwnAddress(view, "", std::chrono::hours(1));
}

TEST(ListenerFollower, ListensAtEachNewAddressOnce) {
  ClusterView view(At("a:1"), {Role::kWorker, 0});
  Attempts attempts;
  const ListenerFollower follower(&view, "", "a:1", attempts.Listen());
  ASSERT_TRUE(view.Update({.generation = 1, .cluster = At("b:1")}).ok());
  EXPECT_EQ(attempts.Await(1), std::vector<std::string>{"b:1"});
  ASSERT_TRUE(view.Update({.generation = 2, .cluster = At("a:1")}).ok());
  ASSERT_TRUE(view.Update({.generation = 3, .cluster = At("c:1")}).ok());
  EXPECT_EQ(attempts.Await(2), (std::vector<std::string>{"b:1", "c:1"}));
}

TEST(ListenerFollower, TriesAgain) {
  ClusterView view(At("a:1"), {Role::kWorker, 0});
  Attempts attempts;
  attempts.FailNext(2);
  const ListenerFollower follower(&view, "", "a:1", attempts.Listen());
  ASSERT_TRUE(view.Update({.generation = 1, .cluster = At("b:1")}).ok());
  EXPECT_EQ(attempts.Await(3), (std::vector<std::string>{"b:1", "b:1", "b:1"}));
}

TEST(ListenerFollower, SeesWhatHasChangedBeforeItWasThere) {
  ClusterView view(At("a:1"), {Role::kWorker, 0});
  ASSERT_TRUE(view.Update({.generation = 1, .cluster = At("b:1")}).ok());
  Attempts attempts;
  const ListenerFollower follower(&view, "", "a:1", attempts.Listen());
  EXPECT_EQ(attempts.Await(1), std::vector<std::string>{"b:1"});
}

TEST(ListenerFollower, AHostToBindToStays) {
  ClusterView view(At("a:1"), {Role::kWorker, 0});
  Attempts attempts;
  const ListenerFollower follower(&view, "0.0.0.0", "0.0.0.0:1", attempts.Listen());
  ASSERT_TRUE(view.Update({.generation = 1, .cluster = At("b:1")}).ok());
  ASSERT_TRUE(view.Update({.generation = 2, .cluster = At("b:2")}).ok());
  EXPECT_EQ(attempts.Await(1), std::vector<std::string>{"0.0.0.0:2"});
}

}  // namespace
}  // namespace muster
