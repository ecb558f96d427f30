#include "launcher/discovery.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_split.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "inventory/yaml_tree.h"

namespace muster {

absl::StatusOr<std::map<std::string, Endpoint>> ParseDiscovered(const std::string& text) {
  std::map<std::string, Endpoint> places;
  std::map<std::string, int> line_numbers;  // by name
  std::istringstream lines(text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string name, address, more;
    if (!(words >> name) || name.starts_with('#')) continue;
    if (!(words >> address) || (words >> more && !more.starts_with('#')))
      return InvalidArgument("line %d of what it printed is not `NAME ADDRESS`: %s", number, Quoted(line));
    const auto endpoint = ParseEndpoint(address);
    if (!endpoint.ok())
      return Annotate(endpoint.status(), absl::StrFormat("line %d of what it printed", number));
    if (!endpoint->user.empty()) {
      return InvalidArgument("line %d of what it printed has a user: give the inventory `user:` instead: %s",
                             number, Quoted(line));
    }
    const auto [known, is_new] = places.emplace(name, *endpoint);
    // Else the host would go back and forth as the order of the lines does.
    if (!is_new && known->second != *endpoint) {
      return InvalidArgument("lines %d and %d of what it printed have %s at different places",
                             line_numbers[name], number, Quoted(name));
    }
    line_numbers.emplace(name, number);
  }
  return places;
}

absl::StatusOr<std::map<std::string, Endpoint>> Discover(const Discovery& discovery,
                                                         const std::string& inventory_path,
                                                         Duration timeout) {
  const auto result =
      RunCommand({.argv = discovery.command,
                  .working_directory = std::filesystem::absolute(inventory_path).parent_path().string(),
                  .new_session = true},  // so that all that it has started ends with it
                 Now() + timeout);
  const std::string command = absl::StrFormat("%s: the discovery command `%s`", discovery.position.ToString(),
                                              discovery.command.back());
  absl::Status status = result.status();
  if (absl::IsDeadlineExceeded(status))
    return FailedPrecondition("%s did not end within %.0f s", command, ToSeconds(timeout));
  if (status.ok() && result->exit_code != 0) {
    const std::string said = absl::Utf8SafeCEscape(absl::StripAsciiWhitespace(result->stderr_text));
    status = Unavailable("it ended with exit code %d%s%s", result->exit_code, said.empty() ? "" : ": ", said);
  }
  auto places = status.ok() ? ParseDiscovered(result->stdout_text) : status;
  if (places.ok()) return places;
  return FailedPrecondition("%s failed: %s", command, std::string(places.status().message()));
}

std::vector<std::string> FilesOf(const Discovery& discovery, const std::string& inventory_path) {
  const std::filesystem::path inventory = std::filesystem::absolute(inventory_path);
  std::set<std::string> files;
  for (const std::string& argument : discovery.command) {
    const std::vector<std::string> words = absl::StrSplit(argument, absl::ByAnyChar(" \t\n\"'`=;|&()<>"));
    for (const std::string& word : words) {
      const std::filesystem::path path = std::filesystem::path(word).lexically_normal();
      if (!ValidateRelativePath(path.string()).ok() || path == inventory.filename()) continue;
      std::error_code error;
      if (std::filesystem::is_regular_file(inventory.parent_path() / path, error))
        files.insert(path.string());
    }
  }
  return {files.begin(), files.end()};
}

absl::StatusOr<Inventory> ReadInventoryAndDiscover(const std::string& path, const std::string& home) {
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, ReadInventory(path, home));
  if (!inventory.discover) return inventory;
  MUSTER_ASSIGN_OR_RETURN(const auto found, Discover(*inventory.discover, path));
  MUSTER_ASSIGN_OR_RETURN(inventory, ReadInventory(path, home, found));
  if (!inventory.hosts.empty()) return inventory;
  return InvalidArgument("%s has no hosts, and its discovery command names none", path);
}

}  // namespace muster
