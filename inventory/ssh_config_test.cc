#include "inventory/ssh_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "inventory/inventory.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class SshConfigTest : public testing::Test {
 protected:
  std::string home() const { return folder_.path().string(); }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / ".ssh" / name).parent_path());
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / ".ssh" / name, text).ok());
  }
  absl::StatusOr<SshConfig> Load() const { return SshConfig::Load(home() + "/.ssh/config", home()); }
  SshHostConfig For(const std::string& name) const { return *Load()->For(name); }
  static std::string Account() { return ::getpwuid(::getuid())->pw_name; }

  TemporaryDirectory folder_;
};

TEST_F(SshConfigTest, TheFirstValueHoldsAndIdentitiesAddUp) {
  Write("config",
        "# mine\n"
        "User = early\n"
        "Host gpu-* !gpu-9\n"
        "  HostName %h.example.org   # %h is the alias\n"
        "  Port 2200\n"
        "  User late\n"
        "  IdentityFile ~/.ssh/gpu\n"
        "  IdentityFile \"%d/a key\"\n"
        "host=box\n"
        "\thostname=10.0.0.3\n"
        "Match all\n"
        "  IdentityFile /last\n"
        "  Port 2300\n"
        "Match exec \"test -e /\"\n"
        "  User nobody\n"
        "Match host box\n"  // which is 10.0.0.3 by now
        "  ProxyJump no.where\n"
        "Match originalhost box\n"
        "  ProxyJump none\n"
        "Host *\n"
        "  ProxyJump me@gate:24,inner\n");
  const SshHostConfig gpu = For("gpu-1"), box = For("box"), nine = For("gpu-9");
  EXPECT_EQ(gpu.host_name, "gpu-1.example.org");
  EXPECT_EQ(gpu.port, 2200);
  EXPECT_EQ(gpu.user, "early");
  EXPECT_THAT(gpu.identities, ElementsAre(home() + "/.ssh/gpu", home() + "/a key", "/last"));
  EXPECT_THAT(*gpu.jump, ElementsAre(Endpoint{"me", "gate", 24}, Endpoint{"", "inner", 0}));
  EXPECT_EQ(box.host_name, "10.0.0.3");
  EXPECT_EQ(box.port, 2300);
  EXPECT_TRUE(box.jump && box.jump->empty());
  EXPECT_EQ(nine.host_name, "");
}

TEST_F(SshConfigTest, IncludesStandWhereTheyAre) {
  Write("config",
        "Host a\n  Include conf.d/*.conf\n"
        "Include all\n"
        "Host *\n  Port 3\n");
  Write("conf.d/1.conf", "Port 1\nHost b\n  User only-a-and-b\n");
  Write("conf.d/2.conf", "User two\n");
  Write("all", "Port 2\n");
  EXPECT_EQ(For("a").port, 1);
  EXPECT_EQ(For("a").user, "two");
  EXPECT_EQ(For("b").port, 3);  // an Include behind a Host line is a part of its block
  EXPECT_EQ(For("b").user, "");
}

TEST_F(SshConfigTest, AProxyCommandOfSshIsAJumpHost) {
  Write("config",
        "Host a\n  ProxyCommand ssh -q -W %h:%p me@gate\n"
        "Host b\n  ProxyCommand none\n"
        "Host c\n  ProxyCommand nc -x proxy %h %p\n");
  EXPECT_THAT(*For("a").jump, ElementsAre(Endpoint{"me", "gate", 0}));
  EXPECT_TRUE(For("b").jump->empty());
  EXPECT_THAT(For("c").jump_error, AllOf(HasSubstr("config:6: "), HasSubstr("muster runs no ProxyCommand")));
  for (const char* command : {"ssh -p2222 -l bob -W [%h]:%p gate", "ssh gate -p 2222 -l bob -qW %h:%p",
                              "ssh -o X=y -l bob -W %h:%p -p 2222 gate",
                              "ssh -o 'User = bob' -oPort=2222 -o 'User carol' -W %h:%p gate"}) {
    const auto jump = JumpHostOfProxyCommand(command);
    ASSERT_TRUE(jump.ok()) << command;
    EXPECT_EQ(*jump, (Endpoint{"bob", "gate", 2222})) << command;
  }
  for (const char* command :
       {"", "ssh", "ssh gate", "ssh -W %h:%p", "ssh -W x:22 gate", "ssh -o ProxyJump=first -W %h:%p gate",
        "ssh -J first -W %h:%p gate", "ssh -o HostName=other -W %h:%p gate", "ssh -F other -W %h:%p gate",
        "ssh -o ProxyCommand=x -W %h:%p gate", "ssh -p x -W %h:%p gate", "ssh -i key -W %h:%p gate",
        "ssh -W %h:%p gate more", "ssh gate -W"}) {
    EXPECT_FALSE(JumpHostOfProxyCommand(command).ok()) << command;
  }
}

