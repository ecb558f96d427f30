#include "inventory/ssh_config.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/file.h"
#include "inventory/words.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMostIncludes = 16;  // within one another, as ssh

absl::StatusOr<std::vector<std::string>> WordsOf(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<LineWord> split, SplitWords(text));
  std::vector<std::string> words;
  for (const LineWord& word : split) words.push_back(word.text);
  return words;
}

bool Matches(const std::vector<std::string>& patterns, const std::string& name) {
  bool matches = false;
  for (const std::string& pattern : patterns) {
    const bool negated = pattern.starts_with('!');
    if (::fnmatch(pattern.c_str() + (negated ? 1 : 0), name.c_str(), 0) != 0) continue;
    if (negated) return false;
    matches = true;
  }
  return matches;
}

// The patterns of a Host or Match line; none where it can hold for nobody here.
std::vector<std::string> PatternsOf(const std::string& keyword, const std::vector<std::string>& words) {
  if (keyword == "host") return words;
  if (words.size() == 1 && absl::AsciiStrToLower(words[0]) == "all") return {"*"};
  const std::string what = words.empty() ? "" : absl::AsciiStrToLower(words[0]);
  if (words.size() == 2 && (what == "host" || what == "originalhost")) return absl::StrSplit(words[1], ',');
  return {};
}

std::vector<std::filesystem::path> FilesOf(const std::string& pattern) {
  std::vector<std::filesystem::path> files;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return files;
}

std::string WithHome(const std::string& path, const std::string& home) {
  return path.starts_with("~/") ? home + path.substr(1) : path;
}

}  // namespace

absl::StatusOr<std::vector<Endpoint>> ParseJumpHosts(const std::string& text) {
  std::vector<Endpoint> jump;
  if (text == "none") return jump;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    std::string host(one);
    if (host.starts_with("ssh://")) host.erase(0, 6);
    MUSTER_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(host));
    jump.push_back(std::move(endpoint));
  }
  return jump;
}

absl::StatusOr<Endpoint> JumpHostOfProxyCommand(const std::string& command) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> words, WordsOf(command));
  const absl::Status refused =
      InvalidArgument("muster runs no ProxyCommand; name the jump host: ProxyJump [USER@]HOST[:PORT]");
  if (words.empty() || (words[0] != "ssh" && !words[0].ends_with("/ssh"))) return refused;
  std::string host, user, port;
  bool forwards = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with('-')) {
      if (!std::exchange(host, word).empty()) return refused;
      continue;
    }
    if (word.find_first_not_of("46aCkqTxv", 1) == std::string::npos) continue;  // say nothing of where
    const std::string option = word.substr(0, 2);
    if (word.size() == 2 && i + 1 == words.size()) return refused;
    const std::string value = word.size() > 2 ? word.substr(2) : words[++i];
    if (option == "-W") {
      forwards = value == "%h:%p" || value == "[%h]:%p";
    } else if (option == "-p") {
      port = value;
    } else if (option == "-l") {
      user = value;
    } else if (option != "-o") {
      return refused;
    }
  }
  if (!forwards || host.empty()) return refused;
  MUSTER_ASSIGN_OR_RETURN(Endpoint jump, ParseEndpoint(host));
  if (jump.user.empty()) jump.user = user;
  if (jump.port == 0 && !port.empty() && !absl::SimpleAtoi(port, &jump.port)) return refused;
  return jump;
}

