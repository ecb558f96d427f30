// What is typed in real shells, with Tab behind it, becomes what it was to become. What is offered where is
// launcher/completion_test's matter.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "tests/support/eventually.h"
#include "tests/support/local_muster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr char kPrompt[] = "READY> ";

// At a terminal.
class TypingShell {
 public:
  TypingShell(LocalMuster& muster, const std::string& command) : screen_(muster.Path("screen")) {
    const std::string keys = muster.Path("keys");
    EXPECT_EQ(::mkfifo(keys.c_str(), 0600), 0);
    keys_.reset(::open(keys.c_str(), O_RDWR | O_CLOEXEC));
    const UniqueFd output(::open(screen_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    std::vector<std::string> environment = muster.Environment();
    for (const char* variable : {"TERM=dumb", "COLUMNS=200", "LINES=50"}) environment.emplace_back(variable);
    environment.push_back("ZDOTDIR=" + muster.Path(""));
    auto process = Process::Spawn({.argv = {"script", "-qefc", command, "/dev/null"},
                                   .environment = environment,
                                   .working_directory = muster.Path(""),
                                   .stdin_fd = keys_.get(),
                                   .stdout_fd = output.get(),
                                   .stderr_fd = output.get(),
                                   .new_session = true});
    EXPECT_TRUE(process.ok()) << process.status();
    if (process.ok()) process_ = *std::move(process);
  }

  /// What becomes of the line, if Tab is pressed behind it: its words, as the shell has them, parted by `|`.
  std::string Completed(const std::string& line) {
    constexpr char kToBegin[] = "\x01", kToEnd[] = "\x05", kAnswerEnd[] = "|.|";
    if (!WaitFor(kPrompt)) return "no prompt";
    const std::string keys = line + "\t" + kToBegin + "printf '%s|' GOT " + kToEnd + " .\n";
    if (::write(keys_.get(), keys.data(), keys.size()) < 0) return "nothing can be typed";
    if (!WaitFor("GOT|")) return "no answer";
    const size_t begin = read_;
    if (!WaitFor(kAnswerEnd)) return "no end of it";
    return Screen().substr(begin, read_ - std::strlen(kAnswerEnd) - begin);
  }

  std::string Screen() const { return ReadFile(screen_).value_or(""); }

 private:
  // What comes behind it is yet to be read.
  bool WaitFor(const std::string& text) {
    return Eventually([&] {
      const std::string screen = Screen();
      const size_t found = screen.find(text, read_);
      if (found != std::string::npos) read_ = found + text.size();
      return found != std::string::npos;
    });
  }

  const std::string screen_;
  size_t read_ = 0;
  UniqueFd keys_;
  std::optional<Process> process_;
};

class CompletionCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDirectories(muster_.Path("home")).ok());
    muster_.AddJob(LocalMuster::SucceededJob("mnist-aaaaaa", "mnist"));
    muster_.Write("inventory.yaml", "hosts:\n  gpu-1: {labels: [gpu]}\n  ps-1: {}\n");
    muster_.Write("job file.yaml", "");
    muster_.Write("other hosts.yaml", "hosts:\n  other: {}\n");
    muster_.Write("some folder/result.json", "");
    muster_.Write("some file", "");
  }
  bool IsInstalled(const std::string& shell) {
    return muster_.Run({"sh", "-c", "command -v " + shell}).exit_code == 0;
  }
  std::string Script(const std::string& shell) {
    const CommandResult result = muster_.Muster({"completion", shell});
    EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
    return result.stdout_text;
  }
  // What every shell does.
  void ExpectCompletes(TypingShell& shell) {
    muster_.AddJob(LocalMuster::SucceededJob("inventories-aaaaaa", "inventories"));
    const std::pair<std::string, std::string> lines[] = {
        {"muster sho", "muster|show"},
        {"muster show --met", "muster|show|--metrics"},
        {"muster show -o j", "muster|show|-o|json"},
        {"muster show --output=j", "muster|show|--output=json"},
        {"muster stop mnist-", "muster|stop|mnist-aaaaaa"},
        {"muster logs mnist w", "muster|logs|mnist|worker:0"},
        {"muster logs mnist worker:", "muster|logs|mnist|worker:0"},
        {"muster exec --hosts ps-1,g", "muster|exec|--hosts|ps-1,gpu-1"},
        {"muster run -d --on p", "muster|run|-d|--on|ps-1"},
        {"muster run -d -i 'other hosts.yaml' --on o", "muster|run|-d|-i|other hosts.yaml|--on|other"},
        {"muster run -d -i other\\ hosts.yaml --on o", "muster|run|-d|-i|other hosts.yaml|--on|other"},
        {"muster run jo", "muster|run|job file.yaml"},
        {"muster run --known-hosts=inv", "muster|run|--known-hosts=inventory.yaml"},
        {"muster compare mnist-", "muster|compare|mnist-aaaaaa"},
        {"muster compare jo", "muster|compare|job file.yaml"},
        {"muster compare inv", "muster|compare|inventor"},  // a job's name or a file's
        {"muster run --timeout inv", "muster|run|--timeout|inv"},
        {"muster exec -- inv", "muster|exec|--|inv"},
    };
    for (const auto& [line, expected] : lines) {
      ASSERT_EQ(shell.Completed(line), expected) << line << "\n" << shell.Screen();
    }
    EXPECT_THAT(shell.Completed("muster bench --folder so"),
                ::testing::MatchesRegex("muster\\|bench\\|--folder\\|some folder/?"));
  }

  LocalMuster muster_;
};

