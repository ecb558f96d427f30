// The agent's parts that need no agent: restart policy, names, ports, garbage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/garbage.h"
#include "agent/names.h"
#include "agent/ports.h"
#include "agent/restart_policy.h"
#include "agent/store.h"
#include "base/archive.h"
#include "base/file.h"
#include "base/sha256.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

agent::TaskState FinalState(agent::RestartPolicy policy, const TaskEnd& end) {
  const RestartDecision decision = RestartTracker(policy, -1).OnEnd(end, 0);
  return decision.restart ? agent::TASK_STATE_RESTARTING : decision.state;
}

TEST(RestartTracker, DecidesByPolicyAndHowTheTaskEnded) {
  const TaskEnd success{}, permanent{.exit_code = 127}, retryable{.exit_code = 128}, killed{.exit_code = 137},
      lost{.exit_code = 137, .lost = true};
  const auto again = agent::TASK_STATE_RESTARTING, succeeded = agent::TASK_STATE_SUCCEEDED,
             failed = agent::TASK_STATE_FAILED, gone = agent::TASK_STATE_LOST;
  struct Row {
    agent::RestartPolicy policy;
    agent::TaskState on_success, on_permanent, on_retryable, on_killed, on_lost;
  };
  const Row rows[] = {{agent::RESTART_POLICY_NEVER, succeeded, failed, failed, failed, gone},
                      {agent::RESTART_POLICY_ON_FAILURE, succeeded, again, again, again, again},
                      {agent::RESTART_POLICY_ALWAYS, again, again, again, again, again},
                      {agent::RESTART_POLICY_EXIT_CODE, succeeded, failed, again, again, again},
                      {static_cast<agent::RestartPolicy>(77), succeeded, failed, failed, failed, gone}};
  for (const Row& row : rows) {
    EXPECT_EQ(FinalState(row.policy, success), row.on_success) << row.policy;
    EXPECT_EQ(FinalState(row.policy, permanent), row.on_permanent) << row.policy;
    EXPECT_EQ(FinalState(row.policy, retryable), row.on_retryable) << row.policy;
    EXPECT_EQ(FinalState(row.policy, killed), row.on_killed) << row.policy;
    EXPECT_EQ(FinalState(row.policy, lost), row.on_lost) << row.policy;
  }
}

TEST(RestartTracker, CountsExactly) {
  RestartTracker tracker(agent::RESTART_POLICY_ON_FAILURE, 2);
  EXPECT_TRUE(tracker.OnEnd({.exit_code = 1}, 0).restart);
  EXPECT_TRUE(tracker.OnEnd({.exit_code = 1}, 1).restart);
  const RestartDecision last = tracker.OnEnd({.exit_code = 1}, 2);
  EXPECT_FALSE(last.restart);
  EXPECT_TRUE(last.used_up);
  EXPECT_EQ(last.state, agent::TASK_STATE_FAILED);
  EXPECT_FALSE(RestartTracker(agent::RESTART_POLICY_ON_FAILURE, 0).OnEnd({.exit_code = 1}, 0).restart);
}

TEST(RestartTracker, BacksOffToTenSecondsAndStartsOverAfterALongRun) {
  RestartTracker tracker(agent::RESTART_POLICY_ALWAYS, -1);
  for (const int expected : {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000}) {
    EXPECT_EQ(tracker.OnEnd({.exit_code = 1, .ran_for = seconds(59)}, 5).delay, milliseconds(expected));
  }
  EXPECT_EQ(tracker.OnEnd({.exit_code = 1, .ran_for = seconds(60)}, 5).delay, milliseconds(100));
  EXPECT_EQ(tracker.OnEnd({.exit_code = 1}, 5).delay, milliseconds(200));
}

TEST(Names, OnlyThoseThatAreSafeAsFolders) {
  for (const char* job : {"mnist", "mnist-2026.01.31_x", "7"}) EXPECT_TRUE(ValidateJobName(job).ok()) << job;
  for (const std::string job : {"", ".", "..", "../x", "a/b", "-rf", ".hidden", "a b", "ü", "a\nb"}) {
    EXPECT_FALSE(ValidateJobName(job).ok()) << job;
  }
  EXPECT_FALSE(ValidateJobName(std::string("a\0b", 3)).ok());
  EXPECT_FALSE(ValidateJobName(std::string(101, 'a')).ok());
  for (const char* task : {"worker:0", "ps:12", "chief", "my-role_2:3"})
    EXPECT_TRUE(ValidateTaskName(task).ok()) << task;
  for (const char* task :
       {"", ":0", "worker:", "worker:x", "worker:-1", "worker.0", "..", "a/b:0", "a:0:1", "a:0/.."}) {
    EXPECT_FALSE(ValidateTaskName(task).ok()) << task;
  }
}

