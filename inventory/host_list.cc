#include "inventory/host_list.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "inventory/host_range.h"
#include "inventory/inventory.h"
#include "inventory/ssh_config.h"
#include "inventory/words.h"

namespace muster {
namespace {

struct Word {
  std::string text;  // without quotes
  int line = 1;
  int column = 1;
};

// The first byte that is no blank, or 0; of a comment too.
char FirstOf(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t");
  return at == std::string_view::npos || line[at] == '#' || line[at] == ';' ? 0 : line[at];
}

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Ansible gives ssh the arguments of two variables, which override one another no more than their own.
constexpr char kExtraJump[] = "extra jump";

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
                                                          {"ansible_ssh_common_args", "jump"},
                                                          {"ansible_ssh_extra_args", kExtraJump},
                                                          {"muster_data", "data"},
                                                          {"muster_dir", "dir"},
                                                          {"slots", "slots"}};
  return keys;
}

using Settings = std::map<std::string, Word>;  // by key

struct Group {
  Settings settings;
  Word name;
};

struct Entry {
  Word name;
  Settings settings;
  std::vector<std::string> groups;
  int slots = 0;  // as given, or how often it was named
};

class HostListParser {
 public:
  explicit HostListParser(const std::string& path) : path_(path) {}
  absl::Status Parse(std::string_view text);
  YamlDocument Tree() const;

 private:
  enum class Section : uint8_t { kNone, kHosts, kVariables, kChildren };

  absl::Status ParseSection(std::string_view line, int number);
  absl::Status ParseVariable(std::string_view line, int number);
  absl::Status ParseHost(const std::vector<Word>& words);
  absl::Status Set(const std::string& variable, Word value, Settings* settings) const;
  absl::Status Error(const Word& at, const std::string& message) const;
  absl::StatusOr<std::vector<Word>> WordsOf(std::string_view line, int number) const;
  Entry& EntryOf(const std::string& name, const Word& at);
  std::vector<std::string> GroupsOf(const Entry& entry) const;

  const std::string path_;
  bool has_groups_ = false;  // then it is Ansible's
  Section section_ = Section::kNone;
  std::string group_;
  std::map<std::string, Group> groups_;
  std::map<std::string, std::set<std::string>> parents_;  // groups by those that they hold
  std::vector<Entry> entries_;
  std::map<std::string, size_t> by_name_;  // index in entries_
};

absl::Status HostListParser::Error(const Word& at, const std::string& message) const {
  return InvalidArgument("%s: %s", SourcePosition{path_, at.line, at.column}.ToString(), message);
}

