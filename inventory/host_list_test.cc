#include "inventory/host_list.h"

#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inventory/inventory.h"
#include "inventory/ssh_config.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<Inventory> Parse(const std::string& text) {
  return ParseInventory(text, "dir/hosts", "/home/me");
}
std::string ErrorOf(const std::string& text) { return std::string(Parse(text).status().message()); }

std::vector<std::string> NamesOf(const Inventory& inventory) {
  std::vector<std::string> names;
  for (const Host& host : inventory.hosts) names.push_back(host.name);
  return names;
}

std::vector<int> SlotsOf(const Inventory& inventory) {
  std::vector<int> slots;
  for (const Host& host : inventory.hosts) slots.push_back(host.slots);
  return slots;
}

// The same in both of Ansible's formats.
void ExpectTheMachines(const absl::StatusOr<Inventory>& inventory) {
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(NamesOf(*inventory),
              ElementsAre("lonely", "gpu-01.example.org", "gpu-02.example.org", "box", "here"));
  const Host &lonely = inventory->hosts[0], &gpu = inventory->hosts[2], &box = inventory->hosts[3],
             &here = inventory->hosts[4];
  EXPECT_EQ(lonely.ssh_address, "10.0.0.9");
  EXPECT_EQ(lonely.user, "everybody");
  EXPECT_TRUE(lonely.labels.empty());
  EXPECT_EQ(gpu.user, "own");
  EXPECT_THAT(gpu.labels, ElementsAre("gpu", "racks"));
  EXPECT_EQ(gpu.dir, "/scratch");
  EXPECT_THAT(gpu.jumps, ElementsAre(JumpHost{"[gate]:24", "gate", 24, "me", {}}));
  EXPECT_EQ(box.ssh_address, "10.0.0.3");
  EXPECT_EQ(box.ssh_port, 2200) << "as Ansible has it";
  EXPECT_EQ(box.user, "of_gpus");
  EXPECT_THAT(box.identities, ElementsAre("/home/me/.ssh/a key"));
  EXPECT_THAT(box.labels, ElementsAre("gpu", "cpu", "racks"));
  EXPECT_TRUE(here.local);
}

TEST(HostList, HostfilesOfMpi) {
  const auto inventory = Parse(
      "# a cluster\n"
      "\n"
      "node-1 slots=4 max_slots=8\r\n"
      "me@node-2   # two of them\n"
      "me@node-2\n"
      "node-3:16\n"
      "10.0.0.4\n"
      "node-3 slots=2");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(NamesOf(*inventory), ElementsAre("node-1", "node-2", "node-3", "10.0.0.4"));
  EXPECT_THAT(SlotsOf(*inventory), ElementsAre(4, 2, 18, 1));
  EXPECT_EQ(inventory->hosts[0].ssh_address, "node-1");
  EXPECT_EQ(inventory->hosts[0].ssh_port, 22);
  EXPECT_EQ(inventory->hosts[1].user, "me");
  EXPECT_EQ(inventory->hosts[2].position.ToString(), "dir/hosts:6:1");
}

// A page that ends, or line ends that were converted twice.
TEST(HostList, LinesMayHoldNothingButBlanksOfAnyKind) {
  for (const std::string blank : {"\f", "\v", "\r\r", " \f# a comment"}) {
    for (const std::string& text : {blank + "\nnode-1\n" + blank + "\nnode-2\n",
                                    "[a]\nnode-1\n" + blank + "\nnode-2\n[b:children]\n" + blank + "\na\n"}) {
      const auto inventory = Parse(text);
      ASSERT_TRUE(inventory.ok()) << inventory.status();
      EXPECT_THAT(NamesOf(*inventory), ElementsAre("node-1", "node-2"));
    }
  }
}

