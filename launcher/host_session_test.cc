#include "launcher/host_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <future>
#include <mutex>
#include <set>

#include "base/file.h"
#include "base/sha256.h"
#include "cluster/listening.h"
#include "launcher/job_store.h"
#include "launcher/task_output.h"
#include "tests/support/checkout.h"
#include "tests/support/free_port.h"
#include "tests/support/job_processes.h"
#include "tests/support/loopback_cluster.h"

namespace muster {
namespace {

TEST(NamesOf, TakesNamesOfFilesAndNoOtherPath) {
  agent::ListFilesResponse response;
  EXPECT_THAT(*NamesOf(response), testing::IsEmpty());
  response.add_names("events.out.tfevents.1.host-1");
  response.add_names("..a b");
  EXPECT_THAT(*NamesOf(response), testing::ElementsAre("events.out.tfevents.1.host-1", "..a b"));
  for (const std::string name : {"", ".", "..", "../record.pb", "a/b", "/etc/passwd", "a/"}) {
    agent::ListFilesResponse bad = response;
    bad.add_names(name);
    EXPECT_EQ(NamesOf(bad).status().code(), absl::StatusCode::kDataLoss) << name;
  }
}

void AwaitDial(const UniqueFd& listening) {
  pollfd dialed{.fd = listening.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&dialed, 1, 60'000), 1);
}

template <typename T>
std::optional<T> Eventual(std::promise<T>& promise) {
  auto future = promise.get_future();
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) return std::nullopt;
  return future.get();
}

// Where nobody says a word is given up as soon as the host is seen elsewhere, and that is tried next.
TEST(HostSession, GoesWhereItsHostWasSeenDuringAnAttempt) {
  const std::string silent = FreeAddress(), closed = FreeAddress();
  const UniqueFd listening = *ListenTcp(silent);
  const auto port_of = [](const std::string& address) {
    return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  };
  const TemporaryDirectory folder;
  const AgentProgram agent;
  std::promise<absl::Status> first, second;
  record::Host host;
  host.set_name("a");
  host.set_ssh_address("127.0.0.1");
  host.set_ssh_port(port_of(silent));
  HostSession session({.host = host,
                       .job = "j",
                       .connect = {.ssh = {.known_hosts = folder.path() / "known_hosts"}, .agent = &agent},
                       .sink = [&](const SessionEvent& event) {
                         const auto& failed =
                             std::get<reconcile::HostFailed>(std::get<reconcile::Event>(event));
                         (failed.connection == 1 ? first : second).set_value(failed.status);
                       }});
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 1, .deadline = Now() + std::chrono::hours(1)});
  ASSERT_NO_FATAL_FAILURE(AwaitDial(listening));
  EXPECT_TRUE(session.Relocate({.host = "a", .ssh_address = "127.0.0.1", .ssh_port = port_of(closed)}));
  EXPECT_EQ(Eventual(first).value().code(), absl::StatusCode::kUnavailable);
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 2, .deadline = Now() + std::chrono::seconds(4)});
  EXPECT_THAT(std::string(Eventual(second).value().message()), testing::HasSubstr("connect: refused: "));
}

record::Host HostAt(const SshTarget& target, const std::string& address, uint16_t port) {
  record::Host host;
  host.set_name(target.name);
  host.set_ssh_address(address);
  host.set_ssh_port(port);
  host.add_identities(target.identities[0]);
  host.set_data_address("127.0.0.1");
  host.set_dir("~/.muster");
  return host;
}

// The inventory first names its new place, and then, while it is dialed there, its new address for data.
TEST(HostSession, HasTheAddressForDataThatWasSaidLast) {
  std::signal(SIGPIPE, SIG_IGN);
  LoopbackCluster cluster(1);
  const SshTarget target = cluster.targets()[0];
  cluster.Kill(target.name);
  std::optional<UniqueFd> listening = *ListenTcp(target.address + ":" + std::to_string(target.port));
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::promise<absl::Status> first;
  std::promise<std::string> connected;
  HostSession session({.host = HostAt(target, "127.0.0.1", 1),
                       .job = "j",
                       .connect = {.ssh = cluster.options(), .agent = &*agent},
                       .sink = [&](const SessionEvent& event) {
                         const auto* change = std::get_if<reconcile::Event>(&event);
                         if (change == nullptr) return;
                         if (const auto* failed = std::get_if<reconcile::HostFailed>(change);
                             failed != nullptr && failed->connection == 1) {
                           first.set_value(failed->status);
                         }
                         if (const auto* there = std::get_if<reconcile::HostConnected>(change)) {
                           connected.set_value(there->data_address);
                         }
                       }});
  const auto relocate = [&](const std::string& data_address) {
    return session.Relocate({.host = target.name,
                             .ssh_address = target.address,
                             .ssh_port = target.port,
                             .data_address = data_address});
  };
  EXPECT_TRUE(relocate("127.0.0.2"));
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 1, .deadline = Now() + std::chrono::hours(1)});
  ASSERT_NO_FATAL_FAILURE(AwaitDial(*listening));
  EXPECT_TRUE(relocate("127.0.0.3"));
  EXPECT_FALSE(relocate("127.0.0.3"));
  EXPECT_EQ(Eventual(first).value().code(), absl::StatusCode::kUnavailable);
  listening.reset();
  cluster.Start(target.name);
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 2, .deadline = Now() + std::chrono::minutes(1)});
  EXPECT_EQ(Eventual(connected), "127.0.0.3");
}