absl::Status HostListParser::Parse(std::string_view text) {
  const std::vector<std::string_view> lines = LinesOf(text);
  has_groups_ =
      std::any_of(lines.begin(), lines.end(), [](std::string_view line) { return FirstOf(line) == '['; });
  int number = 0;
  for (const std::string_view line : lines) {
    ++number;
    if (FirstOf(line) == 0) continue;
    if (FirstOf(line) == '[') {
      MUSTER_RETURN_IF_ERROR(ParseSection(line, number));
    } else if (section_ == Section::kVariables) {
      MUSTER_RETURN_IF_ERROR(ParseVariable(line, number));
    } else {
      MUSTER_ASSIGN_OR_RETURN(const std::vector<Word> words, WordsOf(line, number));
      if (section_ == Section::kChildren) {
        parents_[words[0].text].insert(group_);
      } else {
        MUSTER_RETURN_IF_ERROR(ParseHost(words));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Word>> HostListParser::WordsOf(std::string_view line, int number) const {
  const auto split = SplitWords(line);
  if (!split.ok()) return Error({"", number, 1}, std::string(split.status().message()));
  std::vector<Word> words;
  for (const LineWord& word : *split) words.push_back({word.text, number, static_cast<int>(word.offset) + 1});
  return words;
}

absl::Status HostListParser::ParseSection(std::string_view line, int number) {
  const size_t begin = line.find('['), end = line.find(']');
  const Word at{"", number, static_cast<int>(begin) + 1};
  if (end == std::string_view::npos || FirstOf(line.substr(end + 1)) != 0) {
    return Error(at, "expected [GROUP], [GROUP:vars] or [GROUP:children]");
  }
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::string_view(line.data() + begin + 1, end - begin - 1), absl::MaxSplits(':', 1));
  group_ = parts.first;
  if (parts.second.empty()) {
    section_ = Section::kHosts;
  } else if (parts.second == "vars") {
    section_ = Section::kVariables;
  } else if (parts.second == "children") {
    section_ = Section::kChildren;
  } else {
    return Error(at, absl::StrFormat("%s is neither vars nor children", Quoted(parts.second)));
  }
  Group& group = groups_[group_];
  if (group.name.text.empty()) group.name = {group_, number, at.column + 1};
  return absl::OkStatus();
}

absl::Status HostListParser::ParseVariable(std::string_view line, int number) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    return Error({"", number, 1}, "expected VARIABLE=VALUE");
  }
  // Quotes belong to the value unless they are around all of it.
  absl::string_view rest = absl::string_view(line.data(), line.size()).substr(equals + 1);
  if (const size_t comment = rest.find(" #"); comment != absl::string_view::npos)
    rest = rest.substr(0, comment);
  const absl::string_view stripped = absl::StripAsciiWhitespace(rest);
  Word value{std::string(stripped), number, static_cast<int>(stripped.data() - line.data()) + 1};
  const char quote = value.text.empty() ? 0 : value.text[0];
  if ((quote == '"' || quote == '\'') && value.text.find(quote, 1) == value.text.size() - 1) {
    value.text = value.text.substr(1, value.text.size() - 2);
  }
  const absl::string_view name = absl::StripAsciiWhitespace(absl::string_view(line.data(), equals));
  return Set(std::string(name), std::move(value), &groups_[group_].settings);
}

// The jump host in arguments of ssh, or "".
absl::StatusOr<std::string> JumpIn(const std::string& arguments) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<LineWord> words, SplitWords(arguments));
  for (size_t i = 0; i < words.size(); ++i) {
    std::string option = words[i].text;
    // "-J x", "-Jx", "-o Name=x", "-oName=x"
    if (option != "-J" && option != "-o" && !option.starts_with("-J") && !option.starts_with("-o")) continue;
    const bool is_jump = option[1] == 'J';
    option = option.substr(2);
    if (option.empty() && i + 1 < words.size()) option = words[++i].text;
    if (is_jump) return option;
    const size_t equals = option.find_first_of("= ");
    if (equals == std::string::npos) continue;
    const std::string name = absl::AsciiStrToLower(option.substr(0, equals));
    if (name == "proxyjump") return option.substr(equals + 1);
    if (name != "proxycommand") continue;
    MUSTER_ASSIGN_OR_RETURN(const Endpoint jump, JumpHostOfProxyCommand(option.substr(equals + 1)));
    const std::string port = jump.port == 0 ? "" : absl::StrFormat(":%d", jump.port);
    return (jump.user.empty() ? "" : jump.user + "@") + jump.address + port;
  }
  return std::string();
}

absl::Status HostListParser::Set(const std::string& variable, Word value, Settings* settings) const {
  const auto key = KeysOfVariables().find(variable);
  if (key == KeysOfVariables().end()) return absl::OkStatus();
  if (key->second == "local") {
    if (value.text == "local") value.text = "true";
    if (value.text == "ssh" || value.text == "smart" || value.text == "paramiko") value.text = "false";
  }
  if (key->second == "jump" || key->second == kExtraJump) {
    const absl::StatusOr<std::string> jump = JumpIn(value.text);
    if (!jump.ok()) return Error(value, std::string(jump.status().message()));
    value.text = jump->empty() ? "none" : *jump;
  }
  (*settings)[key->second] = std::move(value);
  return absl::OkStatus();
}

Entry& HostListParser::EntryOf(const std::string& name, const Word& at) {
  const auto [found, is_new] = by_name_.emplace(name, entries_.size());
  if (is_new) entries_.push_back({.name = {name, at.line, at.column}});
  return entries_[found->second];
}

