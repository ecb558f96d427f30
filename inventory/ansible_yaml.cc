#include "inventory/ansible_yaml.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "inventory/host_groups.h"

namespace muster {
namespace {

constexpr std::string_view kGroupKeys[] = {"hosts", "vars", "children"};
constexpr std::string_view kOwnKeys[] = {"defaults", "hosts", "search", "discover"};

bool IsOneOf(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool IsGroup(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kMapping && !node.children.empty() &&
         std::ranges::all_of(node.children,
                             [](const YamlNode& child) { return IsOneOf(child.key, kGroupKeys); });
}

PlacedText KeyOf(const YamlNode& node) { return {node.key, node.key_line, node.key_column}; }

// Nothing is as good as a mapping without entries.
absl::Status CheckMapping(const YamlNode& node, const char* what) {
  if (node.kind == YamlNode::Kind::kMapping || node.kind == YamlNode::Kind::kNothing) return absl::OkStatus();
  return node.Expected(what);
}

class AnsibleReader {
 public:
  explicit AnsibleReader(const YamlDocument& document) : groups_(*document.path) {}

  absl::Status ReadGroup(const YamlNode& group);
  absl::StatusOr<YamlDocument> Tree() { return groups_.Tree(); }

 private:
  absl::Status ReadHosts(const YamlNode& hosts, const std::string& group);
  absl::Status ReadVariables(const YamlNode& variables, HostGroups::Settings* settings) const;

  HostGroups groups_;
};

absl::Status AnsibleReader::ReadGroup(const YamlNode& group) {
  MUSTER_RETURN_IF_ERROR(CheckMapping(group, "hosts, vars and children of a group"));
  groups_.AddGroup(KeyOf(group));
  for (const YamlNode& part : group.children) {
    if (part.key == "hosts") {
      MUSTER_RETURN_IF_ERROR(ReadHosts(part, group.key));
    } else if (part.key == "vars") {
      MUSTER_RETURN_IF_ERROR(CheckMapping(part, "a mapping from variables to their values"));
      MUSTER_RETURN_IF_ERROR(ReadVariables(part, &groups_.SettingsOf(group.key)));
    } else if (part.key == "children") {
      MUSTER_RETURN_IF_ERROR(CheckMapping(part, "a mapping from groups to what they hold"));
      for (const YamlNode& child : part.children) {
        groups_.AddChild(group.key, KeyOf(child));
        MUSTER_RETURN_IF_ERROR(ReadGroup(child));
      }
    } else {
      return part.KeyError(
          absl::StrFormat("unknown key %s in the group %s%s", Quoted(part.key), Quoted(group.key),
                          DidYouMean(part.key, {"hosts", "vars", "children"}, "keys there are")));
    }
  }
  return absl::OkStatus();
}

absl::Status AnsibleReader::ReadHosts(const YamlNode& hosts, const std::string& group) {
  MUSTER_RETURN_IF_ERROR(CheckMapping(hosts, "a mapping from host names to their variables"));
  for (const YamlNode& host : hosts.children) {
    MUSTER_RETURN_IF_ERROR(CheckMapping(host, "a mapping from variables to their values"));
    HostGroups::Settings settings;
    MUSTER_RETURN_IF_ERROR(ReadVariables(host, &settings));
    MUSTER_RETURN_IF_ERROR(groups_.AddHosts(KeyOf(host), settings, group).status());
  }
  return absl::OkStatus();
}

absl::Status AnsibleReader::ReadVariables(const YamlNode& variables, HostGroups::Settings* settings) const {
  for (const YamlNode& variable : variables.children) {
    if (!HostGroups::Counts(variable.key)) continue;
    if (variable.kind != YamlNode::Kind::kText) return variable.Expected("text");
    MUSTER_RETURN_IF_ERROR(
        groups_.Set(variable.key, {variable.text, variable.line, variable.column}, settings));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsAnsibleYaml(const YamlNode& root) {
  if (root.kind != YamlNode::Kind::kMapping) return false;
  const auto& groups = root.children;
  if (std::ranges::any_of(groups, [](const YamlNode& group) { return IsOneOf(group.key, kOwnKeys); })) {
    return false;
  }
  return root.Find("all") != nullptr || std::ranges::any_of(groups, IsGroup);
}

absl::StatusOr<YamlDocument> ReadAnsibleYaml(const YamlDocument& document) {
  AnsibleReader reader(document);
  for (const YamlNode& group : document.root.children) MUSTER_RETURN_IF_ERROR(reader.ReadGroup(group));
  return reader.Tree();
}

}  // namespace muster
