#include "ps/local_stream.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/local_socket.h"
#include "base/random.h"
#include "ps/shared_segment.h"
#include "ps/wire.h"

namespace muster {
namespace {

using Copying = LocalStream::Copying;

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Bytes that say which frame they are of, and where in it they are.
std::string Contents(size_t bytes, uint64_t number) {
  std::string contents(bytes, '\0');
  RandomStream random(number);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t next = random.Next();
    std::memcpy(contents.data() + i, &next, std::min<size_t>(8, bytes - i));
  }
  return contents;
}

grpc::ByteBuffer Frame(const std::string& contents) {
  const grpc::Slice slices[] = {grpc::Slice(contents.substr(0, contents.size() / 3)),
                                grpc::Slice(contents.substr(contents.size() / 3))};
  return {slices, 2};
}

// One end, and what has come there.
struct End {
  explicit End(UniqueFd socket, Copying copying = Copying::kAtOnce)
      : stream(*LocalStream::Open(std::move(socket), copying, [this](std::optional<grpc::ByteBuffer> frame) {
          const std::lock_guard lock(mutex);
          frames.push_back(std::move(frame));
          changed.notify_all();
          return true;
        })) {}
  ~End() { stream = nullptr; }

  bool Await(size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return frames.size() >= count; });
  }
  // Empty: the stream broke, or nothing has come for long.
  std::string Next() {
    if (!Await(1)) return "";
    const std::lock_guard lock(mutex);
    const std::optional<grpc::ByteBuffer> frame = std::move(frames.front());
    frames.pop_front();
    return frame ? BytesOf(*frame) : "";
  }
  bool HasBroken() {
    if (!Await(1)) return false;
    const std::lock_guard lock(mutex);
    return !frames.back();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::optional<grpc::ByteBuffer>> frames;
  std::unique_ptr<LocalStream> stream;
};

// Of this process: shared frames that are mapped.
int MappedSegments() {
  const std::string maps = *ReadFile("/proc/self/maps");
  int count = 0;
  for (size_t at = maps.find("muster-shared"); at != std::string::npos;
       at = maps.find("muster-shared", at + 1)) {
    ++count;
  }
  return count;
}