absl::Status HostListParser::ParseHost(const std::vector<Word>& words) {
  Word pattern = words[0];
  Settings settings;
  if (const size_t at = pattern.text.find('@'); at != std::string::npos) {
    settings["user"] = {pattern.text.substr(0, at), pattern.line, pattern.column};
    pattern.text.erase(0, at + 1);
  }
  // Not the colon of a range.
  const size_t colon = pattern.text.rfind(':');
  if (colon != std::string::npos && pattern.text.find(']', colon) == std::string::npos) {
    const Word number{pattern.text.substr(colon + 1), pattern.line, pattern.column};
    settings[has_groups_ ? "port" : "slots"] = number;
    pattern.text.erase(colon);
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error(words[i], absl::StrFormat("expected NAME=VALUE, found %s", Quoted(words[i].text)));
    }
    const std::string name = words[i].text.substr(0, equals);
    if (!has_groups_ && !KeysOfVariables().contains(name) && name != "max_slots" && name != "max-slots" &&
        !name.starts_with("ansible_")) {
      return Error(words[i], absl::StrFormat("unknown word %s; a hostfile has slots=N, an inventory of "
                                             "Ansible its hosts below [GROUP]",
                                             Quoted(name)));
    }
    const Word value{words[i].text.substr(equals + 1), words[i].line,
                     words[i].column + static_cast<int>(equals) + 1};
    MUSTER_RETURN_IF_ERROR(Set(name, value, &settings));
  }
  const absl::StatusOr<std::vector<std::string>> names = ExpandHostNames(pattern.text);
  if (!names.ok()) return Error(words[0], std::string(names.status().message()));
  if (entries_.size() + names->size() > kMaxHosts) {
    return Error(words[0], absl::StrFormat("more than %d hosts", kMaxHosts));
  }
  for (const std::string& name : *names) {
    Entry& entry = EntryOf(name, words[0]);
    for (const auto& [key, value] : settings) entry.settings[key] = value;
    if (section_ == Section::kHosts &&
        std::find(entry.groups.begin(), entry.groups.end(), group_) == entry.groups.end()) {
      entry.groups.push_back(group_);
    }
    if (has_groups_) continue;
    // As often as it is named, or as often as it says; what is no such number is refused later.
    int given = 1;
    const auto slots = settings.find("slots");
    const bool is_number = slots == settings.end() || absl::SimpleAtoi(slots->second.text, &given);
    if (!is_number || given < 1 || given > kMostSlots) continue;
    entry.slots = std::min(entry.slots + given, kMostSlots);
    if (entry.settings.contains("slots")) entry.settings["slots"].text = std::to_string(entry.slots);
  }
  return absl::OkStatus();
}

// The nearest first.
std::vector<std::string> HostListParser::GroupsOf(const Entry& entry) const {
  std::vector<std::string> all = entry.groups;
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

YamlNode Text(const std::string& key, const Word& value) {
  YamlNode node{.kind = YamlNode::Kind::kText, .text = value.text, .key = key};
  node.line = node.key_line = value.line;
  node.column = node.key_column = value.column;
  return node;
}

YamlDocument HostListParser::Tree() const {
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
    for (const std::string& name : GroupsOf(entry)) {
      const Group& group = groups_.at(name);
      settings.insert(group.settings.begin(), group.settings.end());
      if (name != "all" && name != "ungrouped") labels.children.push_back(Text("", group.name));
    }
    if (const auto extra = settings.find(kExtraJump); extra != settings.end()) {
      Word& jump = settings.insert({"jump", extra->second}).first->second;
      if (jump.text == "none") jump = extra->second;
      settings.erase(extra);
    }
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

}  // namespace

bool IsHostList(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  for (const std::string_view line : LinesOf(text)) {
    const char first = FirstOf(line);
    if (first == 0) continue;
    const auto words = SplitWords(line);
    const bool has_key = words.ok() && std::any_of(words->begin(), words->end(), [](const LineWord& word) {
                           return word.text.ends_with(':');
                         });
    return !has_key && std::string_view("\"'{-%").find(first) == std::string_view::npos;
  }
  return false;
}

absl::StatusOr<YamlDocument> ParseHostList(std::string_view text, const std::string& path) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  HostListParser parser(path);
  MUSTER_RETURN_IF_ERROR(parser.Parse(text));
  return parser.Tree();
}

}  // namespace muster
