#include "launcher/host_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <deque>

#include "base/process.h"
#include "launcher/discovery.h"
#include "launcher/host_search.h"
#include "tests/support/eventually.h"
#include "tests/support/loopback_cluster.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// What a watch says, for the thread of a test.
class Heard {
 public:
  void Add(HostSighting sighting) {
    const std::lock_guard lock(mutex_);
    sightings_.push_back(std::move(sighting));
    changed_.notify_all();
  }
  void AddNames(std::set<std::string> names) {
    const std::lock_guard lock(mutex_);
    names_.push_back(std::move(names));
    changed_.notify_all();
  }
  void AddWarning(std::string text) {
    const std::lock_guard lock(mutex_);
    warnings_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::optional<HostSighting> Next() { return Take(sightings_); }
  std::optional<std::string> NextWarning() { return Take(warnings_); }
  /// How many there are that nobody has taken.
  size_t warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_.size();
  }
  std::set<std::string> NextNames() { return Take(names_).value_or(std::set<std::string>()); }

 private:
  template <typename T>
  std::optional<T> Take(std::deque<T>& queue) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !queue.empty(); }))
      return std::nullopt;
    T first = std::move(queue.front());
    queue.pop_front();
    return first;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostSighting> sightings_;
  std::deque<std::string> warnings_;
  std::deque<std::set<std::string>> names_;
};

class HostWatchTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), text).ok());
  }
  static record::Host HostAt(const std::string& name, const std::string& address, uint32_t port = 22) {
    record::Host host;
    host.set_name(name);
    host.set_ssh_address(address);
    host.set_ssh_port(port);
    return host;
  }
  HostWatchOptions Options(std::vector<record::Host> hosts, const std::filesystem::path& known_hosts = {}) {
    return {.inventory = Path("inventory.yaml"),
            .home = "/nowhere",
            .known_hosts = known_hosts,
            .hosts = std::move(hosts),
            .sighted = [this](HostSighting sighting) { heard_.Add(std::move(sighting)); },
            .named = [this](std::set<std::string> names) { heard_.AddNames(std::move(names)); },
            .warn = [this](std::string text) { heard_.AddWarning(std::move(text)); }};
  }

  const TemporaryDirectory folder_;
  Heard heard_;
};

TEST_F(HostWatchTest, AnInventoryThatChangesSaysWhereItsHostsAre) {
  Write("inventory.yaml", "hosts:\n  a: {ssh: 10.0.0.1}\n  b: {ssh: 10.0.0.2}\n");
  // b has been edited since the job was planned.
  HostWatch watch(Options({HostAt("a", "10.0.0.1"), HostAt("b", "10.0.0.3")}));
  const auto edited = heard_.Next();
  ASSERT_TRUE(edited.has_value());
  EXPECT_EQ(edited->host, "b");
  EXPECT_EQ(edited->ssh_address, "10.0.0.2");

  Write("inventory.yaml", "hosts: [\n");
  EXPECT_THAT(heard_.NextWarning().value_or(""), HasSubstr("inventory.yaml:"));

  Write(
      "inventory.yaml",
      "hosts:\n  a: {ssh: \"10.0.0.9:2222\", data: 10.1.0.9}\n  b: {ssh: 10.0.0.2}\n  c: {ssh: 10.0.0.5}\n");
  const auto moved = heard_.Next();
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->host, "a");
  EXPECT_EQ(moved->ssh_address, "10.0.0.9");
  EXPECT_EQ(moved->ssh_port, 2222);
  EXPECT_EQ(moved->data_address, "10.1.0.9");
}

