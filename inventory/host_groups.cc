#include "inventory/host_groups.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/nearest.h"
#include "inventory/address.h"
#include "inventory/host_range.h"
#include "inventory/ssh_config.h"
#include "inventory/words.h"

namespace muster {
namespace {

// Keys that no inventory has: of what arguments of ssh say, which holds where nothing else is said, and of a
// group's place among others.
constexpr char kFirstArguments[] = "first arguments", kCommonArguments[] = "common arguments",
               kExtraArguments[] = "extra arguments";
constexpr char kPriority[] = "priority";

constexpr int kMostNested = 64;  // groups

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
                                                          {"ansible_ssh_args", kFirstArguments},
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
  if (arguments.find("{{") != std::string::npos) return InvalidArgument("templates ({{ }}) are not read");
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

void HostGroups::AddChild(const std::string& group, const PlacedText& child) {
  mentions_.push_back({child, group});
  parents_[child.text].insert(group);
}

absl::Status HostGroups::CheckGroups() {
  // As with Ansible, they need no definition.
  for (const char* const name : {"all", "ungrouped"}) {
    if (groups_[name].name.text.empty()) groups_[name].name.text = name;
  }
  std::vector<std::string> names;
  for (const auto& [name, group] : groups_) {
    if (!group.name.text.empty()) names.push_back(name);
  }
  for (const auto& [name, holder] : mentions_) {
    if (std::ranges::binary_search(names, name.text)) continue;
    const std::string nearest = NearestWord(name.text, names);
    return Error(name, absl::StrFormat("no group %s is defined, by [%s] or [%s:children]%s",
                                       Quoted(name.text), name.text, name.text,
                                       nearest.empty() ? "" : "; did you mean " + Quoted(nearest) + "?"));
  }
  // Those that hold a group come before it; no recursion, which a file could make as deep as it likes.
  std::map<std::string, std::vector<std::string>> held;
  std::map<std::string, size_t> open;  // how many that hold it are still to come
  for (const auto& [child, parents] : parents_) {
    open[child] += parents.size();
    for (const std::string& parent : parents) {
      open.try_emplace(parent, 0);
      held[parent].push_back(child);
    }
  }
  std::vector<std::string> order;
  for (const auto& [name, count] : open) {
    if (count == 0) order.push_back(name);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string name = order[i];
    const int depth = DepthOf(name);
    open.erase(name);
    for (const std::string& child : held[name]) {
      depths_[child] = std::max(DepthOf(child), depth + 1);
      if (--open[child] == 0) order.push_back(child);
    }
  }
  MUSTER_RETURN_IF_ERROR(CheckLoops(open));
  for (const auto& [name, holder] : mentions_) {
    if (DepthOf(name.text) > kMostNested) {
      return Error(name, absl::StrFormat("groups are nested more than %d deep", kMostNested));
    }
  }
  return absl::OkStatus();
}

// `open`: the groups in loops, and those below them.
absl::Status HostGroups::CheckLoops(const std::map<std::string, size_t>& open) const {
  std::string name;
  if (parents_.contains("all")) {
    name = "all";  // it holds every other
  } else if (!open.empty()) {
    // One in a loop: upwards there is always another one, until it is one that was met before.
    std::set<std::string> met;
    for (name = open.begin()->first; met.insert(name).second;) {
      name = *std::ranges::find_if(parents_.at(name),
                                   [&](const std::string& parent) { return open.contains(parent); });
    }
  } else {
    return absl::OkStatus();
  }
  const auto at = std::ranges::find_if(mentions_, [&](const Mentioned& mentioned) {
    return mentioned.name.text == name && !mentioned.holder.empty() &&
           (name == "all" || open.contains(mentioned.holder));
  });
  MUSTER_CHECK(at != mentions_.end(), name);
  return Error(at->name, absl::StrFormat("the group %s would hold itself", Quoted(name)));
}

int HostGroups::DepthOf(const std::string& group) const {
  if (group == "all") return 0;
  const auto found = depths_.find(group);
  return found == depths_.end() ? 1 : found->second;
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
  if (key->second == kFirstArguments || key->second == kCommonArguments || key->second == kExtraArguments) {
    const auto keys = KeysOfArguments(value.text);
    if (!keys.ok()) return Error(value, std::string(keys.status().message()));
  }
  (*settings)[key->second] = std::move(value);
  return absl::OkStatus();
}

bool HostGroups::IsIpv6(const std::string& pattern) {
  const auto endpoint = ParseEndpoint(pattern);
  return endpoint.ok() && endpoint->address.find(':') != std::string::npos;
}

absl::StatusOr<std::vector<HostGroups::Entry*>> HostGroups::AddHosts(PlacedText pattern,
                                                                     const Settings& settings,
                                                                     const std::string& group) {
  if (IsIpv6(pattern.text)) return Error(pattern, kNoName);
  const std::optional<PlacedText> port = TakeNumber(&pattern);
  const absl::StatusOr<std::vector<std::string>> names = ExpandHostNames(pattern.text);
  if (!names.ok()) return Error(pattern, std::string(names.status().message()));
  std::vector<Entry*> entries;
  for (const std::string& name : *names) {
    const auto [found, is_new] = by_name_.emplace(name, nullptr);
    if (is_new && entries_.size() == kMaxHosts) {
      return Error(pattern, absl::StrFormat("more than %d hosts", kMaxHosts));
    }
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
  const auto priority_of = [&](const std::string& name) {
    const Settings& settings = groups_.at(name).settings;
    const auto found = settings.find(kPriority);
    int priority = 1;
    if (found != settings.end()) (void)absl::SimpleAtoi(found->second.text, &priority);
    return priority;
  };
  std::ranges::sort(groups, std::greater(), [&](const std::string& name) {
    return std::tuple(DepthOf(name), priority_of(name), name);
  });
  return groups;
}

// Those that it stands in first, then those above them. `ungrouped` is who stands in no other.
std::vector<std::string> HostGroups::GroupsOf(const Entry& entry) const {
  std::vector<std::string> all = entry.groups;
  std::erase(all, "ungrouped");
  if (std::ranges::all_of(all, [](const std::string& name) { return name == "all"; })) {
    all.push_back("ungrouped");
  }
  std::set<std::string> known(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto parents = parents_.find(all[i]);
    if (parents == parents_.end()) continue;
    for (const std::string& parent : parents->second) {
      if (known.insert(parent).second) all.push_back(parent);
    }
  }
  if (known.insert("all").second) all.push_back("all");
  return all;
}

// As on ssh's command line, where the first value holds: ssh_args stand before what Ansible adds for other
// variables, the rest behind that. What none of them says is left to ~/.ssh/config.
void HostGroups::AddArguments(Settings* settings) const {
  for (const char* const arguments : {kFirstArguments, kCommonArguments, kExtraArguments}) {
    const auto found = settings->extract(arguments);
    if (found.empty()) continue;
    const PlacedText& at = found.mapped();
    const auto keys = KeysOfArguments(at.text);  // checked as it was set
    for (const auto& [key, value] : *keys) {
      if (value.empty()) continue;
      const PlacedText placed{value, at.line, at.column};
      if (std::string_view(arguments) == kFirstArguments) settings->erase(key);
      settings->insert({key, placed});
    }
  }
}

absl::StatusOr<YamlDocument> HostGroups::Tree() {
  MUSTER_RETURN_IF_ERROR(CheckGroups());
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
    AddArguments(&settings);
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