TEST_F(CompletionCommand, InBash) {
  muster_.Write("rc", "PS1='" + std::string(kPrompt) +
                          "'; bind 'set enable-bracketed-paste off'; source <(muster completion bash)\n");
  TypingShell bash(muster_, "bash --noprofile --rcfile rc -i");
  ExpectCompletes(bash);
}

TEST_F(CompletionCommand, InZsh) {
  if (!IsInstalled("zsh")) GTEST_SKIP() << "zsh is not installed";
  muster_.Write(".zshrc",
                "PS1='" + std::string(kPrompt) +
                    "'; unset zle_bracketed_paste; unsetopt PROMPT_SP; source <(muster completion zsh)\n");
  TypingShell zsh(muster_, "zsh -d -i");
  ExpectCompletes(zsh);
}

TEST_F(CompletionCommand, InFish) {
  if (!IsInstalled("fish")) GTEST_SKIP() << "fish is not installed";
  muster_.Write("muster.fish", Script("fish"));
  const auto completed = [&](const std::string& line) {
    const CommandResult result =
        muster_.Run({"fish", "--no-config", "-c", "source muster.fish; complete -C '" + line + "'"});
    EXPECT_EQ(result.stderr_text, "") << line;
    return result.stdout_text;
  };
  EXPECT_EQ(completed("muster sho"), "show\tThe hosts and tasks of a job\n");
  EXPECT_EQ(completed("muster show --output=j"), "--output=json\n");
  EXPECT_EQ(completed("muster stop "), "mnist\tthe newest: mnist-aaaaaa\nmnist-aaaaaa\tSucceeded\n");
  EXPECT_EQ(completed("muster logs mnist "), "worker:0\thost-1\n");
  EXPECT_EQ(completed("muster run -d --on "), "gpu-1\tgpu\nps-1\n");
  EXPECT_EQ(completed("muster run -d -i other\\ hosts.yaml --on o"), "other\n");
  EXPECT_EQ(completed("muster run jo"), "job file.yaml\n");
  EXPECT_EQ(completed("muster run --known-hosts=inv"), "--known-hosts=inventory.yaml\n");
  EXPECT_EQ(completed("muster compare mn"), "mnist\tthe newest: mnist-aaaaaa\nmnist-aaaaaa\tSucceeded\n");
  EXPECT_EQ(completed("muster compare inv"), "inventory.yaml\n");
  EXPECT_THAT(completed("muster bench --folder so"), ::testing::MatchesRegex("some folder/\t.*\n"));
  EXPECT_EQ(completed("muster exec -- inv"), "");
  EXPECT_EQ(completed(BuildPath("bin/muster") + " sho"), "show\tThe hosts and tasks of a job\n");
}

TEST_F(CompletionCommand, KnowsNoOtherShell) {
  const CommandResult result = muster_.Muster({"completion", "tcsh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.stderr_text, HasSubstr("tcsh not in {bash,zsh,fish}"));
}

// Whoever has pressed Tab is in the middle of a line.
TEST_F(CompletionCommand, NothingIsSaidOrRunOrWaitedFor) {
  const auto answer = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"__complete", "bash"});
    const CommandResult result = muster_.Muster(words);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.stderr_text, "");
    return result.stdout_text;
  };
  muster_.Write("muster/jobs/lost-bbbbbb/record.pb", "\x0a\xff");
  EXPECT_EQ(answer({"show", ""}), "none\nmnist\nmnist-aaaaaa\n");
  EXPECT_EQ(answer({"logs", "lost-bbbbbb", ""}), "none\n");

  muster_.Write("finds.yaml", "hosts:\n  gpu-1: {}\ndiscover: {command: touch asked}\n");
  EXPECT_EQ(answer({"run", "-i", "finds.yaml", "--on", ""}), "none\ngpu-1\n");
  EXPECT_FALSE(std::filesystem::exists(muster_.Path("asked")));

  muster_.Write("broken.yaml", "hosts: [\n");
  ASSERT_EQ(::mkfifo(muster_.Path("pipe").c_str(), 0600), 0);
  for (const char* inventory : {"broken.yaml", "pipe", "nowhere.yaml"})
    EXPECT_EQ(answer({"run", "-i", inventory, "--on", ""}), "none\n") << inventory;
  EXPECT_EQ(answer({"run", "--inventory=", "--on", ""}), "none\ngpu-1\nps-1\n") << "as if not typed yet";

  const CommandResult unknown = muster_.Muster({"__complete", "tcsh", ""});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.stdout_text + unknown.stderr_text, "");
}

}  // namespace
}  // namespace muster