absl::Status SshConfig::Read(const std::filesystem::path& path, const std::string& home, int depth,
                             const std::vector<std::vector<std::string>>& outer, std::vector<Line>* lines) {
  // What is no file ssh passes over.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (text->starts_with("\xef\xbb\xbf")) text->erase(0, 3);  // a byte order mark
  std::vector<std::vector<std::string>> blocks = outer;
  blocks.push_back({"*"});
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(*text, '\n')) {
    const std::string place = absl::StrFormat("%s:%d", path.string(), ++number);
    const std::string line(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line.starts_with('#')) continue;
    // "Keyword value", "Keyword=value", "Keyword = value"
    const size_t end = std::min(line.find_first_of(" \t="), line.size());
    const std::string keyword = absl::AsciiStrToLower(line.substr(0, end));
    std::string value(absl::StripAsciiWhitespace(absl::string_view(line).substr(end)));
    if (value.starts_with('=')) value = std::string(absl::StripLeadingAsciiWhitespace(value.substr(1)));
    if (value.empty()) return InvalidArgument("%s: %s has no value", place, line.substr(0, end));
    const bool is_block = keyword == "host" || keyword == "match";
    if (!is_block && keyword != "include") {
      lines->push_back({blocks, keyword, value, place});
      continue;
    }
    const auto words = WordsOf(value);
    if (!words.ok()) return Annotate(words.status(), place);
    if (is_block) {
      blocks.back() = PatternsOf(keyword, *words);
    } else {
      if (depth == kMostIncludes) return InvalidArgument("%s: too many files include one another", place);
      for (const std::string& word : *words) {
        const std::string pattern = WithHome(word, home);
        for (const std::filesystem::path& file :
             FilesOf(pattern.starts_with('/') ? pattern : home + "/.ssh/" + pattern)) {
          MUSTER_RETURN_IF_ERROR(Read(file, home, depth + 1, blocks, lines));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SshConfig> SshConfig::Load(const std::filesystem::path& path, const std::string& home) {
  SshConfig config;
  config.home_ = home;
  MUSTER_RETURN_IF_ERROR(Read(path, home, 0, {}, &config.lines_));
  return config;
}

absl::StatusOr<SshHostConfig> SshConfig::For(const std::string& name) const {
  SshHostConfig config;
  const std::string* proxy_command = nullptr;
  std::vector<std::string> identities;
  std::string command_place;
  for (const Line& line : lines_) {
    const bool holds = std::all_of(line.patterns.begin(), line.patterns.end(),
                                   [&](const auto& patterns) { return Matches(patterns, name); });
    if (!holds) continue;
    static const std::set<std::string> kKeywords = {"hostname",     "port",      "user",
                                                    "identityfile", "proxyjump", "proxycommand"};
    if (!kKeywords.contains(line.keyword)) continue;
    const auto words = WordsOf(line.value);
    // A ProxyCommand is looked at if it is needed.
    if (!words.ok() && line.keyword != "proxycommand") return Annotate(words.status(), line.place);
    const std::string first = !words.ok() || words->empty() ? "" : words->front();
    if (line.keyword == "hostname" && config.host_name.empty()) {
      config.host_name = absl::StrReplaceAll(first, {{"%h", name}, {"%n", name}, {"%%", "%"}});
    } else if (line.keyword == "port" && config.port == 0) {
      if (!absl::SimpleAtoi(first, &config.port) || config.port < 1 || config.port > 65535) {
        return InvalidArgument("%s: port %s is not a number from 1 to 65535", line.place, first);
      }
    } else if (line.keyword == "user" && config.user.empty()) {
      config.user = first;
    } else if (line.keyword == "identityfile" && first != "none") {
      identities.push_back(first);
    } else if (line.keyword == "proxyjump" && !config.jump && proxy_command == nullptr) {
      auto jump = ParseJumpHosts(first);
      if (!jump.ok()) return Annotate(jump.status(), line.place);
      config.jump = *std::move(jump);
    } else if (line.keyword == "proxycommand" && !config.jump && proxy_command == nullptr) {
      proxy_command = &line.value;
      command_place = line.place;
    }
  }
  if (proxy_command != nullptr && *proxy_command == "none") {
    config.jump.emplace();
  } else if (proxy_command != nullptr) {
    const auto jump = JumpHostOfProxyCommand(*proxy_command);
    if (jump.ok()) {
      config.jump = {*jump};
    } else {
      config.jump_error = command_place + ": " + std::string(jump.status().message());
    }
  }
  for (const std::string& identity : identities) {
    const std::string host = config.host_name.empty() ? name : config.host_name;
    config.identities.push_back(
        absl::StrReplaceAll(WithHome(identity, home_),
                            {{"%d", home_}, {"%h", host}, {"%n", name}, {"%r", config.user}, {"%%", "%"}}));
  }
  return config;
}

}  // namespace muster
