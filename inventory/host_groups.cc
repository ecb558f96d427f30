#include "inventory/host_groups.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "inventory/host_range.h"
#include "inventory/ssh_config.h"
#include "inventory/words.h"

namespace muster {
namespace {

// Keys that no inventory has: of what arguments of ssh say, which holds where nothing else is said, and of a
// group's place among others.
constexpr char kCommonArguments[] = "common arguments", kExtraArguments[] = "extra arguments";
constexpr char kPriority[] = "priority";

// The keys of an inventory that these variables are.
const std::map<std::string, std::string>& KeysOfVariables() {
  static const std::map<std::string, std::string> keys = {{"ansible_host", "ssh"},
                                                          {"ansible_ssh_host", "ssh"},
                                                          {"ansible_port", "port"},
                                                          {"ansible_ssh_port", "port"},
                                                          {"ansible_user", "user"},
                                                          {"ansible_ssh_user", "user"},
                                                          {"ansible_ssh_private_key_file", "identity"},
                                                          {"ansible_private_key_file", "identity"},
                                                          {"ansible_connection", "local"},
                                                          {"ansible_ssh_common_args", kCommonArguments},
                                                          {"ansible_ssh_extra_args", kExtraArguments},
                                                          {"ansible_group_priority", kPriority},
                                                          {"muster_data", "data"},
                                                          {"muster_dir", "dir"},
                                                          {"slots", "slots"}};
  return keys;
}

// What arguments of ssh say, by the keys of an inventory; "": nothing.
absl::StatusOr<std::map<std::string, std::string>> KeysOfArguments(const std::string& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<LineWord> split, SplitWords(arguments));
  std::vector<std::string> words;
  for (const LineWord& word : split) words.push_back(word.text);
  MUSTER_ASSIGN_OR_RETURN(const SshArguments ssh, ParseSshArguments(words));
  if (!ssh.host.empty()) return InvalidArgument("%s is no option of ssh", ssh.host);
  std::string jump = ssh.jump.value_or("");
  if (ssh.proxy_command && absl::AsciiStrToLower(*ssh.proxy_command) == "none") {
    jump = "none";
  } else if (ssh.proxy_command) {
    MUSTER_ASSIGN_OR_RETURN(const Endpoint host, JumpHostOfProxyCommand(*ssh.proxy_command));
    const std::string port = host.port == 0 ? "" : absl::StrFormat(":%d", host.port);
    jump = (host.user.empty() ? "" : host.user + "@") + host.address + port;
  }
  return std::map<std::string, std::string>{{"jump", jump},
                                            {"user", ssh.user},
                                            {"port", ssh.port == 0 ? "" : std::to_string(ssh.port)},
                                            {"identity", ssh.identity}};
}

YamlNode Text(const std::string& key, const PlacedText& value) {
  YamlNode node{.kind = YamlNode::Kind::kText, .text = value.text, .key = key};
  node.line = node.key_line = value.line;
  node.column = node.key_column = value.column;
  return node;
}

}  // namespace

absl::Status HostGroups::Error(const PlacedText& at, const std::string& message) const {
  return InvalidArgument("%s: %s", SourcePosition{path_, at.line, at.column}.ToString(), message);
}

void HostGroups::AddGroup(const PlacedText& name) {
  Group& group = groups_[name.text];
  if (group.name.text.empty()) group.name = name;
}

std::optional<PlacedText> HostGroups::TakeNumber(PlacedText* pattern) {
  const size_t colon = pattern->text.rfind(':');
  if (colon == std::string::npos || pattern->text.find(']', colon) != std::string::npos) return std::nullopt;
  PlacedText number{pattern->text.substr(colon + 1), pattern->line, pattern->column};
  pattern->text.erase(colon);
  return number;
}

bool HostGroups::Counts(const std::string& variable) { return KeysOfVariables().contains(variable); }