TEST_F(HostWatchTest, ADiscoveryCommandIsAskedAgainAndAgain) {
  Write("addresses", "a 10.0.0.1\n");
  Write("inventory.yaml", "hosts: {a: {ssh: 10.0.0.1}}\ndiscover: {command: cat addresses, every: 200ms}\n");
  HostWatch watch(Options({HostAt("a", "10.0.0.1")}));
  EXPECT_EQ(heard_.Next().value_or(HostSighting{}).ssh_address, "10.0.0.1");
  Write("addresses", "# where they are\n\na 10.0.0.7:2022\nunknown 10.0.0.8\n");
  const auto moved = heard_.Next();
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->ssh_address, "10.0.0.7");
  EXPECT_EQ(moved->ssh_port, 2022);
  Write("addresses", "a\n");
  EXPECT_THAT(heard_.NextWarning().value_or(""),
              HasSubstr("line 1 of what it printed is not `NAME ADDRESS`: \"a\""));
}

// Whatever it then says of the failure, which may have a time in it.
TEST_F(HostWatchTest, ThatADiscoveryCommandFailsIsSaidOnceUntilItWorksAgain) {
  Write("run.sh",
        "echo $(($(cat count) + 1)) >count.new; mv count.new count\n"
        "test ! -e fails || { echo \"attempt $(cat count)\" >&2; exit 3; }\n"
        "cat addresses\n");
  Write("count", "0\n");
  Write("addresses", "a 10.0.0.1\n");
  const auto wait_for_runs = [&](int runs) {
    const int wanted = std::stoi(*ReadFile(Path("count"))) + runs;
    return Eventually([&] { return std::stoi(*ReadFile(Path("count"))) >= wanted; });
  };
  Write("inventory.yaml", "hosts: {a: {ssh: 10.0.0.1}}\ndiscover: {command: sh run.sh, every: 100ms}\n");
  HostWatch watch(Options({HostAt("a", "10.0.0.1")}));
  EXPECT_EQ(heard_.Next().value_or(HostSighting{}).ssh_address, "10.0.0.1");
  Write("fails", "");
  EXPECT_THAT(heard_.NextWarning().value_or(""), HasSubstr("ended with exit code 3: attempt "));
  ASSERT_TRUE(wait_for_runs(3));
  Write("addresses", "a 10.0.0.2\n");
  ASSERT_EQ(::unlink(Path("fails").c_str()), 0);
  EXPECT_EQ(heard_.Next().value_or(HostSighting{}).ssh_address, "10.0.0.2");
  EXPECT_EQ(heard_.warnings(), 0u) << "of the failures after the first";
  Write("fails", "");
  EXPECT_THAT(heard_.NextWarning().value_or(""), HasSubstr("ended with exit code 3: attempt "));
}

// It was planned where the command says that it is.
TEST_F(HostWatchTest, AHostThatTheCommandNamesIsNotWhereTheFileSays) {
  Write("addresses", "a 10.0.0.9\n");
  Write("inventory.yaml",
        "hosts: {a: {ssh: 10.0.0.1}, b: {ssh: 10.0.0.2}}\n"
        "discover: {command: cat addresses, every: 200ms}\n");
  HostWatch watch(Options({HostAt("a", "10.0.0.9"), HostAt("b", "10.0.0.3")}));
  std::set<std::string> said;
  for (int i = 0; i < 2; ++i) {
    const auto sighting = heard_.Next();
    ASSERT_TRUE(sighting.has_value());
    said.insert(sighting->host + " " + sighting->ssh_address + " " + sighting->source);
  }
  EXPECT_THAT(said, ElementsAre("a 10.0.0.9 the discovery command", "b 10.0.0.2 the inventory"));
  Write("addresses", "a 10.0.0.10\n");
  EXPECT_EQ(heard_.Next().value_or(HostSighting{}).ssh_address, "10.0.0.10");
  Write("addresses", "a me@10.0.0.10\n");
  EXPECT_THAT(heard_.NextWarning().value_or(""),
              HasSubstr("give the inventory `user:` instead: \"a me@10.0.0.10\""));
}

