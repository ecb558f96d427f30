#include "inventory/ssh_config.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
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

absl::StatusOr<std::vector<std::string>> WordsOf(const std::string& text,
                                                 Escapes escapes = Escapes::kOfSshConfig) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<LineWord> split, SplitWords(text, escapes));
  std::vector<std::string> words;
  for (const LineWord& word : split) words.push_back(word.text);
  return words;
}

// ssh's patterns: of all bytes only '*' and '?' are special.
bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, behind = 0;  // where to take up the last star again
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++behind;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool Matches(const std::vector<std::string>& patterns, std::string_view name) {
  bool matches = false;
  for (const std::string_view pattern : patterns) {
    const bool negated = pattern.starts_with('!');
    if (!MatchesPattern(pattern.substr(negated ? 1 : 0), name)) continue;
    if (negated) return false;
    matches = true;
  }
  return matches;
}

// Those of tokens and of the environment, as ssh knows them.
struct Tokens {
  std::string home, account, host, name, user, port;
};

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

std::string LocalAccount() {
  passwd account{}, *found = nullptr;
  char strings[16384];
  (void)::getpwuid_r(::getuid(), &account, strings, sizeof strings, &found);
  return found != nullptr ? found->pw_name : "";
}

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

absl::StatusOr<Endpoint> JumpHostOfProxyCommand(const std::string& command, const std::string& user) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<std::string> words, WordsOf(command, Escapes::kOfShell));
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
  const std::string without_tokens = absl::StrReplaceAll(jump.user, {{"%%", ""}, {"%r", ""}});
  if (without_tokens.find('%') != std::string::npos || jump.address.find('%') != std::string::npos)
    return refused;
  jump.user = absl::StrReplaceAll(jump.user, {{"%%", "%"}, {"%r", user}});
  if (jump.port == 0) jump.port = ssh->port;
  return jump;
}

absl::StatusOr<std::vector<SshConfig::Criterion>> SshConfig::ParseCriteria(
    const std::string& keyword, const std::vector<std::string>& words) {
  using Kind = Criterion::Kind;
  std::vector<Criterion> criteria;
  if (keyword == "host") {
    criteria.push_back({.kind = Kind::kHostLine, .patterns = words});
    return criteria;
  }
  static const std::map<std::string, Kind> kKinds = {{"host", Kind::kHost},
                                                     {"originalhost", Kind::kOriginalHost},
                                                     {"user", Kind::kUser},
                                                     {"localuser", Kind::kLocalUser}};
  for (size_t i = 0; i < words.size(); ++i) {
    // "host a,b", "host=a,b", "!host a,b"
    std::string what = words[i], value;
    const bool is_negated = what.starts_with('!');
    if (is_negated) what.erase(0, 1);
    const size_t equals = what.find('=');
    if (equals != std::string::npos) value = what.substr(equals + 1);
    what = absl::AsciiStrToLower(what.substr(0, equals));
    if (what == "all") {
      if (i + 1 < words.size()) return InvalidArgument("`all` goes with nothing behind it, as ssh has it");
      if (is_negated) criteria.push_back({.kind = Kind::kNever});
      continue;
    }
    if (what == "final" || what == "canonical") {
      criteria.push_back(
          {.kind = what == "final" ? Kind::kFinal : Kind::kCanonical, .is_negated = is_negated});
      continue;
    }
    if (equals == std::string::npos && i + 1 == words.size()) {
      return InvalidArgument("Match %s has no value", words[i]);
    }
    if (equals == std::string::npos) value = words[++i];
    const auto kind = kKinds.find(what);
    // Of hosts ssh does not tell capitals apart there, as it does in a Host line.
    if (what == "host" || what == "originalhost") value = absl::AsciiStrToLower(value);
    criteria.push_back({.kind = kind == kKinds.end() ? Kind::kUnknown : kind->second,
                        .patterns = absl::StrSplit(value, ','),
                        .is_negated = is_negated});
  }
  return criteria;
}