absl::Status HostGroups::Set(const std::string& variable, PlacedText value, Settings* settings) const {
  const auto key = KeysOfVariables().find(variable);
  if (key == KeysOfVariables().end()) return absl::OkStatus();
  if (key->second == "local") {
    static const std::set<std::string> kBySsh = {"ssh", "smart", "paramiko", "paramiko_ssh", "libssh"};
    const std::string name = value.text.substr(value.text.rfind('.') + 1);  // "ansible.builtin.ssh"
    if (name != "local" && !kBySsh.contains(name)) {
      return Error(value,
                   "muster reaches hosts by ssh, or is on them (local), and not by " + Quoted(value.text));
    }
    value.text = name == "local" ? "true" : "false";
  }
  if (key->second == kCommonArguments || key->second == kExtraArguments) {
    const auto keys = KeysOfArguments(value.text);
    if (!keys.ok()) return Error(value, std::string(keys.status().message()));
  }
  (*settings)[key->second] = std::move(value);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HostGroups::Entry*>> HostGroups::AddHosts(PlacedText pattern,
                                                                     const Settings& settings,
                                                                     const std::string& group) {
  const std::optional<PlacedText> port = TakeNumber(&pattern);
  const absl::StatusOr<std::vector<std::string>> names = ExpandHostNames(pattern.text);
  if (!names.ok()) return Error(pattern, std::string(names.status().message()));
  if (entries_.size() + names->size() > kMaxHosts) {
    return Error(pattern, absl::StrFormat("more than %d hosts", kMaxHosts));
  }
  std::vector<Entry*> entries;
  for (const std::string& name : *names) {
    const auto [found, is_new] = by_name_.emplace(name, nullptr);
    if (is_new) found->second = &entries_.emplace_back(Entry{.name = {name, pattern.line, pattern.column}});
    Entry& entry = *found->second;
    if (port) entry.settings.try_emplace("port", *port);
    for (const auto& [key, value] : settings) entry.settings[key] = value;
    if (!group.empty() && std::ranges::find(entry.groups, group) == entry.groups.end()) {
      entry.groups.push_back(group);
    }
    entries.push_back(&entry);
  }
  return entries;
}

// As Ansible has it, all of them in one order: those that are deeper below `all` override the others, by
// whichever way, and of two at the same depth that of the higher priority, then the later one in the
// alphabet.
std::vector<std::string> HostGroups::ByPrecedence(std::vector<std::string> groups) const {
  std::map<std::string, int> depths;
  const auto depth_of = [&](auto&& self, const std::string& name) -> int {
    if (name == "all") return 0;
    const auto [known, is_new] = depths.try_emplace(name, 1);
    const auto parents = parents_.find(name);
    if (!is_new || parents == parents_.end()) return known->second;
    int depth = 1;
    for (const std::string& parent : parents->second) depth = std::max(depth, self(self, parent) + 1);
    return depths[name] = depth;
  };
  for (const std::string& name : groups) (void)depth_of(depth_of, name);
  const auto priority_of = [&](const std::string& name) {
    const Settings& settings = groups_.at(name).settings;
    const auto found = settings.find(kPriority);
    int priority = 1;
    if (found != settings.end()) (void)absl::SimpleAtoi(found->second.text, &priority);
    return priority;
  };
  std::ranges::sort(groups, std::greater(), [&](const std::string& name) {
    return std::tuple(name == "all" ? 0 : depths.at(name), priority_of(name), name);
  });
  return groups;
}

// Those that it stands in first, then those above them.
std::vector<std::string> HostGroups::GroupsOf(const Entry& entry) const {
  std::vector<std::string> all = entry.groups;
  if (all.empty() && groups_.contains("ungrouped")) all.push_back("ungrouped");
  std::set<std::string> known(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto parents = parents_.find(all[i]);
    if (parents == parents_.end()) continue;
    for (const std::string& parent : parents->second) {
      if (known.insert(parent).second) all.push_back(parent);
    }
  }
  if (known.insert("all").second && groups_.contains("all")) all.push_back("all");
  return all;
}

YamlDocument HostGroups::Tree() const {
  YamlDocument document{.path = std::make_unique<const std::string>(path_)};
  YamlNode hosts{.kind = YamlNode::Kind::kMapping, .key = "hosts", .key_line = 1, .key_column = 1};
  for (const Entry& entry : entries_) {
    YamlNode host = Text(entry.name.text, entry.name);
    host.kind = YamlNode::Kind::kMapping;
    host.text.clear();
    Settings settings = entry.settings;
    if (entry.slots > 1) settings.insert({"slots", {std::to_string(entry.slots), host.line, host.column}});
    YamlNode labels{.kind = YamlNode::Kind::kList, .key = "labels"};
    labels.line = labels.key_line = host.line;
    labels.column = labels.key_column = host.column;
    const std::vector<std::string> groups = GroupsOf(entry);
    for (const std::string& name : ByPrecedence(groups)) {
      const Settings& more = groups_.at(name).settings;
      settings.insert(more.begin(), more.end());
    }
    for (const std::string& name : groups) {
      const Group& group = groups_.at(name);
      if (name != "all" && name != "ungrouped") labels.children.push_back(Text("", group.name));
    }
    // What they do not say they leave to ~/.ssh/config.
    for (const char* const arguments : {kCommonArguments, kExtraArguments}) {
      const auto found = settings.extract(arguments);
      if (found.empty()) continue;
      const PlacedText& at = found.mapped();
      const auto keys = KeysOfArguments(at.text);
      for (const auto& [key, value] : *keys) {
        if (!value.empty()) settings.insert({key, {value, at.line, at.column}});
      }
    }
    settings.erase(kPriority);
    // A local host of a group whose others are reached by SSH.
    if (const auto local = settings.find("local"); local != settings.end() && local->second.text == "true") {
      for (const char* key : {"ssh", "port", "user", "identity", "jump"}) settings.erase(key);
    }
    for (const auto& [key, value] : settings) host.children.push_back(Text(key, value));
    if (!labels.children.empty()) host.children.push_back(std::move(labels));
    hosts.children.push_back(std::move(host));
  }
  document.root.kind = YamlNode::Kind::kMapping;
  document.root.children.push_back(std::move(hosts));
  const auto set_path = [&](auto&& self, YamlNode& node) -> void {
    node.path = document.path.get();
    for (YamlNode& child : node.children) self(self, child);
  };
  set_path(set_path, document.root);
  return document;
}

}  // namespace muster