TEST(HostList, InventoriesOfAnsible) {
  const auto inventory = Parse(R"(; the machines
lonely ansible_host=10.0.0.9
[gpu]
gpu-[01:02].example.org ansible_user=own http_port=80
box ansible_host=10.0.0.3 ansible_port=2200 ansible_ssh_private_key_file="~/.ssh/a key"
[cpu]
box:2222
here ansible_connection=local
[racks:children]
gpu
cpu
[gpu:vars]
ansible_user = of_gpus   # also with spaces
ansible_ssh_common_args='-o StrictHostKeyChecking=no -J me@gate:24'
muster_dir=/scratch
[racks:vars]
ansible_user=of_racks
[all:vars]
ansible_user=everybody
)");
  ExpectTheMachines(inventory);
}

TEST(HostList, JumpHostsInAnsiblesArgumentsOfSsh) {
  const auto jump_of = [](const std::string& arguments) -> std::string {
    const auto inventory = Parse("[a]\nh ansible_ssh_common_args=" + arguments + "\n");
    if (!inventory.ok()) return std::string(inventory.status().message());
    if (inventory->hosts[0].jumps.empty()) return "none";
    const JumpHost& jump = inventory->hosts[0].jumps[0];
    return jump.user + "@" + jump.address;
  };
  EXPECT_EQ(jump_of("'-J me@g'"), "me@g");
  EXPECT_EQ(jump_of("-Jg"), "@g");
  EXPECT_EQ(jump_of("'-o ProxyJump=g'"), "@g");
  EXPECT_EQ(jump_of("'-C -oproxyjump=g -o ControlMaster=auto'"), "@g");
  EXPECT_EQ(jump_of("'-o ProxyCommand=\"ssh -W %h:%p -q me@g\"'"), "me@g");
  EXPECT_EQ(jump_of("'-o ControlMaster=auto -o ControlPersist=60s'"), "none");
  EXPECT_EQ(jump_of("'-o ProxyCommand=\"nc -x proxy %h %p\"'"),
            "dir/hosts:2:27: muster runs no ProxyCommand; name the jump host: ProxyJump [USER@]HOST[:PORT]");
}

// As on ssh's command line, where Ansible puts its own first.
TEST(HostList, WhatElseIsInAnsiblesArgumentsOfSsh) {
  const auto inventory = Parse(R"([a]
one ansible_ssh_common_args="-p 2222 -l late -i /key -4J me@gate"
two ansible_user=own ansible_port=23 ansible_ssh_common_args="-o User=late -oPort=24"
three ansible_ssh_common_args="-l first" ansible_ssh_extra_args="-l second -o IdentityFile=/extra"
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const Host &one = inventory->hosts[0], &two = inventory->hosts[1], &three = inventory->hosts[2];
  EXPECT_EQ(one.user, "late");
  EXPECT_EQ(one.ssh_port, 2222);
  EXPECT_THAT(one.identities, ElementsAre("/key"));
  EXPECT_THAT(one.jumps, ElementsAre(JumpHost{"gate", "gate", 22, "me", {}}));
  EXPECT_EQ(two.user, "own");
  EXPECT_EQ(two.ssh_port, 23);
  EXPECT_EQ(three.user, "first");
  EXPECT_THAT(three.identities, ElementsAre("/extra"));
  for (const auto& [arguments, message] :
       {std::pair<std::string, std::string>{"'-F other.cfg'", "muster reads ~/.ssh/config"},
        {"'-o HostName=b'", "give the host another address instead of -o HostName=b"},
        {"'-p 99999'", "port 99999 is not a number"},
        {"'-C command'", "command is no option of ssh"},
        {"-J", "-J is no option of ssh, or lacks its value"}}) {
    const auto refused = Parse("[a]\nh ansible_ssh_common_args=" + arguments + "\n");
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(message)) << arguments;
  }
}

