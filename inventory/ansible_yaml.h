// Inventories of Ansible in its YAML format:
//
//     all:
//       vars: {ansible_user: train}
//       children:
//         gpu:
//           hosts:
//             gpu-[01:02]:
//             gpu-03: {ansible_host: 10.0.0.23}
#pragma once

#include "base/status.h"
#include "inventory/yaml_tree.h"

namespace muster {

/// Whether it is one, and not an inventory of muster's own: groups stand at the top.
bool IsAnsibleYaml(const YamlNode& root);

/// The same tree as of the format of lines (host_list.h), from which groups and variables mean the same.
/// InvalidArgument, "path:line:column: ": what is no group, a variable that counts and is no text.
absl::StatusOr<YamlDocument> ReadAnsibleYaml(const YamlDocument& document);

}  // namespace muster