TEST(Names, TaskAndFolderAreOneToOne) {
  EXPECT_EQ(TaskFolder("worker:0"), "worker.0");
  for (const std::string task : {"worker:0", "chief", "a-b_c:17"})
    EXPECT_EQ(TaskOfFolder(TaskFolder(task)), task);
  for (const char* folder : {"worker:0", ".muster", "a.b", "..", "a.0.tmp"}) {
    EXPECT_EQ(TaskOfFolder(folder), std::nullopt) << folder;
  }
}

TEST(Names, RelativePathsStayInside) {
  for (const char* path : {"cluster.json", "tls/key.pem", "..a"})
    EXPECT_TRUE(ValidateRelativePath(path).ok()) << path;
  for (const char* path : {"", "/etc/passwd", "..", "a/../../b", "a/..", "./log", "dir/"}) {
    EXPECT_FALSE(ValidateRelativePath(path).ok()) << path;
  }
}

TEST(Expand, ReplacesOnlyWhatItKnows) {
  const std::string sha(64, 'a');
  EXPECT_EQ(Expand("--dir={task_dir}/x:{store:" + sha + "}/bin", "/t", "/s"),
            "--dir=/t/x:/s/" + sha + "/bin");
  for (const std::string text :
       {R"({"cluster": {"ps": []}, "task": {"index": 0}})", "{store:abc}", "{task_dir", "{{", "{"}) {
    EXPECT_EQ(Expand(text, "/t", "/s"), text);
  }
  EXPECT_EQ(Expand("{store:" + sha, "/t", "/s"), "{store:" + sha);
}

TEST(Names, StoreKeysAreThoseThatExpand) {
  const std::string a(64, 'a'), b(64, 'b');
  EXPECT_THAT(StoreKeys("--data={store:" + a + "}/x:{store:" + b + "}"), testing::ElementsAre(a, b));
  for (const std::string& text :
       {std::string("{store:") + a, "{store:" + a + "a}", std::string("{store:}{store"), "{" + a + "}"}) {
    EXPECT_THAT(StoreKeys(text), testing::IsEmpty()) << text;
    EXPECT_EQ(Expand(text, "/task", "/store"), text);
  }
}

// A socket that listens on a port of the system's choice.
struct Listener {
  explicit Listener(const std::string& address) {
    const SocketAddress any = *ParseSocketAddress(address, 0);
    fd = UniqueFd(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUSTER_CHECK(::bind(fd.get(), any.get(), any.size) == 0 && ::listen(fd.get(), 1) == 0);
    SocketAddress bound;
    bound.size = sizeof bound.storage;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    // The port lies at the same place in both.
    port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
  }
  UniqueFd fd;
  uint32_t port = 0;
};

TEST(ListeningPorts, AreFoundByAddressAndOnAllAddresses) {
  const Listener one("127.0.0.77"), all("0.0.0.0"), six("::1"), mapped("::ffff:127.0.0.77"), any("::");
  const auto asked = ListeningPorts::Ask();
  ASSERT_TRUE(asked.has_value()) << "where this kernel does not answer, /proc/net does";
  const auto read = ListeningPorts::ReadTables();
  ASSERT_TRUE(read.ok()) << read.status();
  for (const ListeningPorts& listening : {*asked, *read}) {
    EXPECT_TRUE(listening.Contains("127.0.0.77", one.port));
    EXPECT_FALSE(listening.Contains("127.0.0.78", one.port));
    EXPECT_TRUE(listening.Contains("127.0.0.78", all.port));
    EXPECT_TRUE(listening.Contains("::1", six.port));
    EXPECT_FALSE(listening.Contains("127.0.0.1", six.port));
    EXPECT_TRUE(listening.Contains("127.0.0.77", mapped.port));
    EXPECT_FALSE(listening.Contains("127.0.0.78", mapped.port));
    EXPECT_TRUE(listening.Contains("127.0.0.78", any.port));
    EXPECT_FALSE(listening.Contains("no address", one.port));
  }
}

TEST(ListeningPorts, WhatIsNoLineOfTheTableIsLeftOut) {
  const std::string good =
      "   0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 9 1 0\n";
  EXPECT_TRUE(ListeningPorts::Parse(good, 1000).Contains("127.0.0.1", 20000));
  EXPECT_FALSE(ListeningPorts::Parse(good, 0).Contains("127.0.0.1", 20000)) << "another account's";
  EXPECT_TRUE(ListeningPorts::Parse(good, std::nullopt).Contains("127.0.0.1", 20000));
  for (size_t size = 0; size < good.find("1000"); ++size) {
    EXPECT_FALSE(ListeningPorts::Parse(good.substr(0, size) + "\n", 1000).Contains("127.0.0.1", 20000))
        << size;
  }
  const std::string long_address(200, 'F');
  for (const std::string& bad :
       {std::string("  sl  local_address rem_address   st"), std::string("0: :4E20 :0 0A"),
        std::string(5000, '\xff'), "0: " + long_address + ":4E20 0:0 0A 0:0 0:0 0 1000",
        std::string("0: 01:4E20 0:0 0A 0:0 0:0 0 1000")}) {
    EXPECT_FALSE(ListeningPorts::Parse(bad + "\n", 1000).Contains("127.0.0.1", 20000)) << bad;
    EXPECT_TRUE(ListeningPorts::Parse(bad + "\n" + good, 1000).Contains("127.0.0.1", 20000)) << bad;
  }
}

TEST(ListeningPorts, AConnectionIsNone) {
  Listener server("127.0.0.77");
  const SocketAddress at = *ParseSocketAddress("127.0.0.77", server.port);
  UniqueFd client(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), at.get(), at.size), 0);
  const UniqueFd accepted(::accept(server.fd.get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  server.fd.reset();
  EXPECT_FALSE(ListeningPorts::Read().value().Contains("127.0.0.77", server.port));
  EXPECT_FALSE(ListeningPorts::ReadTables().value().Contains("127.0.0.77", server.port));
}

// Root's tasks may change their account.
TEST(ListeningPorts, RootSeesThoseOfAllAccounts) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another account";
  ASSERT_EQ(::seteuid(65534), 0);
  const Listener others("127.0.0.77");
  ASSERT_EQ(::seteuid(0), 0);
  const auto asked = ListeningPorts::Ask();
  ASSERT_TRUE(asked.has_value());
  EXPECT_TRUE(asked->Contains("127.0.0.77", others.port));
  EXPECT_TRUE(ListeningPorts::ReadTables().value().Contains("127.0.0.77", others.port));
}