TEST(HostList, AHostOverridesItsGroup) {
  const auto inventory = Parse(R"(alone:2222
[g]
bastion ansible_ssh_common_args=""
a ansible_ssh_extra_args=-C
b ansible_ssh_extra_args=-Jother
[g]
a
[h]
c ansible_connection=ssh
here
[g:vars]
ansible_ssh_common_args=-o ProxyCommand="ssh -W %h:%p -q me@bastion"
[h:vars]
ansible_connection=local
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const Host &alone = inventory->hosts[0], &bastion = inventory->hosts[1], &a = inventory->hosts[2],
             &b = inventory->hosts[3], &c = inventory->hosts[4], &here = inventory->hosts[5];
  EXPECT_EQ(alone.ssh_port, 2222);  // no slots, in a list with groups
  EXPECT_EQ(alone.slots, 1);
  EXPECT_TRUE(bastion.jumps.empty());
  EXPECT_THAT(a.jumps, ElementsAre(JumpHost{"bastion", "bastion", 22, "me", {}}));
  EXPECT_THAT(a.labels, ElementsAre("g"));
  EXPECT_THAT(b.jumps, ElementsAre(JumpHost{"bastion", "bastion", 22, "me", {}}));
  EXPECT_FALSE(c.local);
  EXPECT_TRUE(here.local);
}

TEST(HostList, AGroupMaySayThatItCountsMore) {
  const auto inventory = Parse(R"(alone
[a]
h
[b]
h
[a:vars]
ansible_group_priority=10
ansible_user=of_a
[b:vars]
ansible_user=of_b
[ungrouped:vars]
ansible_user=of_nobody
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->hosts[0].user, "of_nobody");
  EXPECT_THAT(inventory->hosts[0].labels, IsEmpty());
  EXPECT_EQ(inventory->hosts[1].user, "of_a");
}

TEST(HostList, OfSeveralGroupsTheDeepestOneCountsThenTheLastOne) {
  const auto inventory = Parse(R"([parent]
deep
[alpha]
even ansible_port=23
[beta]
even
[parent:children]
child
[child]
deep
[all:vars]
ansible_user=everybody
muster_dir=/all
[parent:vars]
ansible_user=of_parent
muster_dir=/parent
[child:vars]
ansible_user=of_child
[alpha:vars]
ansible_user=of_alpha
ansible_port=24
[beta:vars]
ansible_user=of_beta
ansible_port=25
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const Host &deep = inventory->hosts[0], &even = inventory->hosts[1];
  EXPECT_EQ(deep.user, "of_child");  // though it stands in the parent, too, and first
  EXPECT_EQ(deep.dir, "/parent");
  EXPECT_EQ(even.user, "of_beta");
  EXPECT_EQ(even.ssh_port, 23);
  EXPECT_EQ(even.dir, "/all");
}

TEST(HostList, AHostInSeveralGroupsIsOneHost) {
  const auto inventory = Parse("[gpu]\nn[0001:2100]\n[rack]\nn[0001:2100]\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->hosts.size(), 2100u);
  EXPECT_THAT(inventory->hosts.back().labels, ElementsAre("gpu", "rack"));
  EXPECT_TRUE(Parse("[gpu]\nn[0001:2100]\n[rack]\nn[0002:4096]\n").ok());
  EXPECT_EQ(ErrorOf("[gpu]\nn[0001:2100]\n[rack]\nn[0001:4096]\nm\n"), "dir/hosts:5:1: more than 4096 hosts");
}

TEST(HostList, HostsOfAnsibleInNoGroupHaveTheirOwnVariablesToo) {
  const auto inventory = Parse("web1 ansible_host=10.0.0.1 rack=3\nweb2 rack=4\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(NamesOf(*inventory), ElementsAre("web1", "web2"));
  EXPECT_EQ(inventory->hosts[0].ssh_address, "10.0.0.1");
}

TEST(HostList, RefusesWhatIsNeitherWithItsPlace) {
  EXPECT_EQ(ErrorOf("a slot=4\n"),
            "dir/hosts:1:3: unknown word \"slot\"; a hostfile has slots=N, an inventory of Ansible its hosts "
            "below [GROUP]");
  EXPECT_EQ(ErrorOf("a b\n"), "dir/hosts:1:3: expected NAME=VALUE, found \"b\"");
  EXPECT_EQ(ErrorOf("a\nb slots='4\n"), "dir/hosts:2:1: a quote (') is not closed");
  EXPECT_EQ(ErrorOf("a\nb slots=x\n"), "dir/hosts:2:9: expected a whole number from 1 to 65536, found \"x\"");
  EXPECT_EQ(ErrorOf("a slots=0\n"), "dir/hosts:1:9: expected a whole number from 1 to 65536, found \"0\"");
  EXPECT_EQ(ErrorOf("a\n[g\nb\n"), "dir/hosts:2:1: expected [GROUP], [GROUP:vars] or [GROUP:children]");
  EXPECT_EQ(ErrorOf("[g:hosts]\nb\n"), "dir/hosts:1:1: \"hosts\" is neither vars nor children");
  EXPECT_EQ(ErrorOf("[g:vars]\nb\n"), "dir/hosts:2:1: expected VARIABLE=VALUE");
  EXPECT_EQ(ErrorOf("[g]\na ansible_port=ssh\n"),
            "dir/hosts:2:16: expected a whole number from 1 to 65535, found \"ssh\"");
  EXPECT_EQ(ErrorOf("[g]\na ansible_connection=docker\n"),
            "dir/hosts:2:22: muster reaches hosts by ssh, or is on them (local), and not by \"docker\"");
  EXPECT_EQ(
      ErrorOf("[my group]\na\n"),
      "dir/hosts:1:2: \"my group\" is not a label: letters, digits, '-', '_' and '.', at most 63 bytes");
  EXPECT_EQ(ErrorOf("[g]\na ansible_host=x\nb ansible_host=x\n"),
            "dir/hosts:3:1: hosts \"b\" and \"a\" (at dir/hosts:2:1) are the same machine: x port 22");
  EXPECT_EQ(ErrorOf("[g]\n"), "dir/hosts:1:1: no hosts");
}

// A typing error would otherwise take its settings away in silence.
TEST(HostList, GroupsThatNobodyDefinesAreRefused) {
  EXPECT_EQ(ErrorOf("[web]\nw1\n[wbe:vars]\nansible_user=deploy\n"),
            "dir/hosts:3:2: no group \"wbe\" is defined, by [wbe] or [wbe:children]; did you mean \"web\"?");
  EXPECT_THAT(ErrorOf("[prod:children]\nnope\n[other]\nw1\n"),
              HasSubstr("dir/hosts:2:1: no group \"nope\" is defined"));
  EXPECT_THAT(ErrorOf("[prod:children]\nnope\n[nope:vars]\na=b\n[other]\nw1\n"),
              HasSubstr("dir/hosts:2:1: no group \"nope\" is defined"));
  for (const char* const section : {"[]", "[:children]", "[", "[:vars]"}) {
    EXPECT_EQ(ErrorOf(section + std::string("\nw1\n")),
              "dir/hosts:1:1: expected [GROUP], [GROUP:vars] or [GROUP:children]");
  }
  EXPECT_TRUE(Parse("[web:vars]\nansible_user=u\n[prod:children]\nweb\n[web]\nw1\n[all:vars]\nx=y\n"
                    "[ungrouped:vars]\nx=y\n")
                  .ok());
}

TEST(HostList, GroupsThatHoldThemselvesAreRefused) {
  EXPECT_EQ(ErrorOf("[a:children]\na\n[a]\nw1\n"), "dir/hosts:2:1: the group \"a\" would hold itself");
  EXPECT_EQ(ErrorOf("[a:children]\nb\n[b:children]\nc\n[c:children]\nb\n[c]\nw1\n"),
            "dir/hosts:6:1: the group \"b\" would hold itself");
  EXPECT_THAT(ErrorOf("[a:children]\nall\n[c]\nw1\n"), HasSubstr("2:1: the group \"all\" would hold itself"));
  EXPECT_EQ(ErrorOf("all: {children: {a: {children: {b: {children: {a: }}}}, c: {hosts: {x: }}}}\n"),
            "dir/hosts:1:48: the group \"a\" would hold itself");
  // What a YAML inventory names is there.
  EXPECT_TRUE(Parse("web: {hosts: {w: }}\nwbe: {vars: {ansible_user: x}}\n").ok());
}

TEST(HostList, GroupsAreNotNestedWithoutEnd) {
  const auto chain = [](int groups) {
    std::string text = "[g1]\nw\n";
    for (int i = 1; i < groups; ++i) text += absl::StrFormat("[g%d:children]\ng%d\n", i + 1, i);
    return text;
  };
  EXPECT_TRUE(Parse(chain(64)).ok());
  EXPECT_THAT(ErrorOf(chain(65)), HasSubstr(": groups are nested more than 64 deep"));
  EXPECT_THAT(ErrorOf(chain(40'000)), HasSubstr(": groups are nested more than 64 deep"));
}

TEST(HostList, ANumberBehindANameIsAPortWhereAnyVariableIsAnsibles) {
  const auto inventory = Parse("w1:2222 ansible_user=me\nw2\nw2\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->hosts[0].ssh_port, 2222);
  EXPECT_THAT(SlotsOf(*inventory), ElementsAre(1, 1));
  EXPECT_EQ(ErrorOf("a:1024\nb:2222\n"),
            "dir/hosts:2:1: 2222: slots or a port? write slots=2222 or ansible_port=2222");
  EXPECT_THAT(SlotsOf(*Parse("a:1024\nb slots=2222\n")), ElementsAre(1024, 2222));
  EXPECT_EQ(ErrorOf("127.0.0.1:4 slots=2\n"), "dir/hosts:1:19: slots are given twice");
  EXPECT_EQ(ErrorOf("a slots=2 slots=3\n"), "dir/hosts:1:17: slots are given twice");
}

TEST(HostList, AnIpv6AddressIsNoName) {
  const std::string message = "an IPv6 address is no name: write NAME ansible_host=ADDRESS";
  for (const std::string line : {"::1 slots=4", "2001:db8::3", "me@::1", "[2001:db8::2]:2222", "[::1]"}) {
    EXPECT_EQ(ErrorOf(line + "\n"), "dir/hosts:1:1: " + message) << line;
    EXPECT_EQ(ErrorOf("[g]\n" + line + "\n"), "dir/hosts:2:1: " + message) << line;
  }
  EXPECT_THAT(ErrorOf("all: {hosts: {\"2001:db8::3\": }}\n"), HasSubstr(message));
  EXPECT_EQ(Parse("v6 ansible_host=2001:db8::1\n")->hosts[0].ssh_address, "2001:db8::1");
}

TEST(HostList, ANulByteIsRefusedWithItsPlace) {
  using std::string_literals::operator""s;
  EXPECT_EQ(ErrorOf("a\nno\0de slots=2\n"s), "dir/hosts:2:3: a NUL byte");
  EXPECT_EQ(ErrorOf("a\n\0b\n"s), "dir/hosts:2:1: a NUL byte");
  EXPECT_EQ(ErrorOf("[g]\na\n[g:vars]\nansible_user=m\0e\n"s), "dir/hosts:4:15: a NUL byte");
}

TEST(HostList, ValuesOfVariablesAreCutAtACommentOutsideQuotes) {
  const auto key_of = [](const std::string& value) {
    const auto inventory = Parse("[g]\na\n[g:vars]\nansible_ssh_private_key_file=" + value + "\n");
    return inventory.ok() ? inventory->hosts[0].identities.at(0) : std::string(inventory.status().message());
  };
  EXPECT_EQ(key_of("\"/k # 1\""), "/k # 1");
  EXPECT_EQ(key_of("'/k # 1'  # mine"), "/k # 1");
  EXPECT_EQ(key_of("/k # mine"), "/k");
  const auto jump =
      Parse("[g]\na\n[g:vars]\nansible_ssh_common_args=-o ProxyCommand=\"ssh -W %h:%p g\" # \"\n");
  ASSERT_TRUE(jump.ok()) << jump.status();
  EXPECT_EQ(jump->hosts[0].jumps.at(0).name, "g");
}

TEST(HostList, BackslashesInAHostsLineAreAsInAShell) {
  const auto inventory = Parse(
      "[g]\na ansible_ssh_private_key_file=/x\\ y\nb ansible_ssh_private_key_file=\"/q\\\"r\\s\"\n"
      "c ansible_ssh_private_key_file='/a\\b'\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(inventory->hosts[0].identities, ElementsAre("/x y"));
  EXPECT_THAT(inventory->hosts[1].identities, ElementsAre("/q\"r\\s"));
  EXPECT_THAT(inventory->hosts[2].identities, ElementsAre("/a\\b"));
}

// As ssh has it: it logs in there as it does anywhere.
TEST(HostList, AJumpHostOfArgumentsHasNothingOfTheHostBehindIt) {
  const auto inventory = Parse(R"([g]
w1 ansible_user=deploy ansible_ssh_private_key_file=/key ansible_ssh_common_args="-J gate,me@inner"
w2 ansible_user=deploy ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p %r@gate"'
w3 ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p %r@gate"'
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(inventory->hosts[0].jumps,
              ElementsAre(JumpHost{"gate", "gate", 22, "", {}}, JumpHost{"inner", "inner", 22, "me", {}}));
  EXPECT_THAT(inventory->hosts[1].jumps, ElementsAre(JumpHost{"gate", "gate", 22, "deploy", {}}));
  EXPECT_THAT(inventory->hosts[2].jumps, ElementsAre(JumpHost{"gate", "gate", 22, LocalAccount(), {}}));
  EXPECT_THAT(ErrorOf("[g]\nw1 ansible_ssh_common_args='-o ProxyCommand=\"ssh -W %h:%p %u@gate\"'\n"),
              HasSubstr("dir/hosts:2:28: "));
  EXPECT_THAT(ErrorOf("[g]\nw1 ansible_ssh_common_args='-J %u@gate'\n"), HasSubstr("\"%u\""));
}

// They stand first on ssh's command line, before what Ansible adds for the other variables.
TEST(HostList, SshsArgumentsAreReadToo) {
  const auto inventory = Parse(
      "[g]\nw1 ansible_user=own ansible_ssh_args='-l first -J gate' ansible_ssh_common_args='-J other -p "
      "24'\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->hosts[0].user, "first");
  EXPECT_EQ(inventory->hosts[0].ssh_port, 24);
  EXPECT_EQ(inventory->hosts[0].jumps.at(0).name, "gate");
  EXPECT_THAT(ErrorOf("[g]\nw1 ansible_ssh_args=\"-o ControlPath={{ path }}\"\n"),
              HasSubstr("dir/hosts:2:21: templates ({{ }}) are not read"));
}

TEST(HostList, UngroupedIsWhoStandsInNoOtherGroup) {
  const auto inventory = Parse("[ungrouped]\nw1\nw2\n[all]\nw3\n[g]\nw1\n[ungrouped:vars]\nansible_user=q\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->hosts[0].user, "");
  EXPECT_EQ(inventory->hosts[1].user, "q");
  EXPECT_EQ(inventory->hosts[2].user, "q");
}

TEST(HostList, YamlIsNone) {
  for (const char* text : {"hosts: {a: }\n", "# x\n\ndefaults:\n", "{hosts: {a: }}\n", "---\nhosts:\n",
                           "\"hosts\": {a: }\n", "- a\n", "%YAML 1.2\n", "host: x\n", "", "# nothing\n"}) {
    EXPECT_FALSE(IsHostList(text)) << text;
  }
  for (const char* text : {"a\n", "# x\n\na:4\n", "[g]\n", "a slots=2  # rack: 3\n", "  a\n", "10.0.0.1"}) {
    EXPECT_TRUE(IsHostList(text)) << text;
  }
}

TEST(AnsibleYaml, GroupsAreLabelsAndTheNearestOnesVariablesHold) {
  const auto inventory = Parse(R"(---
all:
  hosts:
    lonely: {ansible_host: 10.0.0.9, packages: [vim, git]}
  vars:
    ansible_user: everybody
    ntp: {servers: [a, b]}
    ansible_become_password: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6130
  children:
    racks:
      vars: {ansible_user: of_racks}
      children:
        gpu:
          vars:
            ansible_user: of_gpus
            ansible_ssh_common_args: '-o StrictHostKeyChecking=no -J me@gate:24'
            muster_dir: /scratch
          hosts:
            gpu-[01:02].example.org: {ansible_user: own, http_port: 80}
            box:
              ansible_host: 10.0.0.3
              ansible_port: 2200
              ansible_ssh_private_key_file: ~/.ssh/a key
        cpu:
          hosts:
            box:2222:
            here: {ansible_connection: local}
    empty:
)");
  ExpectTheMachines(inventory);
  EXPECT_EQ(inventory->hosts[0].position.ToString(), "dir/hosts:4:5");
}

TEST(AnsibleYaml, GroupsMayStandAtTheTop) {
  const auto inventory = Parse("ungrouped: {hosts: {\"a:24\": }}\ngpu:\n  hosts:\n    b:\n    c: {}\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(NamesOf(*inventory), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(inventory->hosts[0].labels.empty());
  EXPECT_EQ(inventory->hosts[0].ssh_port, 24);
  EXPECT_THAT(inventory->hosts[2].labels, ElementsAre("gpu"));
}

TEST(AnsibleYaml, RefusesWhatIsNoneWithItsPlace) {
  EXPECT_EQ(ErrorOf("all:\n  host: {a: }\n"),
            "dir/hosts:2:3: unknown key \"host\" in the group \"all\"; did you mean \"hosts\"?");
  EXPECT_EQ(ErrorOf("all: {hosts: [a]}\n"),
            "dir/hosts:1:14: expected a mapping from host names to their variables, found a list");
  EXPECT_EQ(ErrorOf("all: {hosts: {a: {ansible_host: [x]}}}\n"),
            "dir/hosts:1:33: expected text, found a list");
  EXPECT_EQ(ErrorOf("all: {hosts: {a: {ansible_host: !vault x}}}\n"),
            "dir/hosts:1:33: type tags (!) are not read here");
  EXPECT_EQ(ErrorOf("all: {hosts: {a: {ansible_port: ssh}}}\n"),
            "dir/hosts:1:33: expected a whole number from 1 to 65535, found \"ssh\"");
  EXPECT_EQ(ErrorOf("all: {children: {g: {hosts: {a: }}, \"my group\": {hosts: {b: }}}}\n"),
            "dir/hosts:1:37: \"my group\" is not a label: letters, digits, '-', '_' and '.', at most 63 "
            "bytes");
  EXPECT_EQ(ErrorOf("all: {children: {g: }}\n"), "dir/hosts:1:1: no hosts");
  EXPECT_EQ(ErrorOf("all: x\n"), "dir/hosts:1:6: expected hosts, vars and children of a group, found \"x\"");
}

TEST(AnsibleYaml, MustersOwnInventoryIsNone) {
  EXPECT_EQ(ErrorOf("host: {a: }\n"),
            "dir/hosts:1:1: unknown key \"host\" in the inventory; did you mean \"hosts\"?");
  const auto own = Parse("hosts: {hosts: , vars: }\n");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_THAT(NamesOf(*own), ElementsAre("hosts", "vars"));
}

}  // namespace
}  // namespace muster
