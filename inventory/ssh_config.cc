#include "inventory/ssh_config.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fnmatch.h>
#include <glob.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
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

// Those of tokens and of the environment, as ssh knows them.
struct Tokens {
  std::string home, account, host, name, user, port;
};

std::string LocalAccount() {
  passwd account{}, *found = nullptr;
  char strings[16384];
  (void)::getpwuid_r(::getuid(), &account, strings, sizeof strings, &found);
  return found != nullptr ? found->pw_name : "";
}

std::string LocalHost() {
  char name[HOST_NAME_MAX + 1] = {};
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

std::string WithTokens(const std::string& text, const Tokens& tokens) {
  if (text.find('%') == std::string::npos) return text;
  const std::string local_host = LocalHost();
  return absl::StrReplaceAll(text, {{"%%", "%"},
                                    {"%d", tokens.home},
                                    {"%h", tokens.host},
                                    {"%n", tokens.name},
                                    {"%r", tokens.user},
                                    {"%p", tokens.port},
                                    {"%u", tokens.account},
                                    {"%i", std::to_string(::getuid())},
                                    {"%l", local_host},
                                    {"%L", local_host.substr(0, local_host.find('.'))}});
}

// With ${NAME} of the environment.
absl::StatusOr<std::string> WithEnvironment(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find("${", at);
    const size_t end = begin == std::string::npos ? begin : text.find('}', begin);
    if (end == std::string::npos) return out + text.substr(at);
    const std::string name = text.substr(begin + 2, end - begin - 2);
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return InvalidArgument("%s is not set", name);
    out += text.substr(at, begin - at) + value;
    at = end + 1;
  }
  return out;
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
  if (absl::AsciiStrToLower(text) == "none") return jump;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    std::string host(one);
    if (host.starts_with("ssh://")) host.erase(0, 6);
    MUSTER_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(host));
    jump.push_back(std::move(endpoint));
  }
  return jump;
}

absl::StatusOr<SshArguments> ParseSshArguments(const std::vector<std::string>& words) {
  constexpr std::string_view kWithoutValue = "46AaCfGgKkMNnqsTtVvXxYy", kWithValue = "BbcDEeFIiJLlmOoPpQRSWw";
  SshArguments out;
  const auto set = [](std::string* to, const std::string& value) {
    if (to->empty()) *to = value;
  };
  const auto set_port = [&](const std::string& value) {
    int port = 0;
    if (!absl::SimpleAtoi(value, &port) || port < 1 || port > 65535) {
      return InvalidArgument("port %s is not a number from 1 to 65535", value);
    }
    if (out.port == 0) out.port = port;
    return absl::OkStatus();
  };
  const auto set_option = [&](const std::string& text) {
    // "Name value", "Name=value", "Name = value"
    const size_t end = std::min(text.find_first_of("= \t"), text.size());
    const std::string name = absl::AsciiStrToLower(text.substr(0, end));
    std::string value(absl::StripAsciiWhitespace(absl::string_view(text).substr(end)));
    if (value.starts_with('=')) value = std::string(absl::StripLeadingAsciiWhitespace(value.substr(1)));
    if (name == "port") return set_port(value);
    if (name == "hostname") return InvalidArgument("give the host another address instead of -o %s", text);
    if (name == "user") set(&out.user, value);
    if (name == "identityfile") set(&out.identity, value);
    const bool is_open = !out.jump && !out.proxy_command;
    if (name == "proxyjump" && is_open) out.jump = value;
    if (name == "proxycommand" && is_open) out.proxy_command = value;
    return absl::OkStatus();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with('-')) {
      if (!std::exchange(out.host, word).empty()) return InvalidArgument("ssh is to run a command: %s", word);
      continue;
    }
    // "-q", "-qp 22", "-p22"
    const size_t at = std::min(word.find_first_not_of(kWithoutValue, 1), word.size());
    if (at == word.size()) continue;
    const char option = word[at];
    if (kWithValue.find(option) == std::string_view::npos ||
        (at + 1 == word.size() && i + 1 == words.size())) {
      return InvalidArgument("%s is no option of ssh, or lacks its value", word);
    }
    const std::string value = at + 1 < word.size() ? word.substr(at + 1) : words[++i];
    if (option == 'F') return InvalidArgument("muster reads ~/.ssh/config, and no other file (-F)");
    if (option == 'W') out.forward = value;
    if (option == 'l') set(&out.user, value);
    if (option == 'i') set(&out.identity, value);
    if (option == 'J' && !out.jump && !out.proxy_command) out.jump = value;
    if (option == 'p') MUSTER_RETURN_IF_ERROR(set_port(value));
    if (option == 'o') MUSTER_RETURN_IF_ERROR(set_option(value));
  }
  return out;
}