// SSH reaches the host, and its bridge lives.
TEST(HostSession, ADaemonThatHangsIsLostWithItsHost) {
  std::signal(SIGPIPE, SIG_IGN);
  LoopbackCluster cluster(1);
  const SshTarget target = cluster.targets()[0];
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::promise<void> reported;
  std::promise<absl::Status> lost;
  HostSession session({.host = HostAt(target, target.address, target.port),
                       .job = "j",
                       .connect = {.ssh = cluster.options(), .agent = &*agent},
                       .agent_silence_limit = std::chrono::seconds(8),
                       .sink = [&](const SessionEvent& event) {
                         const auto* change = std::get_if<reconcile::Event>(&event);
                         if (change == nullptr) return;
                         if (std::holds_alternative<reconcile::HostReported>(*change)) reported.set_value();
                         if (const auto* failed = std::get_if<reconcile::HostFailed>(change)) {
                           lost.set_value(failed->status);
                         }
                       }});
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 1, .deadline = Now() + std::chrono::minutes(1)});
  ASSERT_EQ(reported.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  auto is_lost = lost.get_future();
  // As long as it answers, however rarely.
  EXPECT_EQ(is_lost.wait_for(std::chrono::seconds(10)), std::future_status::timeout);
  const std::vector<pid_t> daemons = AgentProcesses(cluster.HomeOf(target.name), "daemon");
  ASSERT_EQ(daemons.size(), 1u);
  ::kill(daemons[0], SIGSTOP);
  const bool is_noticed = is_lost.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  ::kill(daemons[0], SIGCONT);
  ASSERT_TRUE(is_noticed);
  EXPECT_THAT(std::string(is_lost.get().message()), testing::HasSubstr("the daemon of its agent has not"));
}

// Two of three hosts are sent it, for longer than the third one waits without a word of it.
TEST(HostSession, ContentsThatComeSlowlyGetSomewhereForThoseWhoWaitForThemToo) {
  if (!LoopbackCluster::CanMakeNamespaces()) GTEST_SKIP() << "needs network namespaces";
  std::signal(SIGPIPE, SIG_IGN);
  constexpr uint64_t kBitsPerSecond = 4'000'000, kSeconds = 16;
  LoopbackCluster cluster(3, {}, LoopbackCluster::Network::kNamespaces);
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  // No archive, which the hosts find out when they have it.
  const std::string bytes(kBitsPerSecond / 8 * kSeconds, 'x'), sha256 = Sha256Hex(bytes);
  Contents contents;
  contents[sha256] =
      Content{.sha256 = sha256, .name = "data", .bytes = std::make_shared<const std::string_view>(bytes)};
  ContentRelay relay;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> connected, coming, sent;
  const auto take = [&](const SessionEvent& event) {
    const std::lock_guard lock(mutex);
    if (const auto* step = std::get_if<UploadStep>(&event)) sent.insert(step->host);
    if (const auto* change = std::get_if<reconcile::Event>(&event)) {
      if (const auto* there = std::get_if<reconcile::HostConnected>(change)) connected.insert(there->host);
      if (const auto* news = std::get_if<reconcile::ContentsComing>(change); news && news->request == 7) {
        coming.insert(news->host + (sent.contains(news->host) ? "" : " waits"));
      }
    }
    changed.notify_one();
  };
  const auto wait_for = [&](const std::function<bool()>& is_so) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(1), is_so);
  };
  std::vector<std::unique_ptr<HostSession>> sessions;
  for (const SshTarget& target : cluster.targets()) {
    sessions.push_back(std::make_unique<HostSession>(
        HostSessionOptions{.host = HostAt(target, target.address, target.port),
                           .job = "j",
                           .connect = {.ssh = cluster.options(), .agent = &*agent},
                           .contents = &contents,
                           .relay = &relay,
                           .sink = take}));
    sessions.back()->Execute(reconcile::Connect{
        .host = target.name, .connection = 1, .deadline = Now() + std::chrono::minutes(1)});
  }
  EXPECT_TRUE(wait_for([&] { return connected.size() == 3; }));
  {
    const std::lock_guard lock(mutex);
    sent.clear();  // the agent
  }
  for (const SshTarget& target : cluster.targets()) cluster.Slow(target.name, kBitsPerSecond);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i]->Execute(
        reconcile::EnsureContents{.request = 7, .host = cluster.targets()[i].name, .contents = {sha256}});
  }
  EXPECT_TRUE(wait_for([&] {
    const auto is_waiting = [](const std::string& who) { return who.ends_with(" waits"); };
    return coming.size() == 3 && std::ranges::count_if(coming, is_waiting) == 1;
  })) << testing::PrintToString(coming);
  relay.Close();
  sessions.clear();
}