TEST(LocalStream, FramesOfAllSizesArriveWholeAndInOrder) {
  constexpr size_t kSizes[] = {1, 7, 4096, 16 << 10, (16 << 10) + 1, 100'000, 3 << 20};
  for (const Copying copying : {Copying::kAtOnce, Copying::kLater}) {
    auto [near, far] = SocketPair();
    End a(std::move(near), copying), b(std::move(far), copying);
    constexpr int kFrames = 60;
    static_assert(kSizes[0] <= 4096, "the first is small");
    for (int i = 0; i < kFrames; ++i) {
      a.stream->Send(Frame(Contents(kSizes[i % std::size(kSizes)], i)));
      b.stream->Send(Frame(Contents(kSizes[(i * 3) % std::size(kSizes)], 1000 + i)));
    }
    for (int i = 0; i < kFrames; ++i) {
      ASSERT_TRUE(b.Next() == Contents(kSizes[i % std::size(kSizes)], i)) << i;
      ASSERT_TRUE(a.Next() == Contents(kSizes[(i * 3) % std::size(kSizes)], 1000 + i)) << i;
    }
  }
  EXPECT_EQ(MappedSegments(), 0);
}

TEST(LocalStream, AReceiverMayKeepAllFramesAndNoneIsWrittenTo) {
  auto [near, far] = SocketPair();
  End a(std::move(near)), b(std::move(far));
  constexpr int kFrames = 100;
  constexpr size_t kBytes = 200'000;
  a.stream->Send(Frame("first"));
  for (int i = 0; i < kFrames; ++i) a.stream->Send(Frame(Contents(kBytes, i)));
  a.stream->Send(Frame("last"));
  ASSERT_TRUE(b.Await(kFrames + 2));
  EXPECT_EQ(b.Next(), "first");
  for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(b.Next() == Contents(kBytes, i)) << i;
  EXPECT_EQ(b.Next(), "last");
}

TEST(LocalStream, FramesOutliveTheStream) {
  std::optional<grpc::ByteBuffer> frame;
  {
    auto [near, far] = SocketPair();
    End a(std::move(near)), b(std::move(far));
    a.stream->Send(Frame("first"));
    a.stream->Send(Frame(Contents(1 << 20, 5)));
    ASSERT_TRUE(b.Await(2));
    frame = std::move(b.frames.back());
  }
  EXPECT_TRUE(BytesOf(*frame) == Contents(1 << 20, 5));
  EXPECT_EQ(MappedSegments(), 1);
  frame.reset();
  EXPECT_EQ(MappedSegments(), 0);
}

TEST(LocalStream, GrowingFramesLeaveNoMemoryBehind) {
  auto [near, far] = SocketPair();
  End a(std::move(near)), b(std::move(far));
  a.stream->Send(Frame("first"));
  ASSERT_EQ(b.Next(), "first");
  for (int i = 1; i <= 40; ++i) {
    a.stream->Send(Frame(Contents(i * 50'000, i)));
    ASSERT_TRUE(b.Next() == Contents(i * 50'000, i)) << i;
    ASSERT_LE(MappedSegments(), 2 * 8);  // of both ends, which are one process here
  }
}

TEST(LocalStream, TheOtherEndIsGone) {
  auto [near, far] = SocketPair();
  End a(std::move(near));
  { const End b(std::move(far)); }
  EXPECT_TRUE(a.HasBroken());
  a.stream->Send(Frame("to nobody"));
  auto [third, fourth] = SocketPair();
  End c(std::move(third)), d(std::move(fourth));
  c.stream->Break();
  EXPECT_TRUE(c.HasBroken());
  EXPECT_TRUE(d.HasBroken());
}

// By hand: what this class would not send.
void SendRaw(const UniqueFd& socket, const void* bytes, size_t size, const std::vector<int>& fds = {}) {
  iovec part{.iov_base = const_cast<void*>(bytes), .iov_len = size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  if (!fds.empty()) {
    const size_t bytes_of_fds = fds.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes_of_fds);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(bytes_of_fds);
    std::memcpy(CMSG_DATA(head), fds.data(), bytes_of_fds);
  }
  ASSERT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

TEST(LocalStream, WhatMakesNoSenseIsHungUpOn) {
  struct Raw {
    uint32_t kind, segment;
    uint64_t bytes;
  };
  const UniqueFd not_sealed(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(not_sealed.get(), 1 << 20), 0);
  const auto sealed = SharedSegment::Create(1000);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_NE(::ftruncate((*sealed)->fd(), 10), 0);  // it cannot shrink under its reader
  const UniqueFd large(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(large.get(), int64_t{1} << 40), 0);
  ASSERT_EQ(::fcntl(large.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const int good = (*sealed)->fd();
  const Raw first = {1, 0, 0}, segment = {2, 1, 10};
  const struct {
    Raw raw;
    size_t size = sizeof(Raw);
    std::vector<int> fds;
    bool is_first = false;
  } kCases[] = {
      {.raw = {9, 0, 0}},                                 // no kind
      {.raw = {1, 0, 5}},                                 // shorter than it says
      {.raw = {1, 0, 0}, .size = 3},                      // no whole datagram
      {.raw = segment},                                   // a segment that never came
      {.raw = segment, .fds = {not_sealed.get()}},        // one that could shrink
      {.raw = segment, .fds = {large.get()}},             // one that nobody needs
      {.raw = segment, .fds = {good, good}},              // two at a time
      {.raw = segment, .fds = {good}, .is_first = true},  // before who it is has been said
      {.raw = {2, 1, 1 << 20}, .fds = {good}},            // longer than the segment
      {.raw = {2, 1, UINT64_MAX}, .fds = {good}},         //
      {.raw = {3, 1, 0}},                                 // retires what never was
      {.raw = {1, 0, 0}, .size = 0},                      // the end
  };
  const auto open_fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_fds();
  for (const auto& test : kCases) {
    auto [near, far] = SocketPair();
    End end(std::move(near));
    if (!test.is_first) {
      SendRaw(far, &first, sizeof first);
      ASSERT_EQ(end.Next(), "");
    }
    if (test.size > 0) {
      SendRaw(far, &test.raw, test.size, test.fds);
    } else {
      far.reset();
    }
    EXPECT_TRUE(end.HasBroken()) << test.raw.kind << " " << test.raw.bytes;
  }
  EXPECT_EQ(open_fds(), before);
  RandomStream random(17);
  for (int i = 0; i < 10'000; ++i) {
    auto [near, far] = SocketPair();
    End end(std::move(near));
    const std::string noise = Contents(1 + random.NextBelow(40), random.Next());
    SendRaw(far, noise.data(), noise.size());
    far.reset();
    ASSERT_TRUE(end.HasBroken());
  }
}

TEST(LocalStream, ListenersAreFoundByName) {
  const std::string name = "muster-test-" + RandomName(10);
  EXPECT_FALSE(ConnectLocal(name).ok());
  std::mutex mutex;
  std::vector<std::unique_ptr<End>> ends;
  auto listener = LocalListener::Listen(name, [&](UniqueFd socket) {
    const std::lock_guard lock(mutex);
    ends.push_back(std::make_unique<End>(std::move(socket)));
    ends.back()->stream->Send(Frame("welcome"));
  });
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_FALSE(LocalListener::Listen(name, [](UniqueFd) {}).ok());
  auto socket = ConnectLocal(name);
  ASSERT_TRUE(socket.ok()) << socket.status();
  End client(*std::move(socket));
  EXPECT_EQ(client.Next(), "welcome");
  *listener = nullptr;
  EXPECT_FALSE(ConnectLocal(name).ok());
}

}  // namespace
}  // namespace muster