TEST_F(SshConfigTest, MatchMeansWhatItMeansToSsh) {
  const std::string account = Account();
  Write("config",
        "Match host 10.0.0.7\n  Port 1\n"  // it is not known yet which that is
        "Host inner*\n  HostName 10.0.0.7\n"
        "Match host=\"10.0.0.*,!10.0.0.8\" !originalhost inner-9\n  ProxyJump gate\n  User root\n"
        "Match user root localuser " +
            account +
            "\n  IdentityFile /of-root\n"
            "Match !localuser " +
            account +
            "\n  IdentityFile /of-nobody\n"
            "Match canonical\n  IdentityFile /canonical\n"
            "Match final all\n  IdentityFile /final\n");
  const SshHostConfig inner = For("inner"), nine = For("inner-9"), other = For("other");
  EXPECT_EQ(inner.port, 1);  // with the second look, which `final` asks for
  EXPECT_THAT(*inner.jump, ElementsAre(Endpoint{"", "gate", 0}));
  EXPECT_EQ(inner.user, "root");
  EXPECT_THAT(inner.identities, ElementsAre("/of-root", "/canonical", "/final"));
  EXPECT_FALSE(nine.jump);
  EXPECT_EQ(other.port, 0);
  // Who is given another user is another one.
  EXPECT_THAT(Load()->For("inner", {.user = "me"})->identities, ElementsAre("/canonical", "/final"));
  Write("config", "Match user\n  Port 1\n");
  EXPECT_THAT(std::string(Load().status().message()), EndsWith("config:1: Match user has no value"));
}

// It might be the only way there.
TEST_F(SshConfigTest, AJumpHostOfWhatOnlySshKnowsIsNotPassedOver) {
  Write("config",
        "Match host a,c exec \"test -e /\"\n  User skipped\n  ProxyJump gate\n"
        "Host c\n  ProxyJump other\n");
  EXPECT_EQ(For("a").user, "");
  for (const char* name : {"a", "c"}) {
    EXPECT_THAT(For(name).unknown_jump, HasSubstr("config:3: whether its Match block holds")) << name;
  }
  EXPECT_EQ(For("b"), SshHostConfig());
  // Whoever says how a host is reached has said enough.
  Write("config", "Match exec \"test -e /\"\n  ProxyJump gate\n");
  const std::filesystem::path path = folder_.path() / "inventory.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "hosts: {a: {jump: gate}}\n").ok());
  const auto inventory = ReadInventory(path, home());
  EXPECT_TRUE(inventory.ok()) << inventory.status();
  ASSERT_TRUE(WriteFileAtomically(path, "hosts: {a: }\n").ok());
  EXPECT_THAT(std::string(ReadInventory(path, home()).status().message()), HasSubstr("`jump: HOST`"));
}

// All as ssh -G has it.
TEST_F(SshConfigTest, PatternsHaveTwoWildcardsAndNothingElse) {
  Write("config",
        "Host web[1-3]\n  User u\nHost web\\1\n  User v\nHost w?b*\n  Port 5\n"
        "Match host WEB1\n  IdentityFile /match\nMatch originalhost WEB?\n  IdentityFile /original\n"
        "Match !all\n  User x\n");
  EXPECT_EQ(For("web1").user, "");
  EXPECT_EQ(For("web1").port, 5);
  EXPECT_EQ(For("wb").port, 0);
  EXPECT_THAT(For("web1").identities, ElementsAre("/match", "/original"));
  EXPECT_THAT(For("WEB1").identities, ElementsAre("/match", "/original"));
  EXPECT_EQ(For("WEB1").port, 0) << "a Host line takes letters as they are";
  EXPECT_EQ(For("web[1-3]").user, "u");
  Write("config", "Host *a*b?*c\n  Port 9\n");
  EXPECT_EQ(For("xaxbxbyc").port, 9);
  EXPECT_EQ(For("abc").port, 0);
  Write("config", "Match all host web1\n  User x\n");
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("config:1: `all` "));
}