absl::StatusOr<Endpoint> JumpHostOfProxyCommand(const std::string& command) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<std::string> words, WordsOf(command));
  const absl::Status refused =
      InvalidArgument("muster runs no ProxyCommand; name the jump host: ProxyJump [USER@]HOST[:PORT]");
  if (words.empty() || (words[0] != "ssh" && !words[0].ends_with("/ssh"))) return refused;
  words.erase(words.begin());
  const absl::StatusOr<SshArguments> ssh = ParseSshArguments(words);
  if (!ssh.ok() || ssh->host.empty() || (ssh->forward != "%h:%p" && ssh->forward != "[%h]:%p"))
    return refused;
  if (ssh->jump || ssh->proxy_command || !ssh->identity.empty()) return refused;
  MUSTER_ASSIGN_OR_RETURN(Endpoint jump, ParseEndpoint(ssh->host));
  if (jump.user.empty()) jump.user = ssh->user;
  if (jump.port == 0) jump.port = ssh->port;
  return jump;
}

absl::StatusOr<SshConfig::Block> SshConfig::ParseBlock(const std::string& keyword,
                                                       const std::vector<std::string>& words) {
  using Kind = Criterion::Kind;
  if (keyword == "host") return Block{{.kind = Kind::kOriginalHost, .patterns = words}};
  static const std::map<std::string, Kind> kKinds = {{"host", Kind::kHost},
                                                     {"originalhost", Kind::kOriginalHost},
                                                     {"user", Kind::kUser},
                                                     {"localuser", Kind::kLocalUser}};
  Block block;
  for (size_t i = 0; i < words.size(); ++i) {
    // "host a,b", "host=a,b", "!host a,b"
    std::string what = words[i], value;
    const bool is_negated = what.starts_with('!');
    if (is_negated) what.erase(0, 1);
    const size_t equals = what.find('=');
    if (equals != std::string::npos) value = what.substr(equals + 1);
    what = absl::AsciiStrToLower(what.substr(0, equals));
    if (what == "all") continue;
    if (what == "final" || what == "canonical") {
      block.push_back({.kind = what == "final" ? Kind::kFinal : Kind::kNever, .is_negated = is_negated});
      continue;
    }
    if (equals == std::string::npos && i + 1 == words.size()) {
      return InvalidArgument("Match %s has no value", words[i]);
    }
    if (equals == std::string::npos) value = words[++i];
    const auto kind = kKinds.find(what);
    block.push_back({.kind = kind == kKinds.end() ? Kind::kUnknown : kind->second,
                     .patterns = absl::StrSplit(value, ','),
                     .is_negated = is_negated});
  }
  return block;
}

absl::Status SshConfig::Read(const std::filesystem::path& path, const std::string& home, int depth,
                             const std::vector<Block>& outer, std::vector<Line>* lines) {
  // What is no file ssh passes over.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (text->starts_with("\xef\xbb\xbf")) text->erase(0, 3);  // a byte order mark
  std::vector<Block> blocks = outer;
  blocks.emplace_back();
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
      auto block = ParseBlock(keyword, *words);
      if (!block.ok()) return Annotate(block.status(), place);
      blocks.back() = *std::move(block);
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
  config.account_ = LocalAccount();
  MUSTER_RETURN_IF_ERROR(Read(path, home, 0, {}, &config.lines_));
  return config;
}

struct SshConfig::Search {
  const std::string& name;
  const std::string& account;
  const SshGiven& given;
  SshHostConfig found = {};  // identities: as they are written
  std::vector<std::string> identity_places = {};
  std::string jump, jump_place;  // "": not given, as everywhere here
  bool is_command = false;       // `jump` is a ProxyCommand

  std::string host() const { return found.host_name.empty() ? name : found.host_name; }
  std::string user() const {
    if (!given.user.empty()) return given.user;
    return found.user.empty() ? account : found.user;
  }
  // Nothing: that is for ssh to know.
  std::optional<bool> Holds(const Criterion& criterion, bool is_final) const;
};

std::optional<bool> SshConfig::Search::Holds(const Criterion& criterion, bool is_final) const {
  using Kind = Criterion::Kind;
  if (criterion.kind == Kind::kUnknown) return std::nullopt;
  bool holds = false;
  if (criterion.kind == Kind::kHost) holds = Matches(criterion.patterns, host());
  if (criterion.kind == Kind::kOriginalHost) holds = Matches(criterion.patterns, name);
  if (criterion.kind == Kind::kUser) holds = Matches(criterion.patterns, user());
  if (criterion.kind == Kind::kLocalUser) holds = Matches(criterion.patterns, account);
  if (criterion.kind == Kind::kFinal) holds = is_final;
  return holds != criterion.is_negated;
}

