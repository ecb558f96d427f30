// Contents passed on by the real binary, from one root to another.
#include "agent/relay.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "agent/client_testing.h"
#include "agent/secret_stream.h"
#include "agent/sockets.h"
#include "agent/store.h"
#include "base/archive.h"
#include "base/random.h"
#include "base/sha256.h"
#include "tests/support/checkout.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class RelayTest : public testing::Test {
 protected:
  RelayTest() {
    const std::filesystem::path in = folder_.path() / "in";
    std::filesystem::create_directories(in / "bin");
    std::ofstream(in / "bin/hello") << "#!/bin/sh\necho hello $1\n";
    std::filesystem::permissions(in / "bin/hello", std::filesystem::perms(0755));
    std::filesystem::create_symlink("hello", in / "bin/hi");
    std::ofstream(in / "empty");
    std::string much(3'000'001, '\0');
    RandomStream random(7);
    for (char& c : much) c = static_cast<char>(random.Next());
    std::ofstream(in / "much") << much;
    archive_ = *PackDirectory(in);
    sha256_ = Sha256Hex(archive_);
    std::filesystem::create_directories(source_ / "store");
    std::filesystem::copy(
        in, source_ / "store" / sha256_,
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  }

  struct Running {
    Process process;
    UniqueFd input;  // its stdin
    std::filesystem::path output;

    std::string text() const { return *ReadFile(output); }
    int Wait() { return process.Wait(TestDeadline()).value_or(-1); }
  };

  Running Start(std::vector<std::string> arguments, const std::string& input) {
    arguments.insert(arguments.begin(), BuildPath("bin/muster-agent"));
    int fds[2];
    MUSTER_CHECK(::pipe2(fds, O_CLOEXEC) == 0);
    const UniqueFd read_end(fds[0]);
    std::filesystem::path path = folder_.path() / RandomName(12);
    const UniqueFd output(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    auto process = Process::Spawn({.argv = std::move(arguments),
                                   .stdin_fd = read_end.get(),
                                   .stdout_fd = output.get(),
                                   .stderr_fd = output.get()});
    MUSTER_CHECK(process.ok());
    Running running{.process = *std::move(process), .input = UniqueFd(fds[1]), .output = std::move(path)};
    MUSTER_CHECK(WriteAll(running.input.get(), input).ok());
    return running;
  }

  Running StartServer(const std::string& secret) {
    Running server = Start({"serve", "--root", source_.string(), "--address", "127.0.0.1"},
                           secret + "\n" + ticket_ + "\n");
    const TimePoint deadline = TestDeadline();
    unsigned port = 0;
    while (std::sscanf(server.text().c_str(), "\nserving %u\n", &port) != 1 && Now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    port_ = port;
    EXPECT_NE(port, 0u) << server.text();
    return server;
  }

  Running StartFetch(const std::filesystem::path& root, const std::string& secret, const std::string& sha256,
                     uint64_t size) {
    return Start({"fetch", "--root", root.string(), "--sha256", sha256, "--size", std::to_string(size),
                  "--address", "127.0.0.1", "--port", std::to_string(port_)},
                 secret + "\n");
  }

  std::vector<std::string> StoreNames(const std::filesystem::path& root) {
    return ListDirectory(root / "store").value_or(std::vector<std::string>{});
  }

  TemporaryDirectory folder_;
  const std::filesystem::path source_ = folder_.path() / "source", target_ = folder_.path() / "target";
  const std::string secret_ = RandomSecret(), ticket_ = RandomSecret();
  std::string archive_, sha256_;
  uint32_t port_ = 0;
};

TEST_F(RelayTest, SeveralFetchTheSameBytesAndThenAnotherFromThem) {
  Running server = StartServer(secret_);
  std::vector<Running> fetches;
  for (int i = 0; i < 3; ++i) {
    fetches.push_back(
        StartFetch(folder_.path() / ("target" + std::to_string(i)), secret_, sha256_, archive_.size()));
  }
  for (Running& fetch : fetches) {
    EXPECT_EQ(fetch.Wait(), 0);
    EXPECT_THAT(fetch.text(), EndsWith("stored " + sha256_ + "\n"));
  }
  Running again = StartFetch(folder_.path() / "target0", secret_, sha256_, archive_.size());
  EXPECT_EQ(again.Wait(), 0);
  EXPECT_EQ(again.text(), "present " + sha256_ + "\n");
  for (int i = 0; i < 3; ++i) {
    const std::filesystem::path root = folder_.path() / ("target" + std::to_string(i));
    EXPECT_EQ(*PackDirectory(root / "store" / sha256_), archive_);
    EXPECT_TRUE(std::filesystem::is_empty(root / "store/tmp"));
  }
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0) << server.text();
}

TEST_F(RelayTest, WhatATaskHasAddedIsNotPassedOn) {
  std::filesystem::remove_all(source_ / "store" / sha256_);
  const auto produce = [&](const ArchiveSink& take) { return take(archive_); };
  ASSERT_TRUE(Store(source_, sha256_, archive_.size(), produce).ok());
  const std::filesystem::path bin = source_ / "store" / sha256_ / "bin";
  std::filesystem::permissions(bin, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(bin / "__pycache__");
  std::ofstream(bin / "__pycache__/added") << "x";
  std::ofstream(bin / "hellp") << "x";
  const Running server = StartServer(secret_);
  Running fetch = StartFetch(target_, secret_, sha256_, archive_.size());
  EXPECT_EQ(fetch.Wait(), 0);
  EXPECT_THAT(fetch.text(), EndsWith("stored " + sha256_ + "\n"));
  EXPECT_EQ(*PackDirectory(target_ / "store" / sha256_), archive_);
}

TEST_F(RelayTest, ASourceThatIsToBlameIsToldFromOtherErrors) {
  Running server = StartServer(secret_);
  // With another secret, of a content that it lacks, or has under a wrong name.
  Running stranger = StartFetch(target_, RandomSecret(), sha256_, archive_.size());
  EXPECT_EQ(stranger.Wait(), 69);
  EXPECT_THAT(stranger.text(), HasSubstr(absl::StrFormat("from 127.0.0.1 port %d: ", port_)));
  Running lacking = StartFetch(target_, secret_, std::string(64, 'a'), archive_.size());
  EXPECT_EQ(lacking.Wait(), 69);
  EXPECT_THAT(lacking.text(), HasSubstr("it is not there"));
  std::filesystem::rename(source_ / "store" / sha256_, source_ / "store" / std::string(64, 'b'));
  Running other = StartFetch(target_, secret_, std::string(64, 'b'), archive_.size());
  EXPECT_EQ(other.Wait(), 69);
  EXPECT_THAT(other.text(), AllOf(HasSubstr(sha256_), HasSubstr(std::string(64, 'b'))));
  Running larger = StartFetch(target_, secret_, std::string(64, 'b'), archive_.size() - 1);
  EXPECT_EQ(larger.Wait(), 69);
  EXPECT_THAT(StoreNames(target_), ElementsAre("tmp"));
  EXPECT_TRUE(std::filesystem::is_empty(target_ / "store/tmp"));
  // What is wrong here is no fault of its. More than any disk holds is more than the command takes.
  ::signal(SIGPIPE, SIG_IGN);
  const auto full = Fetch({.root = target_,
                           .sha256 = std::string(64, 'b'),
                           .size = uint64_t{1} << 60,
                           .address = "127.0.0.1",
                           .port = port_,
                           .secret = secret_,
                           .stop_fd = -1});
  EXPECT_EQ(ExitCodeFor(full.status()), 1) << full.status();
  EXPECT_THAT(full.status().message(), HasSubstr("the disk is too full"));
  EXPECT_EQ(StartFetch(target_, "not a secret", sha256_, archive_.size()).Wait(), 2);
  // Nobody listens.
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_EQ(StartFetch(target_, secret_, sha256_, archive_.size()).Wait(), 69);
}

// One server takes its time for each part of a content, and another stops half way.
// Whoever scans ports knows no secret, and keeps nobody who does from being answered.
TEST_F(RelayTest, WhoSaysNothingIsInNobodysWay) {
  Running server = StartServer(secret_);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    auto socket = ConnectTo("127.0.0.1", port_, /*stop_fd=*/-1, TestDeadline());
    ASSERT_TRUE(socket.ok()) << socket.status();
    silent.push_back(*std::move(socket));
  }
  Running fetch = StartFetch(target_, secret_, sha256_, archive_.size());
  EXPECT_EQ(fetch.Wait(), 0) << fetch.text();
  EXPECT_THAT(StoreNames(target_), Contains(sha256_));
}

TEST_F(RelayTest, ASlowServerIsWaitedForAndASilentOneIsNot) {
  ::signal(SIGPIPE, SIG_IGN);
  for (const bool is_silent : {false, true}) {
    const auto listener = ListenOnFreePort("127.0.0.1", 1, [](uint32_t) { return false; });
    ASSERT_TRUE(listener.ok());
    std::jthread server([&] {
      UniqueFd socket(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      auto stream = SecretStream::Accept(std::move(socket), {.secret = secret_});
      ASSERT_TRUE(stream.ok()) << stream.status();
      std::string bytes(65, '\0');
      ASSERT_TRUE(stream->Read(bytes).ok());
      ASSERT_TRUE(stream->Write("+").ok());
      constexpr size_t kParts = 4;
      for (size_t i = 0; i < kParts; ++i) {
        if (is_silent && i == kParts / 2) {
          (void)stream->Read(bytes);  // until the other end gives up
          return;
        }
        const size_t begin = archive_.size() * i / kParts, end = archive_.size() * (i + 1) / kParts;
        ASSERT_TRUE(stream->Write(std::string_view(archive_).substr(begin, end - begin)).ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(600));
      }
      ASSERT_TRUE(stream->Close().ok());
    });
    std::vector<uint64_t> come;
    const auto fetched = Fetch({.root = target_,
                                .sha256 = sha256_,
                                .size = archive_.size(),
                                .address = "127.0.0.1",
                                .port = listener->port,
                                .secret = secret_,
                                .stop_fd = -1,
                                .progress =
                                    [&](uint64_t bytes) {
                                      come.push_back(bytes);
                                      return absl::OkStatus();
                                    },
                                .silence_limit = std::chrono::seconds(is_silent ? 3 : 60)});
    if (is_silent) {
      EXPECT_TRUE(absl::IsUnavailable(fetched.status())) << fetched.status();
      EXPECT_THAT(fetched.status().message(), HasSubstr("no byte has moved for 3 s"));
    } else {
      EXPECT_TRUE(fetched.ok()) << fetched.status();
      EXPECT_FALSE(come.empty());
    }
    EXPECT_TRUE(std::is_sorted(come.begin(), come.end()));
    EXPECT_TRUE(come.empty() || (come.front() > 0 && come.back() <= archive_.size()));
    std::filesystem::remove_all(target_);
  }
}

TEST_F(RelayTest, EndsWithItsLauncherWhateverItWaitsFor) {
  // A server that says nothing, and one that nobody asks.
  const auto silent = ListenOnFreePort("127.0.0.1", 1, [](uint32_t) { return false; });
  ASSERT_TRUE(silent.ok());
  port_ = silent->port;
  Running fetch = StartFetch(target_, secret_, sha256_, archive_.size());
  const UniqueFd peer(::accept4(silent->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  fetch.input.reset();
  EXPECT_EQ(fetch.Wait(), 130) << fetch.text();
  Running server = StartServer(secret_);
  // One who has come and says nothing.
  auto socket = ConnectTo("127.0.0.1", port_, -1, TestDeadline());
  ASSERT_TRUE(socket.ok()) << socket.status();
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0) << server.text();
}

TEST_F(RelayTest, NothingElseIsHandedOut) {
  Running server = StartServer(secret_);
  std::ofstream(source_ / "store/secret") << "not for others";
  for (const std::string& question : {std::string(64, '.') + "\n", "../store/" + std::string(55, '/') + "\n",
                                      std::string(64, 'A') + "\n", std::string("secret\n")}) {
    auto socket = ConnectTo("127.0.0.1", port_, -1, TestDeadline());
    ASSERT_TRUE(socket.ok()) << socket.status();
    auto stream = SecretStream::Connect(*std::move(socket), {.secret = secret_});
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE(stream->Write(question).ok());
    if (question.size() < 65) continue;  // hangs up in the middle of it
    std::string answer(100, '\0');
    const auto n = stream->Read(answer);
    ASSERT_TRUE(n.ok()) << n.status();
    EXPECT_EQ(answer.substr(0, *n), "-it is not there");
  }
  Running fetch = StartFetch(target_, secret_, sha256_, archive_.size());
  EXPECT_EQ(fetch.Wait(), 0) << fetch.text();
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0);
}

// What it answers until it hangs up.
std::string AnswerTo(const std::string& question, uint32_t port) {
  const auto socket = ConnectTo("127.0.0.1", port, -1, TestDeadline());
  if (!socket.ok() || !WriteAll(socket->get(), question).ok()) return "cannot be asked";
  std::string answer, bytes(65536, '\0');
  while (AwaitReady(socket->get(), POLLIN, -1, TestDeadline()).ok()) {
    const ssize_t n = ::recv(socket->get(), bytes.data(), bytes.size(), 0);
    if (n <= 0) return answer;
    answer.append(bytes, 0, static_cast<size_t>(n));
  }
  return "it does not hang up";
}

TEST_F(RelayTest, WhoHasNoAgentGetsItForTheTicket) {
  Running server = StartServer(secret_);
  const auto agent = ReadFile(BuildPath("bin/muster-agent"));
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::vector<std::future<std::string>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(
        std::async(std::launch::async, [&] { return AnswerTo("agent " + ticket_ + "\n", port_); }));
  }
  for (auto& answer : answers) EXPECT_EQ(Sha256Hex(answer.get()), Sha256Hex(*agent));
  // The secret is none.
  for (const std::string& ticket : {RandomSecret(), secret_, ticket_.substr(0, 63), std::string()}) {
    EXPECT_EQ(AnswerTo("agent " + ticket + std::string(64 - ticket.size(), ' ') + "\n", port_), "") << ticket;
  }
  EXPECT_EQ(AnswerTo(std::string(70, 'b'), port_), "");
  Running fetch = StartFetch(target_, secret_, sha256_, archive_.size());
  EXPECT_EQ(fetch.Wait(), 0) << fetch.text();
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0);
}

