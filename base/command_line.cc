#include "base/command_line.h"

#include <vector>

#include "base/nearest.h"

namespace muster {

absl::Status CheckFlagValues(std::span<const std::string> arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      return InvalidArgument("%s: expected a value, found \"\"", argument.substr(0, argument.size() - 1));
    }
  }
  return absl::OkStatus();
}

std::string UnexpectedArgument(const CLI::App& app) {
  const std::vector<std::string> unexpected = app.remaining(/*recurse=*/true);
  MUSTER_CHECK(!unexpected.empty());
  const std::string& argument = unexpected.front();
  std::string text = "unexpected argument " + argument;
  if (!argument.starts_with("--")) return text;
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  std::vector<std::string> flags;  // without their dashes
  for (const CLI::Option* option : command->get_options()) {
    flags.insert(flags.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  const std::string nearest = NearestWord(argument.substr(2, argument.find('=') - 2), flags);
  return nearest.empty() ? text : text + "; did you mean '--" + nearest + "'?";
}

}  // namespace muster