TEST_F(SshConfigTest, TheSecondLookIsForTheNewName) {
  Write("config", "Host web1\n  HostName W.x\nHost w.x\n  User late\nMatch final\n  Port 9\n");
  EXPECT_EQ(For("web1").user, "late");
  EXPECT_EQ(For("web1").port, 9);
  Write("config",
        "Host web1\n  HostName w.x\nMatch final originalhost web1\n  Port 9\nHost web1\n  User first\n"
        "Host w.x\n  User late\n");
  EXPECT_EQ(For("web1").user, "first");
  EXPECT_EQ(For("web1").port, 9);
  Write("config", "Match final\n  HostName late.x\n  Port 9\n");
  EXPECT_EQ(For("web1").host_name, "") << "the name is settled by then";
  EXPECT_EQ(For("web1").port, 9);
}

// Whether a block holds is decided where it begins, not where its lines stand.
TEST_F(SshConfigTest, ABlockHoldsForAllItsLines) {
  Write("config", "Match host web1\n  HostName w.x\n  User me\n  Include inc\n  Port 7\n");
  Write("inc",
        "IdentityFile /all\nMatch host w.x\n  IdentityFile /new\nMatch host web1\n  IdentityFile /old\n");
  EXPECT_EQ(For("web1").user, "me");
  EXPECT_EQ(For("web1").port, 7);
  EXPECT_THAT(For("web1").identities, ElementsAre("/all", "/new"));
  EXPECT_EQ(For("other"), SshHostConfig());
}

TEST_F(SshConfigTest, NamesThatSshWouldCompleteAreRefused) {
  Write("config", "Host web*\n  CanonicalizeHostname yes\nHost *\n  CanonicalDomains example.org\n");
  EXPECT_THAT(std::string(Load()->For("web1").status().message()),
              HasSubstr("config:2: CanonicalizeHostname"));
  for (const char* name : {"other", "web1.example.org.net", "web1."})
    EXPECT_TRUE(Load()->For(name).ok()) << name;
  Write("config", "CanonicalizeHostname always\nMatch canonical\n  User c\n");
  EXPECT_EQ(For("web1").user, "c") << "without domains to try it only asks for the second look";
  Write("config", "CanonicalizeHostname yes\nCanonicalDomains a.b\nProxyJump gate\n");
  EXPECT_TRUE(Load()->For("web1").ok()) << "what a jump host reaches ssh leaves alone";
  EXPECT_TRUE(Load()->For("10.0.0.1").ok());
  Write("config", "CanonicalizeHostname always\nCanonicalDomains a.b\nProxyJump gate\n");
  EXPECT_FALSE(Load()->For("web1").ok());
  Write("config", "CanonicalizeHostname no\nCanonicalDomains a.b\n");
  EXPECT_TRUE(Load()->For("web1").ok());
}

TEST_F(SshConfigTest, BackslashesAndNulBytesAreAsSshHasThem) {
  Write("config",
        "IdentityFile ~/a\\ b\nIdentityFile \"/q\\\"r\"\nIdentityFile /it\\'s\nIdentityFile /b\\\\c\n"
        "IdentityFile /b\\c\nIdentityFile \"/d\\ e\"\n");
  EXPECT_THAT(For("a").identities, ElementsAre(home() + "/a b", "/q\"r", "/it's", "/b\\c", "/d\\ e"));
  Write("config", std::string("Host a\n  User x\0y\n", 18));
  EXPECT_THAT(std::string(Load().status().message()), EndsWith("config:2: a NUL byte"));
}