absl::StatusOr<SshHostConfig> SshConfig::For(const std::string& name, const SshGiven& given) const {
  Search search{.name = name, .account = account_, .given = given};
  MUSTER_RETURN_IF_ERROR(Look(/*is_final=*/false, &search));
  if (HasFinal()) MUSTER_RETURN_IF_ERROR(Look(/*is_final=*/true, &search));
  SshHostConfig& found = search.found;
  const int port = given.port != 0 ? given.port : found.port;
  const Tokens tokens{.home = home_,
                      .account = account_,
                      .host = search.host(),
                      .name = name,
                      .user = search.user(),
                      .port = std::to_string(port == 0 ? kDefaultSshPort : port)};
  if (search.is_command && absl::AsciiStrToLower(search.jump) == "none") {
    found.jump.emplace();
  } else if (search.is_command) {
    const auto jump = JumpHostOfProxyCommand(search.jump);
    if (jump.ok()) {
      found.jump = {*jump};
    } else {
      found.jump_error = search.jump_place + ": " + std::string(jump.status().message());
    }
  } else if (!search.jump.empty()) {
    auto jump = ParseJumpHosts(WithTokens(search.jump, tokens));
    if (!jump.ok()) return Annotate(jump.status(), search.jump_place);
    found.jump = *std::move(jump);
  }
  for (size_t i = 0; i < found.identities.size(); ++i) {
    std::string& identity = found.identities[i];
    const auto path = WithEnvironment(WithTokens(WithHome(identity, home_), tokens));
    if (!path.ok()) return Annotate(path.status(), search.identity_places[i]);
    identity = *path;
  }
  return found;
}

bool SshConfig::HasFinal() const {
  for (const Line& line : lines_) {
    for (const Block& block : line.blocks) {
      for (const Criterion& criterion : block) {
        if (criterion.kind == Criterion::Kind::kFinal) return true;
      }
    }
  }
  return false;
}

absl::Status SshConfig::Look(bool is_final, Search* search) const {
  for (const Line& line : lines_) {
    bool holds = true, is_certain = true;
    for (const Block& block : line.blocks) {
      for (const Criterion& criterion : block) {
        const std::optional<bool> one = search->Holds(criterion, is_final);
        holds = holds && one.value_or(true);
        is_certain = is_certain && one.has_value();
      }
    }
    if (holds) MUSTER_RETURN_IF_ERROR(Take(line, is_certain, search));
  }
  return absl::OkStatus();
}

absl::Status SshConfig::Take(const Line& line, bool is_certain, Search* search) const {
  static const std::set<std::string> kKeywords = {"hostname",     "port",      "user",
                                                  "identityfile", "proxyjump", "proxycommand"};
  if (!kKeywords.contains(line.keyword)) return absl::OkStatus();
  SshHostConfig& found = search->found;
  const bool is_way = line.keyword == "proxyjump" || line.keyword == "proxycommand";
  const bool is_open = search->jump.empty() && found.unknown_jump.empty();
  if (!is_certain) {
    if (is_way && is_open) {
      found.unknown_jump = line.place +
                           ": whether its Match block holds is for ssh to know; say in the inventory "
                           "how the host is reached: `jump: HOST`, or `jump: none`";
    }
    return absl::OkStatus();
  }
  const auto words = WordsOf(line.value);
  // A ProxyCommand is looked at if it is needed.
  if (!words.ok() && line.keyword != "proxycommand") return Annotate(words.status(), line.place);
  const std::string first = !words.ok() || words->empty() ? "" : words->front();
  if (line.keyword == "hostname" && found.host_name.empty()) {
    found.host_name = absl::StrReplaceAll(first, {{"%h", search->name}, {"%n", search->name}, {"%%", "%"}});
  } else if (line.keyword == "port" && found.port == 0) {
    if (!absl::SimpleAtoi(first, &found.port) || found.port < 1 || found.port > 65535) {
      return InvalidArgument("%s: port %s is not a number from 1 to 65535", line.place, first);
    }
  } else if (line.keyword == "user" && found.user.empty()) {
    found.user = first;
  } else if (line.keyword == "identityfile" &&
             std::ranges::find(found.identities, first) == found.identities.end()) {
    found.identities.push_back(absl::AsciiStrToLower(first) == "none" ? "none" : first);
    search->identity_places.push_back(line.place);
  } else if (is_way && is_open) {
    search->is_command = line.keyword == "proxycommand";
    search->jump = search->is_command ? line.value : first;
    search->jump_place = line.place;
  }
  return absl::OkStatus();
}

}  // namespace muster
