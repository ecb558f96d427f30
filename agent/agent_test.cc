// The daemon and its bridge as the launcher sees them: requests good and bad, ports, facts, versions, readers
// that do not read.
#include <absl/cleanup/cleanup.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdio>
#include <set>

#include "agent/agent_fixture.h"
#include "base/process.h"
#include "base/random.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST_F(AgentTest, RefusesNamesAndPathsThatLeaveTheirFolder) {
  AgentClient client(root_);
  EXPECT_EQ(client.Call(StartRequest("../job", "worker:0", {"true"})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Call(StartRequest("job", "worker/0", {"true"})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Call(StartRequest("job", "worker:0", {})).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const char* path : {"../escape", "/tmp/escape", "log", "log/x", ".muster/task"}) {
    agent::Request request = StartRequest("job", "worker:0", {"true"});
    request.mutable_start_task()->add_files()->set_path(path);
    EXPECT_EQ(client.Call(request).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  agent::Request last = StartRequest("job", "worker:0", {"true"});
  last.mutable_start_task()->set_minimum_incarnation(UINT32_MAX);
  EXPECT_EQ(client.Call(last).status().code(), absl::StatusCode::kInvalidArgument) << "no other could follow";
  RunToEnd(client, {"true"});
  agent::Request read;
  read.mutable_read_file()->set_job("job");
  read.mutable_read_file()->set_task("worker:0");
  read.mutable_read_file()->set_path("../../../store/x");
  EXPECT_EQ(client.Call(read).status().code(), absl::StatusCode::kInvalidArgument);
  read.mutable_read_file()->set_path("nothing");
  EXPECT_EQ(client.Call(read).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(AgentTest, LeasesPortsThatAreFree) {
  std::optional<AgentClient> client(std::in_place, root_);
  agent::Request request;
  agent::LeasePortsRequest* lease = request.mutable_lease_ports();
  lease->set_job("job");
  lease->set_task("ps:0");
  lease->set_address("127.0.0.1");
  lease->set_count(3);
  const auto ports_of = [&] {
    const auto response = client->Call(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return std::vector<uint32_t>(response->lease_ports().ports().begin(),
                                 response->lease_ports().ports().end());
  };
  const std::vector<uint32_t> first = ports_of();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_THAT(first, testing::Each(AllOf(testing::Ge(20000u), testing::Le(32767u))));
  EXPECT_THAT(ports_of(), ElementsAreArray(first));
  KillDaemon();
  client.emplace(root_);
  EXPECT_THAT(ports_of(), ElementsAreArray(first)) << "leases outlive the daemon";

  lease->set_task("ps:1");
  for (const uint32_t port : ports_of()) EXPECT_THAT(first, testing::Not(Contains(port)));
  lease->set_task("ps:0");
  UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(first[1]))};
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::vector<uint32_t> second = ports_of();
  EXPECT_EQ(std::set<uint32_t>(second.begin(), second.end()).size(), 3u);
  EXPECT_THAT(second, AllOf(Contains(first[0]), Contains(first[2]), testing::Not(Contains(first[1]))));
  lease->add_avoid(first[0]);
  EXPECT_THAT(ports_of(), testing::Not(Contains(first[0])));

  lease->set_address("10.255.255.254");
  EXPECT_THAT(Message(client->Call(request).status()), HasSubstr("not an address of this host"));
  lease->set_address("localhost");
  EXPECT_THAT(Message(client->Call(request).status()), HasSubstr("no literal"));
  ASSERT_TRUE(client->Call(StopRequest("job")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "ports"));
}

TEST_F(AgentTest, TwoDaemonsAreNeverThereAtOnce) {
  std::vector<std::unique_ptr<AgentClient>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(std::make_unique<AgentClient>(root_));
  agent::Request request;
  request.mutable_facts();
  for (auto& client : clients) {
    const auto response = client->Call(request);
    ASSERT_TRUE(response.ok()) << response.status();
  }
  int daemons = 0;
  const std::string command_line = std::string("daemon\0--root\0", 14) + root_.string() + '\0';
  for (const std::string& pid : ListDirectory("/proc").value_or(std::vector<std::string>{})) {
    if (ReadFile("/proc/" + pid + "/cmdline").value_or("").ends_with(command_line)) ++daemons;
  }
  // The losers of the race have ended, or not yet been reaped by their bridge: then they have no command
  // line.
  EXPECT_EQ(daemons, 1);
}

TEST_F(AgentTest, ReportsFacts) {
  AgentClient client(root_);
  agent::Request request;
  request.mutable_facts();
  const int64_t before = WallTimeMicros();
  const auto response = client.Call(request);
  ASSERT_TRUE(response.ok()) << response.status();
  const agent::FactsResponse& facts = response->facts();
  EXPECT_GE(facts.wall_micros(), before);
  EXPECT_LE(facts.wall_micros(), WallTimeMicros());
  EXPECT_THAT(facts.libc(), AnyOf(testing::StartsWith("glibc 2."), testing::StartsWith("musl 1.")));
  EXPECT_GT(facts.processors(), 0u);
  EXPECT_GT(facts.memory_bytes(), uint64_t{1} << 20);
  EXPECT_GT(facts.disk_free_bytes(), 0u);
  EXPECT_EQ(facts.root(), root_.string());
  EXPECT_THAT(facts.addresses(), testing::Not(Contains("127.0.0.1")));
}

TEST_F(AgentTest, AnotherVersionIsRefusedWithBothNumbers) {
  AgentClient client(root_, 99);
  const auto refusal = client.Receive(0);
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_THAT(refusal->error().message(),
              HasSubstr(absl::StrFormat("the launcher speaks protocol version 99, the agent version %d",
                                        kAgentProtocolVersion)));
  EXPECT_EQ(client.WaitForExit().value_or(-1), 69);
}

TEST_F(AgentTest, GarbageIsAnsweredWithAnErrorAndNeverACrash) {
  AgentClient healthy(root_);
  const pid_t daemon = [&] {
    agent::Request request;
    request.mutable_list_tasks();
    EXPECT_TRUE(healthy.Call(request).ok());
    return DaemonPid(root_);
  }();
  std::string bad_frame, random_bytes(100000, '\0');
  AppendFrame(bad_frame, "\xff\xff\xff not protobuf");
  RandomStream random(7);
  for (char& byte : random_bytes) byte = static_cast<char>(random.Next());
  for (const std::string& garbage : {std::string("\xff\xff\xff\x7f too long"), bad_frame, random_bytes}) {
    AgentClient client(root_);
    client.SendRaw(garbage);
    const auto refusal = client.Receive(0);
    ASSERT_TRUE(refusal.ok()) << refusal.status();
    EXPECT_EQ(refusal->error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(client.WaitForExit().value_or(-1), 69);
  }
  EXPECT_EQ(healthy.Call(agent::Request()).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(DaemonPid(root_), daemon);
}

// More than a bridge and the pipes beside it hold.
constexpr size_t kMuch = 50'000'000;

agent::Request ReadLog() {
  agent::Request request;
  request.mutable_read_file()->set_job("job");
  request.mutable_read_file()->set_task("worker:0");
  request.mutable_read_file()->set_path("log");
  return request;
}

TEST_F(AgentTest, AReaderThatDoesNotReadHoldsUpOnlyItself) {
  AgentClient slow(root_);
  RunToEnd(slow, {"head", "-c", std::to_string(kMuch), "/dev/zero"});
  const uint64_t id = slow.Send(ReadLog());
  AgentClient quick(root_);
  RunToEnd(quick, {"true"}, "worker:1");
  size_t bytes = 0;
  while (true) {
    const auto part = slow.Receive(id);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->read_file().offset(), bytes);
    bytes += part->read_file().data().size();
    if (part->last()) break;
  }
  EXPECT_EQ(bytes, kMuch);
}

// Whoever reads, a launcher that sleeps say, may be back in hours.
TEST_F(AgentTest, ABridgeWhoseReaderStandsStillSleepsWhenTheDaemonHasGone) {
  AgentClient slow(root_);
  RunToEnd(slow, {"head", "-c", std::to_string(kMuch), "/dev/zero"});
  slow.Send(ReadLog());
  // One that asks again and again runs, or is about to: it is not found asleep so often in a row.
  const auto sleeps = [&] {
    const TimePoint deadline = TestDeadline();
    int times = 0;
    while (times < 1000 && Now() < deadline) {
      const auto stat = ReadProcessStat(slow.bridge_pid());
      times = stat.ok() && stat->state == 'S' ? times + 1 : 0;
    }
    return times == 1000;
  };
  ASSERT_TRUE(sleeps());
  const pid_t daemon = DaemonPid(root_);
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  ASSERT_TRUE(WaitForProcessEnd(daemon).ok());
  EXPECT_TRUE(sleeps());
}

// Its socket takes some more than it accepts.
TEST_F(AgentTest, ABridgeGivesUpOnADaemonThatAcceptsNobody) {
  AgentClient client(root_);
  RunToEnd(client, {"true"});
  const pid_t daemon = DaemonPid(root_);
  ASSERT_EQ(::kill(daemon, SIGSTOP), 0);
  const absl::Cleanup go_on = [&] { ::kill(daemon, SIGCONT); };
  sockaddr_un address{.sun_family = AF_UNIX};
  // By a path that is short enough.
  const UniqueFd folder(::open(root_.c_str(), O_PATH | O_CLOEXEC));
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/daemon.sock", folder.get());
  std::vector<UniqueFd> waiting;
  while (true) {
    UniqueFd& socket = waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) continue;
    ASSERT_EQ(errno, EAGAIN);
    break;
  }
  AgentClient late(root_);
  EXPECT_EQ(late.WaitForExit().value_or(-1), 69);
  EXPECT_THAT(late.stderr_text(), HasSubstr("does not answer"));
}

// As a killed process leaves it, and the next one cuts off before it goes on, between two looks of the
// daemon.
TEST_F(AgentTest, WhoFollowsAFileGetsNoPartOfALineThatMayBeCutOff) {
  AgentClient client(root_);
  ASSERT_TRUE(
      client.Call(StartRequest("job", "worker:0", Shell("while [ ! -e go ]; do sleep 0.01; done"))).ok());
  const std::filesystem::path folder = root_ / "jobs/job/worker.0";
  const auto follow = [&](uint64_t offset) {
    agent::Request request;
    request.mutable_read_file()->set_job("job");
    request.mutable_read_file()->set_task("worker:0");
    request.mutable_read_file()->set_path("file");
    request.mutable_read_file()->set_offset(offset);
    request.mutable_read_file()->set_follow(true);
    return client.Send(request);
  };
  // "OFFSET: BYTES"
  const auto next = [&](uint64_t reading) {
    const auto read = client.Receive(reading);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return std::string();
    return absl::StrFormat("%d: %s%s", read->read_file().offset(), read->read_file().data(),
                           read->last() ? "." : "");
  };
  ASSERT_TRUE(WriteFileAtomically(folder / "file", "one\nhalf").ok());
  const uint64_t beyond = follow(100), reading = follow(0);
  EXPECT_EQ(next(reading), "0: one\n");  // both have been looked at by now
  ASSERT_TRUE(WriteFileAtomically(folder / "file", "one\nlonger than that\n").ok());
  EXPECT_EQ(next(reading), "4: longer than that\n");
  EXPECT_EQ(next(beyond), "4: longer than that\n");
  ASSERT_TRUE(WriteFileAtomically(folder / "file", "one\nlonger than that\nlast").ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "go", "").ok());
  EXPECT_EQ(next(reading), "21: last.");
  EXPECT_EQ(next(beyond), "21: last.");
}

// As on a disk that takes its time: a lease is a pipe, for whose writer it waits.
TEST_F(AgentTest, ABridgeSaysOfWhatADaemonThatDoesNotBeginMayBeSlow) {
  const std::filesystem::path lease = root_ / "ports/20000";
  ASSERT_TRUE(MakeDirectories(lease.parent_path(), 0700).ok());
  ASSERT_EQ(::mkfifo(lease.c_str(), 0600), 0);
  const absl::Cleanup go_on = [&] {
    const UniqueFd writer(::open(lease.c_str(), O_RDWR | O_CLOEXEC));
    std::filesystem::remove(lease);
  };
  AgentClient client(root_);
  EXPECT_EQ(client.WaitForExit().value_or(-1), 69);
  EXPECT_THAT(
      client.stderr_text(),
      AllOf(HasSubstr("the daemon under " + root_.string() + " does not answer"), HasSubstr("`muster gc`")));
}

TEST_F(AgentTest, AFloodOfRequestsIsAnsweredCompletely) {
  AgentClient client(root_);
  RunToEnd(client, {"true"});
  agent::Request list;
  list.mutable_list_tasks();
  std::vector<uint64_t> ids;
  // Each answer is longer than its request, and none is read before the last has been sent.
  for (int i = 0; i < 20000; ++i) ids.push_back(client.Send(list));
  for (const uint64_t id : ids) {
    const auto answer = client.Receive(id);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->list_tasks().tasks_size(), 1);
  }
}

TEST_F(AgentTest, ALongRootIsNoProblemForItsSocket) {
  const std::filesystem::path root = root_ / std::string(100, 'a') / std::string(100, 'b');
  AgentClient client(root);
  agent::Request request;
  request.mutable_list_tasks();
  EXPECT_TRUE(client.Call(request).ok());
  const pid_t daemon = DaemonPid(root);
  EXPECT_EQ(client.Close(), 0);
  EXPECT_TRUE(WaitForProcessEnd(daemon).ok());
}
}  // namespace
}  // namespace muster