TEST(ListeningPorts, WhoCannotLookHasNotSeenNothing) {
  const TemporaryDirectory net;
  EXPECT_FALSE(ListeningPorts::ReadTables(net.path()).ok());
  ASSERT_TRUE(WriteFileAtomically(net.path() / "tcp", "").ok());
  EXPECT_TRUE(ListeningPorts::ReadTables(net.path()).ok()) << "a host without IPv6";
  std::filesystem::create_directory(net.path() / "tcp6");  // it is there, and cannot be read
  EXPECT_FALSE(ListeningPorts::ReadTables(net.path()).ok());
}

TEST(PortLeases, APortIsKeptWhereNobodyCanSeeWhetherItIsListenedOn) {
  const TemporaryDirectory folder;
  PortLeases leases(folder.path());
  ASSERT_TRUE(leases.Lease({.job = "job", .task = "ps:0", .address = "127.0.0.77", .count = 2}).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status in_use = leases.CountInUse("job", "").status(),
                     kept = leases.Release("job", "").status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(in_use.ok());
  EXPECT_FALSE(kept.ok());
  EXPECT_EQ(ListDirectory(folder.path()).value().size(), 2u);
  EXPECT_EQ(leases.Release("job", "").value(), 0);
}

TEST(PortLeases, APortIsReleasedOnceNobodyListensThere) {
  const TemporaryDirectory folder;
  PortLeases leases(folder.path());
  const auto lease = [&](const std::string& task) {
    return leases.Lease({.job = "job", .task = task, .address = "127.0.0.77", .count = 1}).value()[0];
  };
  const uint32_t port = lease("ps:0");
  (void)lease("ps:1");
  const SocketAddress at = *ParseSocketAddress("127.0.0.77", port);
  UniqueFd server(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(::bind(server.get(), at.get(), at.size) == 0 && ::listen(server.get(), 1) == 0);
  EXPECT_EQ(leases.CountInUse("job", "ps:0").value(), 1);
  EXPECT_EQ(leases.CountInUse("job", "ps:1").value(), 0);
  EXPECT_EQ(leases.Release("job", "ps:1").value(), 0);
  EXPECT_EQ(leases.Release("job", "").value(), 1);
  EXPECT_THAT(ListDirectory(folder.path()).value(), testing::ElementsAre(std::to_string(port)));
  server.reset();
  EXPECT_EQ(leases.Release("job", "").value(), 0);
  EXPECT_THAT(ListDirectory(folder.path()).value(), testing::IsEmpty());
}

class GarbageTest : public testing::Test {
 protected:
  // Last used so long ago.
  void Make(const std::filesystem::path& file, seconds age) {
    std::filesystem::create_directories((root_ / file).parent_path());
    ASSERT_TRUE(WriteFileAtomically(root_ / file, "12345").ok());
    const bool content = file.begin()->string() == "store";
    const std::filesystem::path used = content ? (root_ / file).parent_path() : root_ / file;
    const int64_t at = WallTimeMicros() / 1'000'000 - age.count();
    const timespec times[2] = {{.tv_sec = at, .tv_nsec = 0}, {.tv_sec = at, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, used.c_str(), times, 0), 0);
  }
  bool Exists(const std::filesystem::path& path) const { return std::filesystem::exists(root_ / path); }

  const TemporaryDirectory folder_;
  const std::filesystem::path root_ = folder_.path();
  const std::string needed_ = std::string(64, 'a'), old_ = std::string(64, 'b'),
                    fresh_ = std::string(64, 'c');
};

TEST_F(GarbageTest, OnlyWhatIsOldAndNotNeededGoes) {
  for (const std::string& content : {needed_, old_}) Make("store/" + content + "/file", seconds(7200));
  Make("store/" + fresh_ + "/file", seconds(60));
  Make("store/readme/file", seconds(7200));
  const auto removed = CollectGarbage(root_, {needed_}, seconds(3600));
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->removed_sha256(), testing::ElementsAre(old_));
  EXPECT_TRUE(Exists("store/" + needed_));
  EXPECT_TRUE(Exists("store/" + fresh_));
  EXPECT_TRUE(Exists("store/readme"));
  EXPECT_FALSE(Exists("store/" + old_));
  EXPECT_EQ(ListDirectory(root_ / "trash").value().size(), 1u);
  ASSERT_TRUE(EmptyTrash(root_).ok());
  // The folder is there for whoever is about to move something into it.
  EXPECT_THAT(ListDirectory(root_ / "trash").value(), testing::IsEmpty());
  ASSERT_TRUE(EmptyTrash(root_).ok());
}

// The job's hosts may have it all, but one that it comes to later gets it from here.
TEST_F(GarbageTest, WhatTheDriverOfAJobNeedsStays) {
  for (const std::string& content : {needed_, old_, fresh_})
    Make("store/" + content + "/file", seconds(7200));
  Make("controller/jobs/other/record.pb", seconds(7200));
  Make("controller/jobs/job/record.pb", seconds(7200));
  ASSERT_TRUE(WriteFileAtomically(root_ / "controller/jobs/job/needed", needed_ + "\n" + fresh_ + "\n").ok());
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(0))->removed_sha256(), testing::ElementsAre(old_));
  std::filesystem::remove_all(root_ / "controller/jobs/job");
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(0))->removed_sha256(), testing::ElementsAre(needed_, fresh_));
}