TEST_F(SshConfigTest, AProxyCommandKnowsTheUser) {
  Write("config",
        "Host a\n  User me\n  ProxyCommand ssh -W %h:%p %r@gate\nHost b\n  ProxyCommand ssh -l %r-j -W %h:%p "
        "gate\n"
        "Host c\n  ProxyCommand ssh -W %h:%p %u@gate\n");
  EXPECT_THAT(*For("a").jump, ElementsAre(Endpoint{"me", "gate", 0}));
  EXPECT_THAT(*For("b").jump, ElementsAre(Endpoint{Account() + "-j", "gate", 0}));
  EXPECT_THAT(For("c").jump_error, HasSubstr("config:7: "));
}

// As ssh has it, where `jump:` of the inventory means that one user goes all the way.
TEST_F(SshConfigTest, AJumpHostOfSshHasNothingOfTheHostBehindIt) {
  Write("config",
        "Host a\n  ProxyJump gate\nHost b\n  ProxyCommand ssh -W %h:%p gate\nHost own\n  User door\n"
        "Host c\n  ProxyJump own\n");
  const std::filesystem::path path = folder_.path() / "inventory.yaml";
  ASSERT_TRUE(WriteFileAtomically(path,
                                  "defaults: {user: train, identity: /key}\n"
                                  "hosts: {a: , b: , c: , d: {jump: gate}}\n")
                  .ok());
  const auto inventory = ReadInventory(path, home());
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const JumpHost bare{"gate", "gate", 22, "", {}};
  EXPECT_THAT(inventory->hosts[0].jumps, ElementsAre(bare));
  EXPECT_THAT(inventory->hosts[1].jumps, ElementsAre(bare));
  EXPECT_THAT(inventory->hosts[2].jumps, ElementsAre(JumpHost{"own", "own", 22, "door", {}}));
  EXPECT_THAT(inventory->hosts[3].jumps, ElementsAre(JumpHost{"gate", "gate", 22, "train", {"/key"}}));
}

TEST_F(SshConfigTest, TokensAreReplacedOnceAllIsKnown) {
  ::setenv("MUSTER_TEST_KEYS", "/keys", 1);
  Write("config",
        "Host *\n  IdentityFile ${MUSTER_TEST_KEYS}/%r@%h:%p\n  IdentityFile /of/%u/100%%\n"
        "  ProxyJump %r@gate:%p\n"
        "Host a\n  HostName a.example.org\n  User late\n  Port 24\n"
        "Host none\n  ProxyJump NONE\n");
  EXPECT_THAT(For("a").identities, ElementsAre("/keys/late@a.example.org:24", "/of/" + Account() + "/100%"));
  EXPECT_THAT(*For("a").jump, ElementsAre(Endpoint{"late", "gate", 24}));
  const auto given = Load()->For("a", {.user = "train", .port = 25});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->identities[0], "/keys/train@a.example.org:25");
  EXPECT_EQ(For("b").identities[0], "/keys/" + Account() + "@b:22");
  Write("config", "Host a\n  ProxyJump None\n  IdentityFile None\nHost *\n  ProxyJump gate\n");
  EXPECT_TRUE(For("a").jump && For("a").jump->empty());
  EXPECT_THAT(For("a").identities, ElementsAre("none"));
  Write("config", "IdentityFile ${MUSTER_TEST_NOT_SET}/key\n");
  EXPECT_THAT(std::string(Load()->For("a").status().message()),
              EndsWith("config:1: MUSTER_TEST_NOT_SET is not set"));
}

TEST_F(SshConfigTest, WhatSshWouldRefuseIsRefusedWithItsPlace) {
  EXPECT_EQ(For("a"), SshHostConfig());  // no file
  Write("config", "Host a\n  Port 70000\n");
  EXPECT_THAT(std::string(Load()->For("a").status().message()),
              EndsWith("config:2: port 70000 is not a number from 1 to 65535"));
  EXPECT_TRUE(Load()->For("b").ok());
  Write("config", "Port\n");
  EXPECT_THAT(std::string(Load().status().message()), EndsWith("config:1: Port has no value"));
  Write("config", "Host \"a\n");
  EXPECT_THAT(std::string(Load().status().message()), EndsWith("config:1: a quote (\") is not closed"));
  Write("config", "RemoteCommand it's\nUser it's\n");
  EXPECT_THAT(std::string(Load()->For("a").status().message()),
              EndsWith("config:2: a quote (') is not closed"));
  Write("config", "Include config\n");
  EXPECT_THAT(std::string(Load().status().message()),
              EndsWith("config:1: too many files include one another"));
}

