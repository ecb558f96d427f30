#include "launcher/completion.h"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "launcher/bench/results_view.h"

namespace muster {
namespace {

// Where the last word stands.
struct Place {
  const CLI::App* command = nullptr;
  const CLI::Option* option = nullptr;              // of which it may be a value
  bool is_value = false;                            // of the option, whatever it begins with
  bool is_behind_dashes = false;                    // no word is an option any more
  std::map<const CLI::Option*, std::string> given;  // options of the command, with their values
  std::vector<std::string> arguments;               // of the command
};

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool TakesMore(const CLI::Option& option) {
  return option.get_items_expected_max() > 1 && option.get_allow_extra_args();
}

bool IsHidden(const auto& option_or_command) { return option_or_command.get_group().empty(); }

// Null: it is none.
const CLI::App* SubcommandOf(const CLI::App& command, const std::string& word) {
  for (const CLI::App* subcommand : command.get_subcommands({})) {
    if (!IsHidden(*subcommand) && subcommand->check_name(word)) return subcommand;
  }
  return nullptr;
}

// `--name`, `--name=value`
void ReadLongOption(const std::string& word, Place* place) {
  const size_t equals = word.find('=');
  const CLI::Option* option = place->command->get_option_no_throw(word.substr(0, equals));
  if (option == nullptr) return;
  place->given[option] = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (!TakesValue(*option) || (equals != std::string::npos && !TakesMore(*option))) return;
  place->option = option;
  place->is_value = equals == std::string::npos;
}

// `-f`, `-dq`, `-ojson`, `-o`
void ReadShortOptions(const std::string& word, Place* place) {
  for (size_t i = 1; i < word.size(); ++i) {
    const CLI::Option* option = place->command->get_option_no_throw(std::string("-") + word[i]);
    if (option == nullptr) return;
    place->given[option] = word.substr(i + 1);
    if (!TakesValue(*option)) continue;
    place->is_value = i + 1 == word.size();
    if (place->is_value) place->option = option;
    return;
  }
}

void ReadWord(const std::string& word, Place* place) {
  const CLI::Option* option = std::exchange(place->option, nullptr);
  const bool is_option = word.size() > 1 && word[0] == '-' && !place->is_behind_dashes;
  if (option != nullptr && (std::exchange(place->is_value, false) || !is_option)) {
    place->given[option] = word;
    if (TakesMore(*option)) place->option = option;
  } else if (is_option && word == "--") {
    place->is_behind_dashes = true;
  } else if (is_option && word[1] == '-') {
    ReadLongOption(word, place);
  } else if (is_option) {
    ReadShortOptions(word, place);
  } else {
    const CLI::App* subcommand = place->arguments.empty() ? SubcommandOf(*place->command, word) : nullptr;
    if (subcommand != nullptr) *place = Place{.command = subcommand};
    if (subcommand == nullptr) place->arguments.push_back(word);
  }
}

// Of the word behind those that are there; null: there is none.
const CLI::Option* NextArgument(const Place& place) {
  const auto arguments =
      place.command->get_options([](const CLI::Option* option) { return option->get_positional(); });
  size_t count = place.arguments.size();
  for (const CLI::Option* argument : arguments) {
    const auto takes = static_cast<size_t>(argument->get_items_expected_max());
    if (count < takes) return argument;
    count -= takes;
  }
  return nullptr;
}

// "JOB", "FILE", "{text,json}": several where it may be either. Behind CLI11's own come those of its checks.
std::vector<std::string> TypesOf(const CLI::Option& option) {
  constexpr char kAnyText[] = "TEXT";
  std::string type = option.get_type_name();
  if (option.get_positional() && type == kAnyText) type = option.get_name(/*positional=*/true);
  std::vector<std::string> types = absl::StrSplit(type, absl::ByAnyChar(":|"));
  if (types.size() > 1) std::erase(types, kAnyText);
  return types;
}

class Completer {
 public:
  Completer(const Place& place, std::string word, const CompletionSource& source)
      : place_(place), word_(std::move(word)), source_(source) {}

  Completion Complete() {
    const bool is_option = word_.starts_with('-') && !place_.is_behind_dashes;
    if (place_.is_value || (place_.option != nullptr && !is_option)) {
      AddValues(*place_.option, "");
    } else if (is_option && word_.find('=') != std::string::npos) {
      const size_t equals = word_.find('=');
      const CLI::Option* option = place_.command->get_option_no_throw(word_.substr(0, equals));
      if (option != nullptr && TakesValue(*option)) AddValues(*option, word_.substr(0, equals + 1));
    } else if (is_option) {
      AddOptions();
    } else if (const CLI::Option* argument = NextArgument(place_); argument != nullptr) {
      AddValues(*argument, "");
    } else if (place_.arguments.empty()) {
      AddSubcommands();
    }
    return std::move(completion_);
  }

 private:
  void Add(Candidate candidate) {
    if (candidate.word.starts_with(word_)) completion_.candidates.push_back(std::move(candidate));
  }

  void AddSubcommands() {
    for (const CLI::App* command : place_.command->get_subcommands({})) {
      if (!IsHidden(*command)) Add({command->get_name(), command->get_description()});
    }
  }