// As somebody whom permissions hold for, unlike root, in a process of its own.
bool HoldsForAnybody(const std::filesystem::path& folder, const std::function<bool()>& holds) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0) {
      if (::chown(folder.c_str(), kNobody, kNobody) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)
        ::_exit(2);
    }
    ::_exit(holds() ? 0 : 1);
  }
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

// A program may have made its folders so. None of them stays, nor keeps others.
TEST_F(GarbageTest, WhatCannotBeReadOrWrittenGoesToo) {
  EXPECT_TRUE(HoldsForAnybody(root_, [&] {
    Make("store/" + old_ + "/file", seconds(7200));
    Make("store/" + old_ + "/locked/file", seconds(7200));
    for (const char* name : {"a", "b", "c"}) Make(std::string("trash/") + name + "/folder/file", seconds(0));
    std::filesystem::permissions(root_ / "store" / old_ / "locked", std::filesystem::perms::none);
    std::filesystem::permissions(root_ / "trash/b/folder",
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    const auto removed = CollectGarbage(root_, {}, seconds(0));
    return removed.ok() && removed->removed_sha256_size() == 1 && EmptyTrash(root_).ok() &&
           std::filesystem::is_empty(root_ / "trash") && !Exists("store/" + old_);
  }));
}

TEST_F(GarbageTest, TheAgentUsedLastStaysHoweverOld) {
  Make("agents/" + old_, seconds(9000));
  Make("agents/" + needed_, seconds(7200));
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(3600))->removed_sha256(), testing::ElementsAre(old_));
  EXPECT_TRUE(Exists("agents/" + needed_));
}

