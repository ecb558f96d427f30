#include "inventory/ansible_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inventory/inventory.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<Inventory> Parse(const std::string& text) {
  return ParseInventory(text, "dir/hosts.yml", "/home/me");
}
std::string ErrorOf(const std::string& text) { return std::string(Parse(text).status().message()); }

std::vector<std::string> NamesOf(const Inventory& inventory) {
  std::vector<std::string> names;
  for (const Host& host : inventory.hosts) names.push_back(host.name);
  return names;
}

TEST(AnsibleYaml, GroupsAreLabelsAndTheNearestOnesVariablesHold) {
  const auto inventory = Parse(R"(---
all:
  hosts:
    lonely: {ansible_host: 10.0.0.9, packages: [vim, git]}
  vars:
    ansible_user: everybody
    ntp: {servers: [a, b]}
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
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_THAT(NamesOf(*inventory),
              ElementsAre("lonely", "gpu-01.example.org", "gpu-02.example.org", "box", "here"));
  const Host &lonely = inventory->hosts[0], &gpu = inventory->hosts[2], &box = inventory->hosts[3],
             &here = inventory->hosts[4];
  EXPECT_EQ(lonely.ssh_address, "10.0.0.9");
  EXPECT_EQ(lonely.user, "everybody");
  EXPECT_TRUE(lonely.labels.empty());
  EXPECT_EQ(lonely.position.ToString(), "dir/hosts.yml:4:5");
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
            "dir/hosts.yml:2:3: unknown key \"host\" in the group \"all\"; did you mean \"hosts\"?");
  EXPECT_EQ(ErrorOf("all: {hosts: [a]}\n"),
            "dir/hosts.yml:1:14: expected a mapping from host names to their variables, found a list");
  EXPECT_EQ(ErrorOf("all: {hosts: {a: {ansible_host: [x]}}}\n"),
            "dir/hosts.yml:1:33: expected text, found a list");
  EXPECT_EQ(ErrorOf("all: {hosts: {a: {ansible_port: ssh}}}\n"),
            "dir/hosts.yml:1:33: expected a whole number from 1 to 65535, found \"ssh\"");
  EXPECT_EQ(ErrorOf("all: {children: {g: {hosts: {a: }}, \"my group\": {hosts: {b: }}}}\n"),
            "dir/hosts.yml:1:37: \"my group\" is not a label: letters, digits, '-', '_' and '.', at most 63 "
            "bytes");
  EXPECT_EQ(ErrorOf("all: {children: {g: }}\n"), "dir/hosts.yml:1:1: no hosts");
  EXPECT_EQ(ErrorOf("all: x\n"),
            "dir/hosts.yml:1:6: expected hosts, vars and children of a group, found \"x\"");
}

TEST(AnsibleYaml, MustersOwnInventoryIsNone) {
  EXPECT_EQ(ErrorOf("host: {a: }\n"),
            "dir/hosts.yml:1:1: unknown key \"host\" in the inventory; did you mean \"hosts\"?");
  const auto own = Parse("hosts: {hosts: , vars: }\n");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_THAT(NamesOf(*own), ElementsAre("hosts", "vars"));
}

}  // namespace
}  // namespace muster
