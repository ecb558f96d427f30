#include "agent/secret_stream.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Pair() {
    ::signal(SIGPIPE, SIG_IGN);
    int fds[2];
    MUSTER_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    client = UniqueFd(fds[0]);
    server = UniqueFd(fds[1]);
  }
  UniqueFd client, server;
};

std::string ReadAll(SecretStream& stream, absl::Status* status) {
  std::string all, piece(100'000, '\0');
  while (true) {
    const auto n = stream.Read(piece);
    *status = n.status();
    if (!n.ok() || *n == 0) return all;
    all.append(piece, 0, *n);
  }
}

TEST(SecretStream, CarriesBytesBothWaysAndSaysTheEnd) {
  Pair pair;
  const std::string secret = RandomSecret();
  std::string much(5'000'000, '\0');
  RandomStream random(1);
  for (char& c : much) c = static_cast<char>(random.Next());
  std::jthread server([&, socket = std::move(pair.server)]() mutable {
    auto stream = SecretStream::Accept(std::move(socket), {.secret = secret});
    ASSERT_TRUE(stream.ok()) << stream.status();
    std::string question(4, '\0');
    ASSERT_EQ(stream->Read(question).value_or(0), 4u);
    EXPECT_EQ(question, "more");
    EXPECT_TRUE(stream->Write(much).ok());
    EXPECT_TRUE(stream->Close().ok());
  });
  auto stream = SecretStream::Connect(std::move(pair.client), {.secret = secret});
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE(stream->Write("more").ok());
  absl::Status status;
  EXPECT_EQ(ReadAll(*stream, &status), much);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(SecretStream, NeitherEndTalksToOneWithAnotherSecret) {
  Pair pair;
  std::jthread server([socket = std::move(pair.server)]() mutable {
    const auto stream = SecretStream::Accept(std::move(socket), {.secret = RandomSecret()});
    EXPECT_TRUE(absl::IsUnavailable(stream.status())) << stream.status();
  });
  const auto stream = SecretStream::Connect(std::move(pair.client), {.secret = RandomSecret()});
  EXPECT_TRUE(absl::IsUnavailable(stream.status())) << stream.status();
  EXPECT_TRUE(absl::IsInvalidArgument(
      SecretStream::Connect(UniqueFd(::open("/dev/null", O_RDWR)), {.secret = "too short"}).status()));
}

// Who sits between the two passes on everything, but for one byte.
TEST(SecretStream, NoticesAChangedByte) {
  for (const size_t changed : {size_t{3}, size_t{700}, size_t{20'000}, size_t{100'000}}) {
    Pair near, far;
    // Of a record whose length has grown, the rest is waited for.
    const SecretStream::Options options{.secret = RandomSecret(),
                                        .idle_timeout = std::chrono::milliseconds(500)};
    std::jthread middle([&, changed] {
      std::string bytes(4096, '\0');
      size_t passed = 0;
      for (ssize_t n; (n = ::read(near.client.get(), bytes.data(), bytes.size())) > 0; passed += n) {
        if (changed >= passed && changed < passed + n) bytes[changed - passed] ^= 1;
        if (::write(far.server.get(), bytes.data(), n) != n) break;
      }
      ::shutdown(far.server.get(), SHUT_WR);
    });
    std::jthread back([&] {
      std::string bytes(4096, '\0');
      for (ssize_t n; (n = ::read(far.server.get(), bytes.data(), bytes.size())) > 0;) {
        if (::write(near.client.get(), bytes.data(), n) != n) break;
      }
      ::shutdown(near.client.get(), SHUT_WR);
    });
    std::jthread server([&] {
      auto stream = SecretStream::Accept(std::move(near.server), options);
      if (stream.ok() && stream->Write(std::string(200'000, 'x')).ok()) (void)stream->Close();
    });
    auto stream = SecretStream::Connect(std::move(far.client), options);
    absl::Status status = stream.status();
    std::string got;
    if (stream.ok()) got = ReadAll(*stream, &status);
    EXPECT_FALSE(status.ok()) << changed;
    EXPECT_EQ(got.find_first_not_of('x'), std::string::npos);
    stream = Cancelled("gone");
  }
}

TEST(SecretStream, AnEndWithoutAWordIsNoEnd) {
  Pair pair;
  const std::string secret = RandomSecret();
  std::jthread server([&, socket = std::move(pair.server)]() mutable {
    auto stream = SecretStream::Accept(std::move(socket), {.secret = secret});
    ASSERT_TRUE(stream.ok() && stream->Write("half of it").ok());
  });
  auto stream = SecretStream::Connect(std::move(pair.client), {.secret = secret});
  ASSERT_TRUE(stream.ok());
  absl::Status status;
  EXPECT_EQ(ReadAll(*stream, &status), "half of it");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

// A byte of a record that never ends, each few milliseconds.
TEST(SecretStream, WhoGreetsForEverHasNoConnection) {
  Pair pair;
  std::jthread stranger([&](const std::stop_token& stop) {
    const std::string record("\x16\x03\x01\x40\x00", 5);
    for (size_t i = 0; !stop.stop_requested(); ++i) {
      const char byte = i < record.size() ? record[i] : '\0';
      if (::send(pair.client.get(), &byte, 1, MSG_NOSIGNAL) != 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const auto stream = SecretStream::Accept(
      std::move(pair.server), {.secret = RandomSecret(), .greeting_timeout = std::chrono::milliseconds(200)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream.status())) << stream.status();
}

TEST(SecretStream, WaitsForNobodyLongerThanItMay) {
  Pair silent;
  const auto late = SecretStream::Connect(
      std::move(silent.client), {.secret = RandomSecret(), .idle_timeout = std::chrono::milliseconds(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  Pair other;
  int stop[2];
  ASSERT_EQ(::pipe2(stop, O_CLOEXEC), 0);
  const UniqueFd stopped(stop[0]);
  ::close(stop[1]);
  const auto cancelled =
      SecretStream::Accept(std::move(other.server), {.secret = RandomSecret(), .stop_fd = stopped.get()});
  EXPECT_TRUE(absl::IsCancelled(cancelled.status())) << cancelled.status();
}

}  // namespace
}  // namespace muster