TEST_F(GarbageTest, WhatIsMarkedUsedIsNew) {
  Make("store/" + old_ + "/file", seconds(7200));
  MarkUsed(root_ / "store" / old_);
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(3600))->removed_sha256(), testing::IsEmpty());
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(0))->removed_sha256(), testing::ElementsAre(old_));
}

// Whatever its archive says, or how long it took to come. As somebody who may not write into its files.
TEST_F(GarbageTest, WhatIsPlacedIsNewAndGoesWithAllThatIsKnownOfIt) {
  EXPECT_TRUE(HoldsForAnybody(root_, [&] {
    Make("in/folder/file", seconds(0));
    const std::string archive = *PackDirectory(root_ / "in"), sha256 = Sha256Hex(archive);
    const auto produce = [&](const ArchiveSink& take) {
      const absl::Status taken = take(archive);
      const timespec long_ago[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
      const std::filesystem::path tmp = root_ / "store/tmp";
      const std::string scratch = ListDirectory(tmp)->at(0);
      return ::utimensat(AT_FDCWD, (tmp / scratch / "tree").c_str(), long_ago, 0) == 0
                 ? taken
                 : ErrnoError(errno, "utimensat");
    };
    EXPECT_EQ(Store(root_, sha256, archive.size(), produce).value_or(""), "stored " + sha256);
    EXPECT_THAT(CollectGarbage(root_, {}, seconds(3600))->removed_sha256(), testing::IsEmpty());
    EXPECT_FALSE(UniqueFd(::open((root_ / "store" / sha256 / "folder/file").c_str(), O_WRONLY)).valid());
    // Of a content that is gone: what a killed `receive`, or an earlier agent, has left.
    for (const char* kind : {".files", ".files.tmp01234567"}) Make("store/" + old_ + kind, seconds(0));
    // What a task has added is not looked at.
    Make("store/" + sha256 + "/folder/added", seconds(0));
    const auto removed = CollectGarbage(root_, {}, seconds(0));
    EXPECT_THAT(removed->removed_sha256(), testing::ElementsAre(sha256));
    EXPECT_EQ(removed->removed_bytes(), 5u);
    EXPECT_THAT(*ListDirectory(root_ / "store"), testing::ElementsAre("tmp"));
    EXPECT_TRUE(EmptyTrash(root_).ok());
    return !HasFailure() && std::filesystem::is_empty(root_ / "trash");
  }));
}

// A link to itself stands for a disk that cannot be read for a moment.
TEST_F(GarbageTest, NothingGoesWhileNobodyKnowsWhatDriversNeed) {
  Make("store/" + old_ + "/file", seconds(7200));
  for (const char* path : {"controller/jobs/job/needed", "controller/jobs"}) {
    std::filesystem::remove_all(root_ / path);
    std::filesystem::create_directories((root_ / path).parent_path());
    std::filesystem::create_symlink((root_ / path).filename(), root_ / path);
    const auto removed = CollectGarbage(root_, {}, seconds(0));
    EXPECT_FALSE(removed.ok());
    EXPECT_THAT(std::string(removed.status().message()), testing::HasSubstr(root_ / path));
    EXPECT_TRUE(Exists("store/" + old_));
  }
  std::filesystem::remove(root_ / "controller/jobs");
  EXPECT_THAT(CollectGarbage(root_, {}, seconds(0))->removed_sha256(), testing::ElementsAre(old_));
}

TEST_F(GarbageTest, WhatUploadsHaveLeftGoesWithTheTrash) {
  const std::filesystem::path tmp = ScratchParent(root_), kept = KeptArchivePath(root_, fresh_);
  std::filesystem::create_directories(tmp / "killed/tree");
  std::filesystem::create_directories(tmp / "used");
  const UniqueFd used(::open((tmp / "used").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(used.get(), LOCK_EX), 0);
  for (const auto& archive : {tmp / (needed_ + ".another-boot"), KeptArchivePath(root_, old_), kept}) {
    ASSERT_TRUE(WriteFileAtomically(archive, "x").ok());
  }
  std::filesystem::last_write_time(KeptArchivePath(root_, old_),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  ASSERT_TRUE(EmptyTrash(root_).ok());
  EXPECT_THAT(ListDirectory(tmp).value(), testing::UnorderedElementsAre("used", kept.filename()));
}

TEST_F(GarbageTest, NothingIsThere) {
  EXPECT_THAT(CollectGarbage(root_ / "none", {}, seconds(0))->removed_sha256(), testing::IsEmpty());
  EXPECT_FALSE(Exists("none"));
}

}  // namespace
}  // namespace muster