TEST_F(RelayTest, WithoutASecretAndATicketThereIsNoServer) {
  for (const auto& [input, message] :
       {std::pair<std::string, std::string>{"", "stdin ends before the secret does"},
        {secret_ + "\n", "stdin ends before the secret does"},
        {secret_ + "\nticket\n", "is not 64 hexadecimal digits"},
        {std::string(2000, 'a'), "too long"}}) {
    Running server = Start({"serve", "--root", source_.string(), "--address", "127.0.0.1"}, input);
    server.input.reset();
    EXPECT_EQ(server.Wait(), 2);
    EXPECT_THAT(server.text(), HasSubstr(message));
  }
}

TEST_F(RelayTest, AServerIsFoundOnNoLeasedPort) {
  std::filesystem::create_directories(source_ / "ports");
  // All but one, of those that nobody uses: drawn at random, as the server does.
  auto free = ListenOnFreePort("127.0.0.1", 1, [](uint32_t) { return false; });
  ASSERT_TRUE(free.ok()) << free.status();
  for (uint32_t port = 20000; port <= 32767; ++port) {
    if (port != free->port) std::ofstream(source_ / "ports" / std::to_string(port));
  }
  free->socket.reset();
  Running server = StartServer(secret_);
  EXPECT_EQ(port_, free->port);
  server.input.reset();
  EXPECT_EQ(server.Wait(), 0);
}

}  // namespace
}  // namespace muster
