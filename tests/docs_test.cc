// What the pages for users say is there: every link leads somewhere, every flag and command that they name is
// one of the programs', and every command has its line.
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/checkout.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  const auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::vector<fs::path> PagesOf(const fs::path& folder) {
  std::vector<fs::path> pages;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  return pages;
}

// Those of users and of developers.
std::vector<fs::path> AllPages() {
  std::vector<fs::path> pages;
  for (const char* folder : {"", "docs", "bench"}) {
    for (fs::path& page : PagesOf(SourcePath(folder))) pages.push_back(std::move(page));
  }
  return pages;
}

std::vector<fs::path> UserPages() {
  std::vector<fs::path> pages = {SourcePath("README.md")};
  for (const char* name : {"hosts", "jobs", "commands", "failures", "bench", "trainer", "kubernetes"})
    pages.push_back(SourcePath(std::string("docs/") + name + ".md"));
  return pages;
}

// Every match of the first group of `pattern`.
std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    found.push_back((*match)[1]);
  return found;
}

// As GitHub makes them of headings: lower case, spaces to hyphens, letters, digits and underscores kept.
std::set<std::string> Anchors(const std::string& page) {
  std::set<std::string> anchors;
  for (const std::string& heading : Matches(page, "^#+ (.*)$")) {
    std::string anchor;
    for (const char c : heading) {
      if (c == ' ' || c == '-') anchor += '-';
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    anchors.insert(anchor);
  }
  return anchors;
}

std::string Help(std::vector<std::string> command) {
  command[0] = BuildPath("bin/" + command[0]);
  command.push_back("--help");
  const auto help = RunCommand({.argv = command}, Now() + std::chrono::seconds(60));
  EXPECT_TRUE(help.ok()) << help.status();
  return help.ok() ? help->stdout_text : "";
}

std::vector<std::string> Subcommands(const std::string& help) {
  const size_t list = help.find("Subcommands:");
  return list == std::string::npos ? std::vector<std::string>() : Matches(help.substr(list), "^  ([a-z]+)");
}

// Of muster's commands, by their names: what --help says.
std::vector<std::pair<std::string, std::string>> Commands() {
  std::vector<std::pair<std::string, std::string>> commands;
  for (const std::string& name : Subcommands(Help({"muster"})))
    commands.emplace_back(name, Help({"muster", name}));
  return commands;
}

// All that the pages for users name by this pattern is one of `known`, and they name some.
void ExpectKnown(const std::string& pattern, const std::set<std::string>& known) {
  int named = 0;
  for (const fs::path& page : UserPages()) {
    for (const std::string& name : Matches(Read(page), pattern)) {
      ++named;
      EXPECT_THAT(known, ::testing::Contains(name)) << page;
    }
  }
  EXPECT_GT(named, 20);
}

TEST(Docs, EveryLinkLeadsSomewhere) {
  int links = 0;
  for (const fs::path& page : AllPages()) {
    for (const std::string& link : Matches(Read(page), R"(\]\(([^)\s]+)\))")) {
      if (link.starts_with("http")) continue;
      ++links;
      const std::vector<std::string> parts = absl::StrSplit(link, '#');
      const fs::path target = parts[0].empty() ? page : page.parent_path() / parts[0];
      ASSERT_TRUE(fs::exists(target)) << page << " links to " << link;
      if (parts.size() > 1) {
        EXPECT_THAT(Anchors(Read(target)), ::testing::Contains(parts[1])) << page << " links to " << link;
      }
    }
  }
  EXPECT_GT(links, 20);
}

TEST(Docs, EveryFlagIsOneOfAProgram) {
  std::string known = Help({"muster-trainer"});
  for (const auto& [name, help] : Commands()) {
    known += help;
    for (const std::string& inner : Subcommands(help)) known += Help({"muster", name, inner});
  }
  std::set<std::string> flags = {
      "--keep",            // scripts/demo.sh
      "--copy",            // clush
      "--logdir",          // tensorboard
      "--for",             // kubectl
      "--field-selector",  // kubectl
  };
  for (const std::string& flag : Matches(known, "(--[a-z][a-z0-9_-]*)")) flags.insert(flag);
  ExpectKnown("[^-a-z](--[a-z][a-z0-9_-]*)", flags);
}

TEST(Docs, EveryCommandIsInThere) {
  const std::string page = Read(SourcePath("docs/commands.md"));
  const auto commands = Commands();
  EXPECT_GT(commands.size(), 10u);
  for (const auto& [name, help] : commands) EXPECT_THAT(page, ::testing::ContainsRegex("`" + name + "[` ]"));
}

TEST(Docs, EveryCommandThatIsNamedExists) {
  std::set<std::string> names;
  for (const auto& [name, help] : Commands()) names.insert(name);
  ExpectKnown("(?:`|    |bin/)muster ([a-z]+)", names);
}

}  // namespace
}  // namespace muster
