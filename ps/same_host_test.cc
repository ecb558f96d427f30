// Parameter servers whose workers are on the same host.
#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/local_socket.h"
#include "ps/frame_server.h"
#include "ps/local_stream.h"
#include "ps/shard_connection.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

// Servers and workers start to use it.
void GoLocal(Cluster& cluster) {
  cluster.transport = Transport::kAuto;
  cluster.StartAgain();
}

bool IsLocal(const Cluster& cluster, Transport transport) {
  const auto connection =
      ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, cluster.Identity({Role::kWorker, 0}),
                               transport, Now() + std::chrono::seconds(20));
  EXPECT_TRUE(connection.ok()) << connection.status();
  return connection.ok() && (*connection)->is_local();
}

// Of the parameter servers of this process.
std::vector<std::string> LocalNames() {
  std::set<std::string> inodes;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(fd, ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  std::string line;
  std::getline(sockets, line);  // of headings
  while (std::getline(sockets, line)) {
    std::istringstream words(line);
    std::string word, inode, name;
    for (int i = 0; i < 6; ++i) words >> word;
    words >> inode >> name;
    if (name.starts_with("@muster-") && inodes.contains(inode)) names.push_back(name.substr(1));
  }
  return names;
}

TEST(SameHost, BothEndsHaveToWantIt) {
  for (const bool tls : {false, true}) {
    Cluster cluster(1, 1, UpdateMode::kSync, {{}, {}}, tls);
    EXPECT_FALSE(IsLocal(cluster, Transport::kAuto));
    GoLocal(cluster);
    EXPECT_TRUE(IsLocal(cluster, Transport::kAuto));
    EXPECT_FALSE(IsLocal(cluster, Transport::kTcp));
  }
}

TEST(SameHost, TheBitsAreThoseOfTheNetwork) {
  Cluster over_network(2, 3, UpdateMode::kSync), on_host(2, 3, UpdateMode::kSync, {{}, {}}, /*tls=*/true);
  GoLocal(on_host);
  EXPECT_EQ(TrainAll(on_host, 20), TrainAll(over_network, 20));
}

TEST(SameHost, AServerThatComesBackIsConnectedToAgain) {
  Cluster cluster(2, 1, UpdateMode::kAsync, kPlainSgd);
  cluster.keeps_journal = true;
  cluster.transport = Transport::kAuto;
  cluster.KeepCheckpoints(3000);
  PushOnes(cluster, 300, [&](int i) {
    if (i % 100 == 50) cluster.StartServer((i / 100) % 2);
  });
}

TEST(SameHost, WhoHasNoTokenIsHungUpOn) {
  Cluster cluster(1, 1, UpdateMode::kAsync, kPlainSgd);
  EXPECT_THAT(LocalNames(), testing::IsEmpty());
  GoLocal(cluster);
  const std::vector<std::string> names = LocalNames();
  ASSERT_THAT(names, testing::SizeIs(1));
  for (const size_t length : {size_t{1}, size_t{40}, size_t{100'000}}) {
    for (int i = 0; i < 300; ++i) {
      auto socket = ConnectLocal(names[0]);
      ASSERT_TRUE(socket.ok()) << socket.status();
      std::mutex mutex;
      std::condition_variable changed;
      bool has_broken = false, has_frame = false;
      const auto stream = *LocalStream::Open(*std::move(socket), LocalStream::Copying::kAtOnce,
                                             [&](const std::optional<grpc::ByteBuffer>& frame) {
                                               const std::lock_guard lock(mutex);
                                               (frame ? has_frame : has_broken) = true;
                                               changed.notify_all();
                                               return true;
                                             });
      const grpc::Slice guess(std::string(length, 'x'));
      stream->Send(grpc::ByteBuffer(&guess, 1));
      std::unique_lock lock(mutex);
      ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return has_broken; }));
      EXPECT_FALSE(has_frame);
    }
  }
  PushOnes(cluster, 10, [](int) {});
}

// What it is sent is not kept for as long as it likes.
TEST(SameHost, WhoReadsNothingIsHungUpOn) {
  struct Flood final : FrameServer::Handler {
    size_t bytes = 0;  // of a frame
    std::unique_ptr<FrameServer> server;
    std::atomic<bool> has_closed = false;
    void OnFrame(FrameServer::StreamId stream, grpc::ByteBuffer*) override {
      const grpc::Slice slice(std::string(bytes, 'x'));
      for (int i = 0; i < 10'000; ++i) server->Send(stream, grpc::ByteBuffer(&slice, 1));
    }
    void OnClosed(FrameServer::StreamId) override { has_closed = true; }
  };
  for (const size_t bytes : {size_t{10}, size_t{100'000}}) {
    Flood flood;
    flood.bytes = bytes;
    const std::string address = FreeAddress();
    auto server = FrameServer::Listen(address, std::nullopt, Transport::kAuto, &flood);
    ASSERT_TRUE(server.ok()) << server.status();
    flood.server = *std::move(server);
    // As a client of this host begins (ps/shard_connection.cc).
    grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, kSameHostMethod, &queue);
    grpc::ByteBuffer offered;
    const auto await = [&] {
      void* tag;
      bool ok = false;
      const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
      return queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT && ok;
    };
    call->StartCall(nullptr);
    ASSERT_TRUE(await());
    call->Read(&offered, nullptr);
    ASSERT_TRUE(await());
    ps::SameHostOffer offer;
    ASSERT_TRUE(offer.ParseFromString(BytesOf(offered)));
    auto socket = ConnectLocal(offer.name());
    ASSERT_TRUE(socket.ok()) << socket.status();
    std::promise<void> done;
    {
      const auto stream =
          *LocalStream::Open(*std::move(socket), LocalStream::Copying::kAtOnce,
                             [is_done = done.get_future().share()](const std::optional<grpc::ByteBuffer>&) {
                               is_done.wait();
                               return true;
                             });
      for (const std::string& words : {offer.token(), std::string("go on")}) {
        const grpc::Slice slice(words);
        stream->Send(grpc::ByteBuffer(&slice, 1));
      }
      EXPECT_TRUE(Eventually([&] { return flood.has_closed.load(); })) << bytes;
      done.set_value();
    }
    context.TryCancel();
    queue.Shutdown();
    while (await()) {
    }
    flood.server = nullptr;
  }
}

// As in some containers; by a limit on the sizes of files, which shared memory is one of.
TEST(SameHost, WhereMemoryCannotBeSharedAllIsTcp) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto train = [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 10, .rlim_max = 10};
    if (::setrlimit(RLIMIT_FSIZE, &none) != 0) ::_exit(2);
    Cluster cluster(1, 1, UpdateMode::kAsync, kPlainSgd);
    GoLocal(cluster);
    const bool is_local = IsLocal(cluster, Transport::kAuto);
    PushOnes(cluster, 10, [](int) {});
    ::_exit(is_local || testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(train(), testing::ExitedWithCode(0), "");
}

TEST(SameHost, FaultsAreSeenThereToo) {
  Cluster cluster(1, 1, UpdateMode::kAsync, kPlainSgd);
  ShardConnection::InjectFaults(FrameFaultOptions{
      .lost = 0.1, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(20), .seed = 3});
  const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
  GoLocal(cluster);
  PushOnes(cluster, 100, [](int) {});
}

}  // namespace
}  // namespace muster
