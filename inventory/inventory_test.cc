#include "inventory/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "base/file.h"
#include "inventory/host_range.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Inventory> Parse(std::string_view text) {
  return ParseInventory(text, "dir/inv.yaml", "/home/me");
}

std::string ErrorOf(std::string_view text) {
  const auto inventory = Parse(text);
  if (inventory.ok()) return "OK";
  EXPECT_EQ(ExitCodeFor(inventory.status()), 2);
  return std::string(inventory.status().message());
}

TEST(Inventory, ReadsTheExampleOfTheDesign) {
  const auto inventory = Parse(R"(
defaults: {user: train, identity: ~/.ssh/id_ed25519}   # dir: where on the host, if not ~/.muster
hosts:
  ps-[01:02]:  {labels: [cpu]}
  gpu-01: {ssh: 10.0.0.21:22, data: 192.168.1.21, labels: [gpu], jump: bastion.example.org}
  gpu-02: {labels: [gpu], gpus: [0, 2]}
search: [10.0.0.0/24]
discover: {command: ./hosts.sh, every: 10s}
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->path, "dir/inv.yaml");
  ASSERT_EQ(inventory->hosts.size(), 4u);
  const auto& [ps_1, ps_2, gpu_1, gpu_2] =
      std::tie(inventory->hosts[0], inventory->hosts[1], inventory->hosts[2], inventory->hosts[3]);

  EXPECT_EQ(ps_1.name, "ps-01");
  EXPECT_EQ(ps_1.ssh_address, "ps-01");
  EXPECT_EQ(ps_1.ssh_port, 22);
  EXPECT_EQ(ps_1.user, "train");
  EXPECT_THAT(ps_1.identities, ElementsAre("/home/me/.ssh/id_ed25519"));
  EXPECT_THAT(ps_1.labels, ElementsAre("cpu"));
  EXPECT_EQ(ps_1.data_address, "");
  EXPECT_TRUE(ps_1.jumps.empty());
  EXPECT_EQ(ps_1.gpus, std::nullopt);
  EXPECT_EQ(ps_1.dir, "~/.muster");
  EXPECT_FALSE(ps_1.local);
  EXPECT_EQ(ps_2.name, "ps-02");
  EXPECT_EQ(ps_2.position.ToString(), "dir/inv.yaml:4:3");

  EXPECT_EQ(gpu_1.ssh_address, "10.0.0.21");
  EXPECT_EQ(gpu_1.data_address, "192.168.1.21");
  EXPECT_THAT(gpu_1.jumps, ElementsAre(JumpHost{"bastion.example.org", "bastion.example.org", 22, "train",
                                                gpu_1.identities}));
  EXPECT_EQ(gpu_2.gpus, (std::vector<int>{0, 2}));

  EXPECT_THAT(inventory->search, ElementsAre(AddressBlock{"10.0.0.0", 24}));
  EXPECT_THAT(inventory->discover->command, ElementsAre("/bin/sh", "-c", "./hosts.sh"));
  EXPECT_EQ(inventory->discover->every, std::chrono::seconds(10));
}

