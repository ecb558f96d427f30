#include "launcher/transport/shell_quote.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process.h"

namespace muster {
namespace {

using std::chrono::seconds;

std::string Printable() {
  std::string all;
  for (char c = 1; c < 127; ++c) {
    if (c != '\n' && c != '\r') all += c;
  }
  return all;
}

const std::vector<std::string>& AwkwardWords() {
  static const std::vector<std::string> words = {
      "",     "plain", "two words", "'",   "''",        "it's",         "\\",   "a\\",
      "\\'",  "'\\",   "!",         "!!",  "a!b",       "$HOME",        "`id`", "$(id)",
      "~",    "*",     "a\"b",      "\t",  "-n",        "#x",           "%s",   "{a,b}",
      "^x^y", "a;b",   "&& x|y",    "=ls", "\\\\\\'!'", "\xc3\xa4\xff", ">",    Printable()};
  return words;
}

CommandResult RunShell(const std::string& shell, const std::string& line) {
  SpawnOptions options{.argv = {shell, "-c", line}};
  auto result = RunCommand(options, Now() + seconds(30));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(CommandResult{.exit_code = -1});
}

class QuotingIn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto found = RunCommand({.argv = {GetParam(), "-c", "exit 0"}}, Now() + seconds(30));
    if (!found.ok()) GTEST_SKIP() << GetParam() << " is not installed";
  }
};

TEST_P(QuotingIn, GivesEveryWordBack) {
  for (const std::string& word : AwkwardWords()) {
    // csh and fish have no printf built in that is alike, so the program does it.
    const CommandResult result = RunShell(GetParam(), "/usr/bin/printf %s " + QuoteWord(word));
    EXPECT_EQ(result.exit_code, 0) << word << ": " << result.stderr_text;
    EXPECT_EQ(result.stdout_text, word);
  }
}

TEST_P(QuotingIn, RunsShSyntaxWhateverTheLoginShellIs) {
  for (const std::string& word : AwkwardWords()) {
    const std::string command =
        "x=" + QuoteWord(word) + "; if [ -n \"$x\" ]; then printf %s \"$x\"; fi; (exit 7)";
    const CommandResult result = RunShell(GetParam(), ForAnyLoginShell(command));
    EXPECT_EQ(result.exit_code, 7) << word << ": " << result.stderr_text;
    EXPECT_EQ(result.stdout_text, word);
  }
}

INSTANTIATE_TEST_SUITE_P(Shells, QuotingIn,
                         testing::Values("sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