TEST_F(HostWatchTest, WhichHostsThereAreIsSaidWheneverOthersComeOrGo) {
  Write("addresses", "c 10.0.0.3\n");
  const std::string discover = "discover: {command: cat addresses, every: 200ms}\n";
  Write("inventory.yaml", "hosts: {a: , b: }\n" + discover);
  HostWatch watch(Options({HostAt("a", "a")}));
  EXPECT_THAT(heard_.NextNames(), ElementsAre("a", "b", "c"));
  Write("addresses", "d 10.0.0.4\nc 10.0.0.5\n");
  EXPECT_THAT(heard_.NextNames(), ElementsAre("a", "b", "c", "d"));
  Write("inventory.yaml", "hosts: {a: , e: }\n" + discover);
  EXPECT_THAT(heard_.NextNames(), ElementsAre("a", "c", "d", "e"));
  // What cannot be read says nothing about hosts.
  Write("inventory.yaml", "hosts: [\n");
  ASSERT_TRUE(heard_.NextWarning().has_value());
  Write("addresses", "c\n");
  ASSERT_TRUE(heard_.NextWarning().has_value());
  Write("addresses", "c 10.0.0.5\n");
  EXPECT_THAT(heard_.NextNames(), ElementsAre("a", "c", "e"));
}

TEST_F(HostWatchTest, AMissingHostIsFoundByItsKey) {
  LoopbackCluster cluster(3);
  const SshTarget& wanted = cluster.targets()[1];
  const std::string network = wanted.address.substr(0, wanted.address.rfind('.')) + ".0/24";
  Write("inventory.yaml", "hosts: {host-2: {ssh: \"10.255.255.1:" + std::to_string(wanted.port) +
                              "\"}}\nsearch: [" + network + "]\n");
  HostWatch watch(
      Options({HostAt("host-2", "10.255.255.1", wanted.port), HostAt("host-9", "10.255.255.2", 22)},
              cluster.options().known_hosts));
  watch.SetMissing({"host-2", "host-9"});
  const auto sighting = heard_.Next();
  ASSERT_TRUE(sighting.has_value());
  EXPECT_EQ(sighting->host, "host-2");
  EXPECT_EQ(sighting->ssh_address, wanted.address);
  EXPECT_EQ(sighting->ssh_port, wanted.port);
}