absl::Status SshConfig::Read(const std::filesystem::path& path, const std::string& home, int depth,
                             std::vector<Line>* lines) {
  // What is no file ssh passes over.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (text->starts_with("\xef\xbb\xbf")) text->erase(0, 3);  // a byte order mark
  std::optional<size_t> block;                               // that is open
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(*text, '\n')) {
    const std::string place = absl::StrFormat("%s:%d", path.string(), ++number);
    if (raw.find('\0') != absl::string_view::npos) return InvalidArgument("%s: a NUL byte", place);
    const std::string line(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line.starts_with('#')) continue;
    MUSTER_RETURN_IF_ERROR(ReadLine(line, place, home, depth, &block, lines));
  }
  if (block) (*lines)[*block].end = lines->size();
  return absl::OkStatus();
}

absl::Status SshConfig::ReadLine(const std::string& line, const std::string& place, const std::string& home,
                                 int depth, std::optional<size_t>* block, std::vector<Line>* lines) {
  static const std::set<std::string> kKeywords = {"hostname",
                                                  "port",
                                                  "user",
                                                  "identityfile",
                                                  "proxyjump",
                                                  "proxycommand",
                                                  "canonicalizehostname",
                                                  "canonicaldomains",
                                                  "canonicalizemaxdots"};
  // "Keyword value", "Keyword=value", "Keyword = value"
  const size_t end = std::min(line.find_first_of(" \t="), line.size());
  const std::string keyword = absl::AsciiStrToLower(line.substr(0, end));
  std::string value(absl::StripAsciiWhitespace(absl::string_view(line).substr(end)));
  if (value.starts_with('=')) value = std::string(absl::StripLeadingAsciiWhitespace(value.substr(1)));
  if (value.empty()) return InvalidArgument("%s: %s has no value", place, line.substr(0, end));
  const bool is_block = keyword == "host" || keyword == "match";
  if (!is_block && keyword != "include") {
    if (kKeywords.contains(keyword)) lines->push_back({keyword, value, place});
    return absl::OkStatus();
  }
  const auto words = WordsOf(value);
  if (!words.ok()) return Annotate(words.status(), place);
  if (is_block) {
    auto criteria = ParseCriteria(keyword, *words);
    if (!criteria.ok()) return Annotate(criteria.status(), place);
    if (*block) (*lines)[**block].end = lines->size();
    *block = lines->size();
    lines->push_back({.place = place, .criteria = *std::move(criteria)});
    return absl::OkStatus();
  }
  if (depth == kMostIncludes) return InvalidArgument("%s: too many files include one another", place);
  for (const std::string& word : *words) {
    const std::string pattern = WithHome(word, home);
    for (const std::filesystem::path& file :
         FilesOf(pattern.starts_with('/') ? pattern : home + "/.ssh/" + pattern)) {
      MUSTER_RETURN_IF_ERROR(Read(file, home, depth + 1, lines));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SshConfig> SshConfig::Load(const std::filesystem::path& path, const std::string& home) {
  SshConfig config;
  config.home_ = home;
  config.account_ = LocalAccount();
  MUSTER_RETURN_IF_ERROR(Read(path, home, 0, &config.lines_));
  return config;
}

struct SshConfig::Search {
  const std::string& name;
  const std::string& account;
  const SshGiven& given;
  bool is_final = false;         // the second look
  std::string line_host = name;  // what Host lines are about: in the second look the name that is known then
  SshHostConfig found = {};      // identities: as they are written
  std::vector<std::string> identity_places = {};
  std::string jump, jump_place;  // "": not given, as everywhere here
  bool is_command = false;       // `jump` is a ProxyCommand
  std::string canonicalize, canonicalize_place, domains, dots;

  std::string host() const { return found.host_name.empty() ? name : found.host_name; }
  std::string user() const {
    if (!given.user.empty()) return given.user;
    return found.user.empty() ? account : found.user;
  }
  bool Canonicalizes() const { return canonicalize == "yes" || canonicalize == "always"; }
  bool WouldCompleteTheName() const;
  // Nothing: that is for ssh to know.
  std::optional<bool> Holds(const Criterion& criterion) const;
};

std::optional<bool> SshConfig::Search::Holds(const Criterion& criterion) const {
  using Kind = Criterion::Kind;
  if (criterion.kind == Kind::kUnknown) return std::nullopt;
  bool holds = false;
  if (criterion.kind == Kind::kHostLine) holds = Matches(criterion.patterns, line_host);
  if (criterion.kind == Kind::kHost) holds = Matches(criterion.patterns, absl::AsciiStrToLower(host()));
  if (criterion.kind == Kind::kOriginalHost) holds = Matches(criterion.patterns, absl::AsciiStrToLower(name));
  if (criterion.kind == Kind::kUser) holds = Matches(criterion.patterns, user());
  if (criterion.kind == Kind::kLocalUser) holds = Matches(criterion.patterns, account);
  if (criterion.kind == Kind::kFinal || criterion.kind == Kind::kCanonical) holds = is_final;
  return holds != criterion.is_negated;
}

// As ssh's resolve_canonicalize.
bool SshConfig::Search::WouldCompleteTheName() const {
  const std::string full = host();
  const bool is_direct = (jump.empty() && !given.has_jump) || absl::AsciiStrToLower(jump) == "none";
  if (!Canonicalizes() || domains.empty() || absl::AsciiStrToLower(domains) == "none") return false;
  if (!is_direct && canonicalize != "always") return false;
  int most_dots = 1;
  (void)absl::SimpleAtoi(dots, &most_dots);
  if (IsIpAddress(full) || full.find(':') != std::string::npos || full.ends_with('.')) return false;
  return std::ranges::count(full, '.') <= most_dots;
}

absl::StatusOr<SshHostConfig> SshConfig::For(const std::string& name, const SshGiven& given) const {
  Search search{.name = name, .account = account_, .given = given};
  MUSTER_RETURN_IF_ERROR(Look(&search));
  if (search.WouldCompleteTheName()) {
    return InvalidArgument(
        "%s: CanonicalizeHostname: muster does not look up what the full name of %s is; give it, as HostName "
        "or as `ssh:` in the inventory",
        search.canonicalize_place, search.host());
  }
  if (HasFinal() || search.Canonicalizes()) {
    search.line_host = absl::AsciiStrToLower(search.host());
    search.is_final = true;
    MUSTER_RETURN_IF_ERROR(Look(&search));
  }
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
    const auto jump = JumpHostOfProxyCommand(search.jump, search.user());
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
  return std::ranges::any_of(lines_, [](const Line& line) {
    return std::ranges::any_of(
        line.criteria, [](const Criterion& criterion) { return criterion.kind == Criterion::Kind::kFinal; });
  });
}

// As ssh: whether a block holds is decided where it begins.
absl::Status SshConfig::Look(Search* search) const {
  // Those that hold here, outer ones first: their ends, and whether it is certain.
  std::vector<std::pair<size_t, bool>> blocks;
  for (size_t i = 0; i < lines_.size();) {
    while (!blocks.empty() && blocks.back().first <= i) blocks.pop_back();
    bool is_certain = blocks.empty() || blocks.back().second;
    const Line& line = lines_[i++];
    if (line.is_value()) {
      MUSTER_RETURN_IF_ERROR(Take(line, is_certain, search));
      continue;
    }
    bool holds = true;
    for (const Criterion& criterion : line.criteria) {
      const std::optional<bool> one = search->Holds(criterion);
      holds = holds && one.value_or(true);
      is_certain = is_certain && one.has_value();
    }
    if (holds) {
      blocks.emplace_back(line.end, is_certain);
    } else {
      i = line.end;
    }
  }
  return absl::OkStatus();
}

absl::Status SshConfig::Take(const Line& line, bool is_certain, Search* search) const {
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
    if (search->is_final) return absl::OkStatus();  // which is for the name that has been found
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
  } else if (line.keyword == "canonicalizehostname" && search->canonicalize.empty()) {
    search->canonicalize = absl::AsciiStrToLower(first);
    search->canonicalize_place = line.place;
  } else if (line.keyword == "canonicaldomains" && search->domains.empty()) {
    search->domains = first;
  } else if (line.keyword == "canonicalizemaxdots" && search->dots.empty()) {
    search->dots = first;
  }
  return absl::OkStatus();
}

}  // namespace muster