TEST_F(SshConfigTest, AProxyCommandMattersOnlyWhereTheInventoryLeavesTheWayOpen) {
  Write("config", "Host a\n  ProxyCommand nc -x proxy %h %p\n");
  const std::filesystem::path path = folder_.path() / "inventory.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "hosts: {a: {jump: none}, b: }\n").ok());
  EXPECT_TRUE(ReadInventory(path, home()).ok());
  ASSERT_TRUE(WriteFileAtomically(path, "hosts: {a: }\n").ok());
  EXPECT_THAT(std::string(ReadInventory(path, home()).status().message()),
              HasSubstr("config:2: muster runs no"));
}

TEST_F(SshConfigTest, OfAnsiblesArgumentsOnlyAJumpHostTakesThePlaceOfOne) {
  Write("config", "Host *\n  ProxyJump gate\n");
  const std::filesystem::path path = folder_.path() / "hosts";
  const auto jumps = [&](const std::string& arguments) {
    const std::string text = "[g]\na ansible_ssh_common_args=\"" + arguments +
                             "\"\n[all:vars]\nansible_ssh_common_args='-J other'\n";
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    const auto inventory = ReadInventory(path, home());
    if (!inventory.ok()) return std::string(inventory.status().message());
    const auto& found = inventory->hosts[0].jumps;
    return found.empty() ? std::string("none") : found.back().name;
  };
  EXPECT_EQ(jumps("-o StrictHostKeyChecking=no"), "gate");
  EXPECT_EQ(jumps(""), "gate");
  EXPECT_EQ(jumps("-J inner"), "inner");
  EXPECT_EQ(jumps("-o ProxyJump=none"), "none");
  EXPECT_EQ(jumps("-o ProxyCommand=none"), "none");
}

TEST_F(SshConfigTest, AnInventoryTakesWhatItDoesNotSayItself) {
  Write("config",
        "Host alias\n  HostName 10.0.0.1\n  Port 2200\n  User me\n  IdentityFile ~/.ssh/a\n  ProxyJump gate\n"
        "Host gate\n  HostName gate.example.org\n  User door\n  IdentityFile ~/.ssh/g\n  ProxyJump outer\n");
  const std::filesystem::path path = folder_.path() / "inventory.yaml";
  ASSERT_TRUE(WriteFileAtomically(path,
                                  "hosts:\n"
                                  "  alias:\n"
                                  "  other: {ssh: alias, user: own, port: 23, identity: /own, jump: none}\n"
                                  "  same: {ssh: 10.0.0.9, jump: gate}\n"
                                  "  plain:\n")
                  .ok());
  const auto inventory = ReadInventory(path, home());
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const Host &alias = inventory->hosts[0], &other = inventory->hosts[1], &same = inventory->hosts[2],
             &plain = inventory->hosts[3];
  EXPECT_EQ(alias.ssh_address, "10.0.0.1");
  EXPECT_EQ(alias.ssh_port, 2200);
  EXPECT_EQ(alias.user, "me");
  EXPECT_THAT(alias.identities, ElementsAre(home() + "/.ssh/a"));
  const JumpHost outer{"outer", "outer", 22, "", {}},
      gate{"gate", "gate.example.org", 22, "door", {home() + "/.ssh/g"}};
  EXPECT_THAT(alias.jumps, ElementsAre(outer, gate));
  EXPECT_EQ(other.ssh_address, "10.0.0.1");
  EXPECT_EQ(other.ssh_port, 23);
  EXPECT_EQ(other.user, "own");
  EXPECT_THAT(other.identities, ElementsAre("/own"));
  EXPECT_TRUE(other.jumps.empty());
  EXPECT_THAT(same.jumps, ElementsAre(outer, gate));
  EXPECT_EQ(plain.ssh_address, "plain");
  EXPECT_EQ(plain.ssh_port, 22);
}

}  // namespace
}  // namespace muster