struct Steps : RunObserver {
  void OnView(const reconcile::View&) override {}
  void OnHostFacts(const HostFacts&) override {}
  void OnUpload(const UploadStep&) override {}
  void OnNotice(const std::string&) override {}
  void OnLog(const std::string&, const std::string&, bool) override {}
  void OnTraining(const TrainingPoint& point) override { steps.push_back(point.step); }
  std::vector<uint64_t> steps;
};

// The next chief cuts it off, and its own line there is longer.
TEST(TaskOutput, APartOfALineOfTheCurveIsLeftOutWhenTheChiefIsStartedAgain) {
  std::signal(SIGPIPE, SIG_IGN);
  LoopbackCluster cluster(1);
  const SshTarget target = cluster.targets()[0];
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::mutex mutex;
  std::condition_variable there;
  std::vector<SessionEvent> events;
  HostSession session({.host = HostAt(target, target.address, target.port),
                       .job = "j",
                       .connect = {.ssh = cluster.options(), .agent = &*agent},
                       .sink = [&](SessionEvent event) {
                         const std::lock_guard lock(mutex);
                         events.push_back(std::move(event));
                         there.notify_one();
                       }});
  const auto wait = [&](TimePoint deadline) {
    std::unique_lock lock(mutex);
    there.wait_until(lock, deadline, [&] { return !events.empty(); });
    return std::exchange(events, {});
  };
  record::JobRecord record;
  record::Task* chief = record.add_tasks();
  chief->set_id("worker:0");
  chief->set_host(target.name);
  chief->set_is_chief(true);
  chief->set_writes_results(true);
  const TemporaryDirectory folder;
  Steps steps;
  JobReporter reporter(folder.path() / kHistoryFile, steps);
  TaskOutput output(record, folder.path(), /*follow_logs=*/false,
                    {.session_of = [&](const std::string&) -> HostSession& { return session; },
                     .wait = wait,
                     .is_interrupted = [] { return false; }},
                    reporter);
  const auto wait_for = [&](const std::function<bool(const SessionEvent&)>& is_it) {
    for (const TimePoint deadline = Now() + std::chrono::minutes(1); Now() < deadline;) {
      bool found = false;
      for (const SessionEvent& event : wait(deadline)) {
        output.OnEvent(event);
        found = found || is_it(event);
      }
      if (found) return true;
    }
    return false;
  };
  const auto is_change = [](const SessionEvent& event, auto kind) {
    const auto* change = std::get_if<reconcile::Event>(&event);
    return change != nullptr && std::holds_alternative<decltype(kind)>(*change);
  };
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 1, .deadline = Now() + std::chrono::minutes(1)});
  ASSERT_TRUE(wait_for([&](const auto& event) { return is_change(event, reconcile::HostReported()); }));
  uint32_t starts = 0;
  const auto run = [&](const std::string& script) {
    agent::StartTaskRequest start;
    start.set_job("j");
    start.set_task("worker:0");
    start.set_generation(++starts);
    start.set_spec_hash("spec");
    for (const std::string& argument : {std::string("sh"), std::string("-c"), script})
      start.add_argv(argument);
    session.Start(starts, start);
    ASSERT_TRUE(wait_for([&](const auto& event) { return is_change(event, reconcile::TaskStarted()); }));
    output.Follow({.tasks = {{.task = "worker:0",
                              .host = target.name,
                              .report = reconcile::TaskReport{
                                  .task = "worker:0", .generation = starts, .incarnation = starts}}}});
    ASSERT_TRUE(wait_for([](const auto& event) {
      const auto* bytes = std::get_if<FileBytes>(&event);
      return bytes != nullptr && bytes->last;
    }));
  };
  run(R"(printf '{"step":1}\n{"st' > metrics.jsonl)");
  const std::string curve = "{\"step\":1}\n{\"step\":2}\n";
  run("printf '" + curve + "' > new && mv new metrics.jsonl; echo {} > result.json; " +
      "echo model > model.safetensors; mkdir events");
  const absl::Status fetched = output.FetchResults();
  ASSERT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(ReadFile(folder.path() / kMetricsFile).value_or(""), curve);
  EXPECT_THAT(steps.steps, testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace muster