  void AddOptions() {
    for (const CLI::Option* option : place_.command->get_options()) {
      const bool is_done = place_.given.contains(option) && option->get_items_expected_max() <= 1;
      if (IsHidden(*option) || option->get_positional() || is_done) continue;
      for (const std::string& name : option->get_lnames()) Add({"--" + name, option->get_description()});
      if (!option->get_lnames().empty()) continue;
      for (const std::string& name : option->get_snames()) Add({"-" + name, option->get_description()});
    }
  }

  // Behind `before`, which is not part of the value.
  void AddValues(const CLI::Option& option, std::string before) {
    std::vector<std::string> others;  // values beside it
    if (option.get_positional()) others = place_.arguments;
    if (const size_t end =
            option.get_delimiter() == '\0' ? std::string::npos : word_.rfind(option.get_delimiter());
        end != std::string::npos && end >= before.size()) {
      others = absl::StrSplit(word_.substr(before.size(), end - before.size()), option.get_delimiter());
      before = word_.substr(0, end + 1);
    }
    for (const std::string& type : TypesOf(option)) {
      if (type == "FILE" || type == "TEXT") completion_.paths = Completion::Paths::kFiles;
      if (type == "DIR") completion_.paths = Completion::Paths::kFolders;
      for (Candidate& value : ValuesOf(type)) {
        if (std::ranges::find(others, value.word) != others.end()) continue;
        Add({before + value.word, std::move(value.description)});
      }
    }
  }

  std::vector<Candidate> ValuesOf(std::string_view type) const {
    if (type == "JOB") return source_.Jobs();
    if (type == "POOL") return source_.Pools();
    if (type == "TASK") return source_.Tasks(place_.arguments.empty() ? "" : place_.arguments[0]);
    if (type == "HOST") return source_.Hosts(Inventory());
    std::vector<Candidate> values;
    if (type.starts_with('{') && type.ends_with('}')) {
      for (const auto word : absl::StrSplit(std::string(type.substr(1, type.size() - 2)), ','))
        values.push_back({std::string(word), ""});
    }
    return values;
  }

  std::string Inventory() const {
    const auto found = place_.given.find(place_.command->get_option_no_throw("--inventory"));
    return found == place_.given.end() ? "" : found->second;
  }

  const Place& place_;
  const std::string word_;
  const CompletionSource& source_;
  Completion completion_;
};

bool IsBreak(const std::string& part) {
  return !part.empty() && part.find_first_not_of("=:") == std::string::npos;
}

// 'a b', "a b" and a\ b are one word.
std::string Unquoted(const std::string& typed) {
  std::string word;
  char quote = '\0';
  for (size_t i = 0; i < typed.size(); ++i) {
    const char c = typed[i];
    if (c == '\\' && quote != '\'' && i + 1 < typed.size()) {
      word += typed[++i];
    } else if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      word += c;
    }
  }
  return word;
}

std::string EscapedForZsh(const std::string& word) {
  std::string escaped;
  for (const char c : word) {
    if (c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string LineFor(Shell shell, const std::string& word, const std::string& description) {
  switch (shell) {
    case Shell::kBash:
      return word;
    case Shell::kZsh:
      return EscapedForZsh(word) + (description.empty() ? "" : ":" + description);
    case Shell::kFish:
      return word + (description.empty() ? "" : "\t" + description);
  }
  return "";
}

}  // namespace

Completion Complete(const CLI::App& app, std::span<const std::string> words, const CompletionSource& source) {
  Place place{.command = &app};
  if (words.empty()) return Completer(place, "", source).Complete();
  for (const std::string& word : words.first(words.size() - 1)) ReadWord(word, &place);
  return Completer(place, words.back(), source).Complete();
}

absl::StatusOr<Shell> ParseShell(const std::string& name) {
  const auto found = std::ranges::find(kShellNames, name);
  if (found == std::end(kShellNames))
    return InvalidArgument("there is no completion for the shell '%s'", name);
  return static_cast<Shell>(found - std::begin(kShellNames));
}

BashWords JoinBashWords(std::span<const std::string> parts) {
  BashWords joined;
  bool is_behind_break = false;
  for (const std::string& part : parts) {
    const bool is_break = IsBreak(part);
    if ((is_break || is_behind_break) && !joined.words.empty()) {
      joined.words.back() += part;
    } else {
      joined.words.push_back(part);
    }
    is_behind_break = is_break;
  }
  if (parts.empty()) return joined;
  joined.kept = joined.words.back().size() - (is_behind_break ? 0 : parts.back().size());
  for (std::string& word : std::span(joined.words).first(joined.words.size() - 1)) word = Unquoted(word);
  return joined;
}

std::string CompletionAnswer(Shell shell, const Completion& completion, size_t kept) {
  constexpr const char* kPaths[] = {"none", "files", "folders"};
  std::string answer = std::string(kPaths[static_cast<size_t>(completion.paths)]) + "\n";
  for (const Candidate& candidate : completion.candidates) {
    const std::string word = bench::OneLine(candidate.word);
    if (word.size() < kept) continue;
    answer += LineFor(shell, word.substr(kept), bench::OneLine(candidate.description)) + "\n";
  }
  return answer;
}

}  // namespace muster