// The one that is found shows the other's type first.
TEST(SearchForHosts, FindsAHostByAKeyOfAnotherTypeThanThatOfAHostThatIsAway) {
  const TemporaryDirectory folder;
  const std::string second_key = (folder.path() / "key").string();
  const auto made = RunCommand({.argv = {"ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", second_key}},
                               Now() + std::chrono::seconds(30));
  ASSERT_TRUE(made.ok() && made->exit_code == 0) << made.status();
  LoopbackCluster cluster(1, {"HostKey " + second_key});
  const SshTarget& there = cluster.targets()[0];
  const auto known = KnownHosts::Load(cluster.options().known_hosts);
  ASSERT_TRUE(known.ok()) << known.status();
  const std::vector<std::string> addresses = {there.address};
  std::vector<std::string> found;
  const absl::Status status =
      SearchForHosts(addresses,
                     {{.name = "away", .port = there.port, .keys = {{"ecdsa-sha2-nistp256", "AAAA"}}},
                      {.name = there.name, .port = there.port, .keys = known->KeysOf(there.name)}},
                     -1, [&](const std::string& host, const std::string&) { found.push_back(host); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(found, ElementsAre(there.name));
}

TEST(SearchForHosts, CanBeGivenUp) {
  const UniqueFd cancel(::eventfd(1, EFD_CLOEXEC));  // it is given up before it begins
  const std::vector<std::string> addresses = AddressesIn({"198.18.0.0", 24});  // that swallow what is sent
  const absl::Status status =
      SearchForHosts(addresses, {{.name = "host-1", .keys = {{"ssh-ed25519", "AAAA"}}}}, cancel.get(),
                     [](const std::string& host, const std::string&) { ADD_FAILURE() << host; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(FilesOfDiscovery, AreThoseBesideTheInventoryThatItsWordsName) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(MakeDirectories(folder.path() / "lib").ok());
  for (const char* name : {"hosts.sh", "cloud.cfg", "lib/list.py", "unnamed", "hosts.yaml"}) {
    ASSERT_TRUE(WriteFileAtomically(folder.path() / name, "").ok());
  }
  const std::string inventory = (folder.path() / "hosts.yaml").string();
  const auto files = [&](const std::vector<std::string>& command) {
    return FilesOf({.command = command}, inventory);
  };
  EXPECT_THAT(files({"/bin/sh", "-c", "./hosts.sh --config=cloud.cfg|python3 'lib/list.py' hosts.yaml"}),
              ElementsAre("cloud.cfg", "hosts.sh", "lib/list.py"));
  EXPECT_THAT(files({"lib/../hosts.sh", folder.path() / "unnamed", "lib", "none"}), ElementsAre("hosts.sh"));
  EXPECT_THAT(files({"../" + folder.path().filename().string() + "/unnamed"}), IsEmpty());
}

TEST(Discover, SaysWhereTheCommandStandsAndWhatIsWrongWithIt) {
  const Discovery no_such{.command = {"/bin/sh", "-c", "echo no >&2; echo >&2; exit 3"},
                          .position = {.path = "hosts.yaml", .line = 3, .column = 1}};
  EXPECT_EQ(
      std::string(Discover(no_such, "hosts.yaml").status().message()),
      "hosts.yaml:3:1: the discovery command `echo no >&2; echo >&2; exit 3` failed: it ended with exit "
      "code 3: no");
  const Discovery endless{.command = {"/bin/sh", "-c", "exec sleep 600"}, .position = no_such.position};
  EXPECT_EQ(std::string(Discover(endless, "hosts.yaml", std::chrono::seconds(1)).status().message()),
            "hosts.yaml:3:1: the discovery command `exec sleep 600` did not end within 1 s");
}

// What a command prints is not for the terminal to obey.
TEST(ParseDiscovered, QuotesWhatItDoesNotTake) {
  const auto error_of = [](const std::string& text) {
    return std::string(ParseDiscovered(text).status().message());
  };
  EXPECT_EQ(error_of("a\x1b[2J\n"), "line 1 of what it printed is not `NAME ADDRESS`: \"a\\033[2J\"");
  EXPECT_EQ(error_of("a \x1b[2J\n"),
            "line 1 of what it printed: \"\\033[2J\" is not a host name or IP address");
  EXPECT_THAT(error_of("a u@\x1b\n"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(error_of("a u\x1b@b\n"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(error_of("a\x1b b\na\x1b c\n"), Not(HasSubstr("\x1b")));
  const Discovery failing{.command = {"/bin/sh", "-c", "printf 'first\\n\\033[2Jno' >&2; exit 3"}};
  const std::string said(Discover(failing, "hosts.yaml").status().message());
  EXPECT_THAT(said, HasSubstr("code 3: first\\n\\033[2Jno"));
  EXPECT_TRUE(ParseDiscovered("\xef\xbb\xbf"
                              "a 10.0.0.1\n")
                  ->contains("a"))
      << "a byte order mark";
}

TEST(ParseDiscovered, TakesANameAndAnAddressALine) {
  const auto places = ParseDiscovered("a 10.0.0.1\n  b  [fe80::1]:2222  # in the cellar\n\n# c 10.0.0.3\n");
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_THAT(*places,
              ElementsAre(Pair("a", Endpoint{"", "10.0.0.1", 0}), Pair("b", Endpoint{"", "fe80::1", 2222})));
  EXPECT_THAT(*ParseDiscovered(""), IsEmpty());
  EXPECT_EQ(ParseDiscovered("a 10.0.0.1\nb 10.0.0.3\na 10.0.0.2\n").status().message(),
            "lines 1 and 3 of what it printed have \"a\" at different places");
  EXPECT_TRUE(ParseDiscovered("a 10.0.0.1\na 10.0.0.1\n").ok());
  for (const std::string text : {"a", "a 10.0.0.1 10.0.0.2", "a 10.0.0.1:99999", "a [::1"}) {
    EXPECT_EQ(ParseDiscovered(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace muster