TEST(Inventory, AHostOverridesTheDefaults) {
  const auto inventory = Parse(R"(
hosts:
  a:
  b: {user: other, port: 2200, identity: [k1, /k2], labels: [], jump: none, gpus: auto, dir: /b}
  c: {ssh: "c.example.org:23"}
  d: {ssh: d.example.org, jump: "me@[fe80::1%eth0]:2222"}
  e: {ssh: "[2001:db8::1]:2223"}
  f: {ssh: "2001:db8::1"}
  g: {local: true}
defaults: {user: train, port: 2022, labels: cpu, jump: "gate:24", gpus: [1], dir: ~/m}
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const auto& hosts = inventory->hosts;
  EXPECT_EQ(hosts[0].user, "train");
  EXPECT_EQ(hosts[0].ssh_port, 2022);
  EXPECT_THAT(hosts[0].labels, ElementsAre("cpu"));
  EXPECT_THAT(hosts[0].jumps, ElementsAre(JumpHost{"[gate]:24", "gate", 24, "train", {}}));
  EXPECT_THAT(*hosts[0].gpus, ElementsAre(1));
  EXPECT_EQ(hosts[0].dir, "~/m");

  EXPECT_EQ(hosts[1].user, "other");
  EXPECT_EQ(hosts[1].ssh_port, 2200);
  EXPECT_THAT(hosts[1].identities, ElementsAre("dir/k1", "/k2"));
  EXPECT_TRUE(hosts[1].labels.empty());
  EXPECT_TRUE(hosts[1].jumps.empty());
  EXPECT_EQ(hosts[1].gpus, std::nullopt);
  EXPECT_EQ(hosts[1].dir, "/b");

  EXPECT_EQ(hosts[2].ssh_address, "c.example.org");
  EXPECT_EQ(hosts[2].ssh_port, 23);
  EXPECT_EQ(hosts[3].ssh_port, 2022);
  EXPECT_THAT(hosts[3].jumps, ElementsAre(JumpHost{"[fe80::1%eth0]:2222", "fe80::1%eth0", 2222, "me", {}}));
  EXPECT_EQ(hosts[4].ssh_address, "2001:db8::1");
  EXPECT_EQ(hosts[4].ssh_port, 2223);
  EXPECT_EQ(hosts[5].ssh_address, "2001:db8::1");
  EXPECT_EQ(hosts[5].ssh_port, 2022);
  EXPECT_TRUE(hosts[6].local);
  EXPECT_EQ(hosts[6].ssh_address, "");
}

TEST(Inventory, RefusesBadInputWithItsPlace) {
  const struct {
    const char* text;
    const char* error;  // after "dir/inv.yaml:"
  } kCases[] = {
      {"", "1:1: the file is empty"},
      {"hosts:\n\ta: {}\n", "2:1: tab in the indentation; YAML is indented with spaces"},
      {"defaults: {}\n", "1:1: \"hosts\" is missing in the inventory"},
      {"hosts:\n", "1:1: expected a mapping from host names to their settings, found nothing"},
      {"hosts: {}\n", "1:8: no hosts"},
      {"hosts: [a, b]\n", "1:8: expected a mapping from host names to their settings, found a list"},
      {"hosts:\n  a: here\n", "2:6: expected a mapping (`key: value`) in host a, found \"here\""},
      {"host: {a: }\n", "1:1: unknown key \"host\" in the inventory; did you mean \"hosts\"?"},
      {"hosts:\n  a: {label: cpu}\n", "2:7: unknown key \"label\" in host a; did you mean \"labels\"?"},
      {"defaults: {ssh: a}\nhosts: {a: }\n",
       "1:12: unknown key \"ssh\" in defaults; keys there are: user, port, identity, jump, labels, gpus, "
       "slots, dir"},
      {"hosts:\n  a: {user: x, user: y}\n", "2:16: duplicate key \"user\", given before at dir/inv.yaml:2:7"},
      {"hosts:\n  a: {}\n  b: {}\n  a: {}\n", "4:3: duplicate key \"a\", given before at dir/inv.yaml:2:3"},
      {"hosts:\n  ps-[1:3]: {}\n  ps-2: {}\n",
       "3:3: duplicate host \"ps-2\", given before at dir/inv.yaml:2:3"},
      {"hosts:\n  a: {ssh: x}\n  b: {ssh: 'X:22'}\n",
       "3:3: hosts \"b\" and \"a\" (at dir/inv.yaml:2:3) are the same machine: x port 22"},
      {"hosts:\n  n-[1:2]: {ssh: 10.0.0.1}\n",
       "2:3: hosts \"n-2\" and \"n-1\" (at dir/inv.yaml:2:3) are the same machine: 10.0.0.1 port 22"},
      {"hosts:\n  a: {local: true}\n  b: {local: true}\n",
       "3:3: hosts \"b\" and \"a\" (at dir/inv.yaml:2:3) are the same machine: this machine, without SSH"},
      // Ports and other numbers.
      {"hosts:\n  a: {port: 70000}\n", "2:13: expected a whole number from 1 to 65535, found \"70000\""},
      {"hosts:\n  a: {port: -1}\n", "2:13: expected a whole number from 1 to 65535, found \"-1\""},
      {"hosts:\n  a: {port: [22]}\n", "2:13: expected a whole number from 1 to 65535, found a list"},
      {"hosts:\n  a: {port: }\n", "2:7: expected a whole number from 1 to 65535, found nothing"},
      {"hosts:\n  a: {ssh: 'a:70000'}\n", "2:12: port \"70000\" is not a number from 1 to 65535"},
      {"hosts:\n  a: {ssh: 'a:0'}\n", "2:12: port \"0\" is not a number from 1 to 65535"},
      {"hosts:\n  a: {ssh: 'a:'}\n", "2:12: port \"\" is not a number from 1 to 65535"},
      {"hosts:\n  a: {ssh: 'a:22', port: 22}\n", "2:20: the port is given twice, here and in `ssh`"},
      {"hosts:\n  a: {gpus: [0, -1]}\n", "2:17: expected a whole number from 0 to 255, found \"-1\""},
      {"hosts:\n  a: {gpus: [0, 0]}\n", "2:17: device 0 is given twice"},
      {"hosts:\n  a: {gpus: all}\n",
       "2:13: expected auto, or a list of device indices like [0, 2], found \"all\""},
      // Addresses.
      {"hosts:\n  a: {ssh: me@b}\n", "2:12: the user goes into `user: me`, not into the address"},
      {"hosts:\n  a: {ssh: -oProxyCommand=x}\n",
       "2:12: \"-oProxyCommand=x\" is not a host name or IP address"},
      {"hosts:\n  a: {ssh: 'a b'}\n", "2:12: \"a b\" is not a host name or IP address"},
      {"hosts:\n  a: {ssh: '1:2:3'}\n", "2:12: \"1:2:3\" is not a host name or IP address"},
      {"hosts:\n  a: {ssh: '[::1'}\n", "2:12: \"[::1\" is not [address]:port"},
      {"hosts:\n  a: {ssh: '[::x]:22'}\n", "2:12: \"::x\" is not an IPv6 address"},
      {"hosts:\n  a: {ssh: []}\n",
       "2:12: expected host or host:port, found a list; an IPv6 address in brackets needs quotes"},
      {"hosts:\n  a: {data: gpu-01}\n",
       "2:13: expected the IP address that other hosts reach this one at, found \"gpu-01\""},
      {"hosts:\n  a: {data: 10.0.0.300}\n",
       "2:13: expected the IP address that other hosts reach this one at, found \"10.0.0.300\""},
      {"hosts:\n  a: {data: 0.0.0.0}\n",
       "2:13: expected the IP address that other hosts reach this one at, found \"0.0.0.0\""},
      {"hosts:\n  a: {data: 224.0.0.1}\n",
       "2:13: expected the IP address that other hosts reach this one at, found \"224.0.0.1\""},
      {"hosts:\n  a: {data: 255.255.255.255}\n",
       "2:13: expected the IP address that other hosts reach this one at, found \"255.255.255.255\""},
      {"hosts:\n  a: {data: 'ff02::1'}\n",
       "2:13: expected the IP address that other hosts reach this one at, found the text \"ff02::1\""},
      {"hosts:\n  a: {data: '::'}\n",
       "2:13: expected the IP address that other hosts reach this one at, found the text \"::\""},
      {"hosts:\n  a: {ssh: '2001:DB8:0::1'}\n  b: {ssh: '2001:db8::1'}\n",
       "3:3: hosts \"b\" and \"a\" (at dir/inv.yaml:2:3) are the same machine: 2001:db8::1 port 22"},
      {"hosts:\n  a: {ssh: 'x', jump: '[FD00::1]:22'}\n  b: {ssh: 'x', jump: 'fd00:0::1'}\n",
       "3:3: hosts \"b\" and \"a\" (at dir/inv.yaml:2:3) are the same machine: x port 22 through fd00::1 "
       "port "
       "22"},
      {"hosts:\n  a: {jump: 'b,,c'}\n", "2:13: \"\" is not a host name or IP address"},
      {"hosts:\n  a: {jump: b}\n  b: {jump: c}\n  c: {jump: 'x,a'}\n",
       "2:3: host a: jump hosts lead in a circle: a -> b -> c -> a"},
      {"hosts:\n  a: {jump: '@b'}\n", "2:13: no user before '@' in \"@b\""},
      {"hosts: {a: }\nsearch: [10.0.0.0/8]\n",
       "2:10: \"10.0.0.0/8\" has more than 65536 addresses to search; use a prefix of at least /16"},
      {"hosts: {a: }\nsearch: [10.0.0.0/17, 10.1.0.0/17, 10.2.0.0/32]\n",
       "2:36: \"10.2.0.0/32\", with those before it, has more than 65536 addresses to search"},
      {"hosts: {a: }\nsearch: [10.0.0.0/33]\n",
       "2:10: \"10.0.0.0/33\": the prefix is not a number from 0 to 32"},
      {"hosts: {a: }\nsearch: [nets]\n",
       "2:10: \"nets\" is not an IP address or a block of them like 10.0.0.0/24"},
      // The rest.
      {"hosts:\n  a: {user: -x}\n", "2:13: \"-x\" is not a user name"},
      {"hosts:\n  a: {user: ''}\n", "2:13: expected text, found an empty one"},
      {"hosts:\n  a: {identity: ~joe/key}\n", "2:17: only ~/ is understood, not the home of another user"},
      {"hosts:\n  a: {labels: [a b]}\n",
       "2:16: \"a b\" is not a label: letters, digits, '-', '_' and '.', at most 63 bytes"},
      {"hosts:\n  a: {labels: {x: y}}\n", "2:15: expected text, found a mapping"},
      {"hosts:\n  a: {dir: muster}\n",
       "2:12: \"muster\" must start with / or ~/: it is a folder on the host"},
      {"hosts:\n  a: {local: yes}\n", "2:14: expected true or false, found \"yes\""},
      {"hosts:\n  a: {local: true, jump: b}\n",
       "2:20: \"jump\" means nothing for a local host, which is reached without SSH"},
      {"hosts: {a: }\ndiscover: {every: 10s}\n", "2:11: \"command\" is missing in discover"},
      {"hosts: {a: }\ndiscover: {command: [], every: 10s}\n",
       "2:21: expected a command line, or a list of a program and its arguments, found a list"},
      {"hosts: {a: }\ndiscover: {command: x, every: 10}\n",
       "2:31: expected a duration like 500ms, 10s, 5m or 2h, at most 24h, found \"10\""},
      // Names and ranges.
      {"hosts:\n  a b: {}\n",
       "2:3: \"a b\" is not a host name: letters, digits, '-', '_' and '.', the first a letter or digit, at "
       "most 253 "
       "bytes; another address goes into `ssh`"},
      {"hosts:\n  ps-[03:01]: {}\n", "2:3: the range [03:01] goes backwards"},
      {"hosts:\n  ps-[1-3]: {}\n",
       "2:3: [1-3] is not a range; write [first:last] with whole numbers, as in ps-[01:16]"},
  };
  for (const auto& test : kCases)
    EXPECT_EQ(ErrorOf(test.text), std::string("dir/inv.yaml:") + test.error) << test.text;
}

TEST(Inventory, TheSameAddressOnOtherPortsOrBehindAnotherJumpHostIsAnotherMachine) {
  EXPECT_EQ(ErrorOf("hosts:\n  a: {ssh: 'x:1'}\n  b: {ssh: 'x:2'}\n  c: {ssh: 'x:1', jump: g}\n  d: {ssh: "
                    "'x:1', jump: h}\n"),
            "OK");
}

TEST(Inventory, JumpHostsMayBeOfTheInventoryAndHaveTheirOwn) {
  const auto inventory = Parse(R"(
defaults: {user: train, jump: gate}
hosts:
  gate: {ssh: "gate.example.org:2200", user: me, identity: /key}
  inner: {ssh: 10.0.0.1}
  node: {ssh: 10.1.0.1, jump: inner}
  far: {ssh: 10.2.0.1, jump: [other@inner:23, x.example.org]}
  same: {ssh: 10.3.0.1, jump: "me@gate,y:24"}
  here: {local: true}
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const auto& hosts = inventory->hosts;
  const JumpHost gate{"gate", "gate.example.org", 2200, "me", {"/key"}},
      inner{"inner", "10.0.0.1", 22, "train", {}};
  EXPECT_TRUE(hosts[0].jumps.empty());  // not through itself
  EXPECT_THAT(hosts[1].jumps, ElementsAre(gate));
  EXPECT_THAT(hosts[2].jumps, ElementsAre(gate, inner));
  EXPECT_THAT(hosts[3].jumps, ElementsAre(gate, JumpHost{"inner", "10.0.0.1", 23, "other", {}},
                                          JumpHost{"x.example.org", "x.example.org", 22, "train", {}}));
  EXPECT_THAT(hosts[4].jumps, ElementsAre(gate, JumpHost{"[y]:24", "y", 24, "train", {}}));
}

TEST(Inventory, NoHostIsOnTheWayToItselfOrTwice) {
  const auto inventory = Parse(R"(
defaults: {jump: [gate, inner]}
hosts:
  gate: {ssh: "gate.example.org:2200"}
  inner: {ssh: 10.0.0.1}
  node: {ssh: 10.1.0.1}
  known: {ssh: 10.2.0.1, jump: "gate.example.org:2200"}
  same: {ssh: gate.example.org, port: 2201, jump: "gate.example.org:2201"}
)");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  const JumpHost gate{"gate", "gate.example.org", 2200, "", {}}, inner{"inner", "10.0.0.1", 22, "", {}};
  const auto& hosts = inventory->hosts;
  EXPECT_TRUE(hosts[0].jumps.empty());
  EXPECT_THAT(hosts[1].jumps, ElementsAre(gate));
  EXPECT_THAT(hosts[2].jumps, ElementsAre(gate, inner));
  EXPECT_EQ(hosts[3].jumps.size(), 1u);
  EXPECT_TRUE(hosts[4].jumps.empty());
}

TEST(HostRange, ExpandsAsAnsibleDoes) {
  EXPECT_THAT(*ExpandHostNames("a"), ElementsAre("a"));
  EXPECT_THAT(*ExpandHostNames("a[1:3]"), ElementsAre("a1", "a2", "a3"));
  EXPECT_THAT(*ExpandHostNames("a[08:10].net"), ElementsAre("a08.net", "a09.net", "a10.net"));
  EXPECT_THAT(*ExpandHostNames("a[8:10]"), ElementsAre("a8", "a9", "a10"));
  EXPECT_THAT(*ExpandHostNames("a[0:1]"), ElementsAre("a0", "a1"));
  EXPECT_THAT(*ExpandHostNames("a[5:5]"), ElementsAre("a5"));
  EXPECT_THAT(*ExpandHostNames("a[1:10:4]"), ElementsAre("a1", "a5", "a9"));
  EXPECT_THAT(*ExpandHostNames("a[08:10:2]"), ElementsAre("a08", "a10"));
  EXPECT_THAT(*ExpandHostNames("r[a:c][X:Z:2]"), ElementsAre("raX", "raZ", "rbX", "rbZ", "rcX", "rcZ"));
  EXPECT_EQ(ExpandHostNames("a[1:999999999:999999]")->size(), 1001u);
  EXPECT_THAT(*ExpandHostNames("r[1:2]n[01:02]"), ElementsAre("r1n01", "r1n02", "r2n01", "r2n02"));
  EXPECT_EQ(ExpandHostNames("a[1:4096]")->size(), 4096u);
}

TEST(HostRange, RefusesBadRangesAndBoundsTheNumberOfHosts) {
  const struct {
    const char* pattern;
    const char* error;
  } kCases[] = {
      {"a[1:4097]", "the range [1:4097] has more than 4096 hosts"},
      {"a[1:999999999]", "the range [1:999999999] has more than 4096 hosts"},
      {"a[1:100]b[1:100]", "\"a[1:100]b[1:100]\" stands for more than 4096 hosts"},
      {"a[2:1]", "the range [2:1] goes backwards"},
      {"a[001:10]", "the ends of the range [001:10] have leading zeros but not the same width"},
      {"a[1:02]", "the ends of the range [1:02] have leading zeros but not the same width"},
      {"a[1:2", "'[' without ']' in \"a[1:2\""},
      {"a1:2]", "']' without '[' in \"a1:2]\""},
  };
  for (const auto& test : kCases) EXPECT_EQ(ExpandHostNames(test.pattern).status().message(), test.error);
  for (const char* pattern :
       {"a[]", "a[1]", "a[:]", "a[1:]", "a[:2]", "a[1:2:0]", "a[1:2:]", "a[1:2:3:4]", "a[c:a]", "a[a:C]",
        "a[a:cc]", "a[-1:2]", "a[1:99999999999]", "a[[1:2]]", "", "-[1:2]", "a[1:2] b", "a/[1:2]"}) {
    EXPECT_EQ(ExpandHostNames(pattern).status().code(), absl::StatusCode::kInvalidArgument) << pattern;
  }
}

TEST(Inventory, BoundsTheNumberOfHosts) {
  EXPECT_EQ(ErrorOf("hosts:\n  a[1:4000]:\n  b[1:97]:\n"), "dir/inv.yaml:3:3: more than 4096 hosts");
}

TEST(Inventory, ReadsAFileAndNamesItInErrors) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "inv.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "hosts:\n  a: {prot: 1}\n").ok());
  EXPECT_EQ(ReadInventory(path, "/home/me").status().message(),
            path.string() + ":2:7: unknown key \"prot\" in host a; did you mean \"port\"?");
  EXPECT_THAT(std::string(ReadInventory(folder.path() / "none", "").status().message()),
              HasSubstr("No such file"));
}

TEST(Inventory, TakesHostsThatWereDiscovered) {
  const auto parse = [](const std::string& text, const std::map<std::string, Endpoint>& discovered) {
    return ParseInventory(text, "inv.yaml", "/home/me", {}, discovered);
  };
  const std::string file =
      "defaults: {user: train, port: 2022, labels: gpu, jump: gate}\n"
      "hosts: {a: {ssh: 10.0.0.1}, gate: {jump: none}}\n"
      "discover: {command: ./hosts.sh}\n";
  const auto inventory = parse(file, {{"a", {.address = "10.0.0.9"}},
                                      {"b", {.address = "10.0.0.2"}},
                                      {"c", {.address = "10.0.0.1"}},
                                      {"d", {.address = "10.0.0.2", .port = 23}}});
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  std::string names;
  for (const Host& host : inventory->hosts) names += host.name + " ";
  EXPECT_EQ(names, "a gate b c d ") << "a is elsewhere now";
  const Host& b = inventory->hosts[2];
  EXPECT_EQ(b.ssh_address, "10.0.0.2");
  EXPECT_EQ(b.ssh_port, 2022);
  EXPECT_EQ(b.user, "train");
  EXPECT_THAT(b.labels, ElementsAre("gpu"));
  ASSERT_EQ(b.jumps.size(), 1);
  EXPECT_EQ(b.jumps[0].name, "gate");
  EXPECT_EQ(b.position.ToString(), "inv.yaml:3:11");
  EXPECT_EQ(inventory->hosts[4].ssh_port, 23);
  EXPECT_EQ(parse(file, {{"same", {.address = "10.0.0.1"}}})->hosts.size(), 2) << "it is a";
  EXPECT_EQ(inventory->hosts[0].ssh_address, "10.0.0.9");
  EXPECT_EQ(inventory->hosts[0].ssh_port, 2022);

  // The command would have one machine do the work of two.
  EXPECT_EQ(parse(file, {{"b", {.address = "10.0.0.2"}}, {"c", {.address = "10.0.0.2"}}}).status().message(),
            "inv.yaml:3:11: the discovery command has \"b\" and \"c\" at the same place: 10.0.0.2 port 2022 "
            "through gate port 22");
  EXPECT_THAT(
      std::string(
          parse(file, {{"a", {.address = "10.0.0.2"}}, {"c", {.address = "10.0.0.2"}}}).status().message()),
      HasSubstr("has \"a\" and \"c\" at the same place"));

  EXPECT_EQ(parse(file, {{"x/y", {.address = "10.0.0.2"}}}).status().message(),
            "inv.yaml:3:11: the discovery command names \"x/y\", which is no host name");
  EXPECT_EQ(parse("discover: {command: x}\n", {{"b", {.address = "10.0.0.2"}}})->hosts.size(), 1);
  EXPECT_TRUE(parse("discover: {command: x}\n", {})->hosts.empty());
}

TEST(Inventory, LooksNowhereTwice) {
  const auto inventory = Parse(
      "hosts: {a: }\nsearch: [10.0.0.5, 10.0.0.0/17, 10.0.3.0/24, 10.0.99.9/17, 'fd00::/127', "
      "'FD00:0::1']\n");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(inventory->search, ElementsAre(AddressBlock{"10.0.0.0", 17}, AddressBlock{"fd00::", 127}));
}

TEST(AddressesIn, AreAllThatAHostMayHave) {
  EXPECT_THAT(AddressesIn({"10.1.2.77", 30}), ElementsAre("10.1.2.77", "10.1.2.78"));
  EXPECT_THAT(AddressesIn({"10.1.2.3", 31}), ElementsAre("10.1.2.2", "10.1.2.3"));
  EXPECT_THAT(AddressesIn({"10.1.2.3", 32}), ElementsAre("10.1.2.3"));
  EXPECT_THAT(AddressesIn({"fd00::fffe", 127}), ElementsAre("fd00::fffe", "fd00::ffff"));
  const std::vector<std::string> many = AddressesIn({"10.1.255.9", 16});
  EXPECT_EQ(many.size(), 65534u);
  EXPECT_EQ(many.front(), "10.1.0.1");
  EXPECT_EQ(many.back(), "10.1.255.254");
}

}  // namespace
}  // namespace muster
