#include "inventory/host_list.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

#include "inventory/host_groups.h"
#include "inventory/inventory.h"
#include "inventory/words.h"

namespace muster {
namespace {

using Word = PlacedText;

constexpr int kMostSlotsOfANumber = 1024;  // behind a name; a larger one may well be a port

// The first byte that is no blank, or 0; of a comment too.
char FirstOf(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t\r\f\v");  // what SplitWords takes for blanks
  return at == std::string_view::npos || line[at] == '#' || line[at] == ';' ? 0 : line[at];
}

// A comment does not begin within quotes.
absl::string_view WithoutComment(absl::string_view text) {
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != 0) {
      if (text[i] == quote) quote = 0;
    } else if (text[i] == '"' || text[i] == '\'') {
      quote = text[i];
    } else if (text[i] == '#' && i > 0 && absl::ascii_isspace(text[i - 1])) {
      return text.substr(0, i);
    }
  }
  return text;
}

bool HasAnsibleVariable(std::string_view line) {
  const auto words = SplitWords(line);
  if (FirstOf(line) == 0 || !words.ok() || words->empty()) return false;
  return std::any_of(words->begin() + 1, words->end(),
                     [](const LineWord& word) { return word.text.starts_with("ansible_"); });
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

class HostListParser {
 public:
  explicit HostListParser(const std::string& path) : groups_(path) {}
  absl::Status Parse(std::string_view text);
  absl::StatusOr<YamlDocument> Tree() { return groups_.Tree(); }

 private:
  enum class Section : uint8_t { kNone, kHosts, kVariables, kChildren };

  absl::Status ParseSection(std::string_view line, int number);
  absl::Status ParseVariable(std::string_view line, int number);
  absl::Status ParseHost(const std::vector<Word>& words);
  absl::StatusOr<std::vector<Word>> WordsOf(std::string_view line, int number) const;

  HostGroups groups_;
  bool is_ansible_ = false;  // by its groups or its variables; else it is a hostfile, with slots
  Section section_ = Section::kNone;
  std::string group_;
};

absl::Status HostListParser::Parse(std::string_view text) {
  const std::vector<std::string_view> lines = LinesOf(text);
  is_ansible_ = std::any_of(lines.begin(), lines.end(), [](std::string_view line) {
    return FirstOf(line) == '[' || HasAnsibleVariable(line);
  });
  int number = 0;
  for (const std::string_view line : lines) {
    ++number;
    if (const size_t at = line.find('\0'); at != std::string_view::npos) {
      return groups_.Error({"", number, static_cast<int>(at) + 1}, "a NUL byte");
    }
    if (FirstOf(line) == 0) continue;
    if (FirstOf(line) == '[') {
      MUSTER_RETURN_IF_ERROR(ParseSection(line, number));
    } else if (section_ == Section::kVariables) {
      MUSTER_RETURN_IF_ERROR(ParseVariable(line, number));
    } else {
      MUSTER_ASSIGN_OR_RETURN(const std::vector<Word> words, WordsOf(line, number));
      if (section_ == Section::kChildren) {
        groups_.AddChild(group_, words[0]);
      } else {
        MUSTER_RETURN_IF_ERROR(ParseHost(words));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Word>> HostListParser::WordsOf(std::string_view line, int number) const {
  const auto split = SplitWords(line);
  if (!split.ok()) return groups_.Error({"", number, 1}, std::string(split.status().message()));
  std::vector<Word> words;
  for (const LineWord& word : *split) words.push_back({word.text, number, static_cast<int>(word.offset) + 1});
  return words;
}

absl::Status HostListParser::ParseSection(std::string_view line, int number) {
  const size_t begin = line.find('['), end = line.find(']');
  const Word at{"", number, static_cast<int>(begin) + 1};
  if (HostGroups::IsIpv6(std::string(line.substr(begin, line.find_first_of(" \t#;", begin) - begin)))) {
    return groups_.Error(at, HostGroups::kNoName);
  }
  const bool has_name = end != begin + 1 && line.substr(begin + 1, 1) != ":";
  if (end == std::string_view::npos || !has_name || FirstOf(line.substr(end + 1)) != 0) {
    return groups_.Error(at, "expected [GROUP], [GROUP:vars] or [GROUP:children]");
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
    return groups_.Error(at, absl::StrFormat("%s is neither vars nor children", Quoted(parts.second)));
  }
  const Word name{group_, number, at.column + 1};
  if (section_ == Section::kVariables) {
    groups_.Mention(name);
  } else {
    groups_.AddGroup(name);
  }
  return absl::OkStatus();
}

absl::Status HostListParser::ParseVariable(std::string_view line, int number) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    return groups_.Error({"", number, 1}, "expected VARIABLE=VALUE");
  }
  // Quotes belong to the value unless they are around all of it.
  const absl::string_view rest =
      WithoutComment(absl::string_view(line.data(), line.size()).substr(equals + 1));
  const absl::string_view stripped = absl::StripAsciiWhitespace(rest);
  Word value{std::string(stripped), number, static_cast<int>(stripped.data() - line.data()) + 1};
  const char quote = value.text.empty() ? 0 : value.text[0];
  if ((quote == '"' || quote == '\'') && value.text.find(quote, 1) == value.text.size() - 1) {
    value.text = value.text.substr(1, value.text.size() - 2);
  }
  const absl::string_view name = absl::StripAsciiWhitespace(absl::string_view(line.data(), equals));
  return groups_.Set(std::string(name), std::move(value), &groups_.SettingsOf(group_));
}

absl::Status HostListParser::ParseHost(const std::vector<Word>& words) {
  Word pattern = words[0];
  HostGroups::Settings settings;
  if (const size_t at = pattern.text.find('@'); at != std::string::npos) {
    settings["user"] = {pattern.text.substr(0, at), pattern.line, pattern.column};
    pattern.text.erase(0, at + 1);
  }
  if (HostGroups::IsIpv6(pattern.text)) return groups_.Error(words[0], HostGroups::kNoName);
  if (!is_ansible_) {
    if (const auto slots = HostGroups::TakeNumber(&pattern)) {
      if (int count = 0; absl::SimpleAtoi(slots->text, &count) && count > kMostSlotsOfANumber) {
        return groups_.Error(*slots, absl::StrFormat("%d: slots or a port? write slots=%d or ansible_port=%d",
                                                     count, count, count));
      }
      settings["slots"] = *slots;
    }
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return groups_.Error(words[i], absl::StrFormat("expected NAME=VALUE, found %s", Quoted(words[i].text)));
    }
    const std::string name = words[i].text.substr(0, equals);
    if (!is_ansible_ && !HostGroups::Counts(name) && name != "max_slots" && name != "max-slots") {
      return groups_.Error(words[i],
                           absl::StrFormat("unknown word %s; a hostfile has slots=N, an inventory of "
                                           "Ansible its hosts below [GROUP]",
                                           Quoted(name)));
    }
    const Word value{words[i].text.substr(equals + 1), words[i].line,
                     words[i].column + static_cast<int>(equals) + 1};
    if (!is_ansible_ && name == "slots" && settings.contains("slots")) {
      return groups_.Error(value, "slots are given twice");
    }
    MUSTER_RETURN_IF_ERROR(groups_.Set(name, value, &settings));
  }
  MUSTER_ASSIGN_OR_RETURN(const std::vector<HostGroups::Entry*> entries,
                          groups_.AddHosts(pattern, settings, section_ == Section::kHosts ? group_ : ""));
  if (is_ansible_) return absl::OkStatus();
  for (HostGroups::Entry* const entry : entries) {
    // As often as it is named, or as often as it says; what is no such number is refused later.
    int given = 1;
    const auto slots = settings.find("slots");
    const bool is_number = slots == settings.end() || absl::SimpleAtoi(slots->second.text, &given);
    if (!is_number || given < 1 || given > kMostSlots) continue;
    entry->slots = std::min(entry->slots + given, kMostSlots);
    if (entry->settings.contains("slots")) entry->settings["slots"].text = std::to_string(entry->slots);
  }
  return absl::OkStatus();
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
