// Lists of hosts that other programs read: hostfiles of MPI and inventories of Ansible in its INI format.
// What they say becomes the tree that the same inventory in YAML would be, so all else about it is the same.
//
//     node-1 slots=4                    # Open MPI; also node-1:4 (MPICH), me@node-1, and a name given twice
//     node-2
//
//     [gpu]                             ; Ansible: groups are labels, also those that hold groups
//     gpu-[01:02] ansible_host=10.0.0.21 ansible_user=train
//     [gpu:vars]
//     ansible_ssh_common_args='-J gate.example.org'
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "inventory/yaml_tree.h"

namespace muster {

/// Whether the first line that is no comment reads like one of these and not like YAML.
bool IsHostList(std::string_view text);

/// The tree {hosts: {NAME: {ssh, port, user, identity, jump, local, data, dir, labels, slots}}}, with the
/// places of the list. Of a group's variables those of the nearest group hold, and a host's own before them;
/// others than these are not read: ansible_host, _port, _user, _ssh_private_key_file, _connection=local,
/// _ssh_args, _ssh_common_args and _ssh_extra_args as far as they name a jump host (-J, ProxyJump,
/// ProxyCommand with ssh -W), port, user or key, _group_priority, muster_data, muster_dir. A number behind a
/// name is a port if there are groups or any ansible_ variable, and slots otherwise. InvalidArgument,
/// "path:line:column: ": what is neither of the formats, a ProxyCommand that is no jump host, groups that are
/// nowhere defined or hold themselves, and in a list without either any other word than slots and max_slots.
absl::StatusOr<YamlDocument> ParseHostList(std::string_view text, const std::string& path);

}  // namespace muster
