#include "launcher/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/command_line.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Paths = Completion::Paths;

class Source : public CompletionSource {
 public:
  std::vector<Candidate> Jobs() const override {
    return {{"mnist", "the newest: mnist-aaaaaa"}, {"mnist-aaaaaa", "Running"}, {"wide-bbbbbb", "Failed"}};
  }
  std::vector<Candidate> Pools() const override { return {{"pool", "Running"}}; }
  std::vector<Candidate> Tasks(const std::string& job) const override {
    if (job != "mnist") return {};
    return {{"ps:0", "host-1"}, {"worker:0", "host-2"}, {"worker:1", "host-3"}};
  }
  std::vector<Candidate> Hosts(const std::string& inventory) const override {
    if (inventory == "other.yaml") return {{"other", ""}};
    return {{"gpu-1", "gpu"}, {"gpu-2", "gpu"}, {"ps-1", ""}};
  }
};

// The last of the words is what Tab is pressed behind.
Completion At(const std::vector<std::string>& words) {
  const CommandLine line("1.0");
  return Complete(line.app, words, Source());
}

std::vector<std::string> WordsAt(const std::vector<std::string>& words) {
  std::vector<std::string> candidates;
  for (const Candidate& candidate : At(words).candidates) candidates.push_back(candidate.word);
  return candidates;
}

TEST(Completion, OfCommands) {
  EXPECT_THAT(WordsAt({"s"}), ElementsAre("scale", "show", "stop"));
  EXPECT_THAT(At({"sho"}).candidates, ElementsAre(Candidate{"show", "The hosts and tasks of a job"}));
  EXPECT_THAT(WordsAt({"data", ""}), ElementsAre("fetch", "make"));
  EXPECT_THAT(WordsAt({""}), AllOf(Contains("run"), Contains("compare"), Contains("completion")));
  EXPECT_THAT(WordsAt({}), Contains("run"));
  EXPECT_EQ(At({""}).paths, Paths::kNone);
  EXPECT_THAT(WordsAt({"nonsense", ""}), IsEmpty());
}

TEST(Completion, NothingHiddenIsOffered) {
  EXPECT_THAT(WordsAt({""}), Not(Contains("controller")));
  EXPECT_THAT(WordsAt({"controller", ""}), IsEmpty());
  EXPECT_THAT(WordsAt({"controller", "resume", ""}), IsEmpty());

  CLI::App app;
  app.add_flag("--seen");
  app.add_flag("--unseen")->group("");
  EXPECT_THAT(Complete(app, std::vector<std::string>{"--"}, Source()).candidates,
              Not(Contains(Candidate{"--unseen", ""})));
}

TEST(Completion, OfOptionsOfTheCommand) {
  EXPECT_THAT(WordsAt({"show", "--m"}), ElementsAre("--metrics"));
  EXPECT_THAT(WordsAt({"status", "mnist", "--m"}), ElementsAre("--metrics")) << "by its other name";
  EXPECT_THAT(WordsAt({"show", "-"}),
              AllOf(Contains("--output"), Contains("--help"), Each(StartsWith("--"))));
  EXPECT_THAT(WordsAt({"--"}), ElementsAre("--help", "--version"));
  EXPECT_THAT(WordsAt({"show", "--metrics", "-o", "json", "--"}),
              AllOf(Not(Contains("--metrics")), Not(Contains("--output"))))
      << "given already";
  EXPECT_THAT(WordsAt({"data", "fetch", "mnist", "--mirror", "http://a", "--m"}), ElementsAre("--mirror"));
}

TEST(Completion, OfValuesThatAreFew) {
  EXPECT_THAT(WordsAt({"show", "-o", ""}), ElementsAre("text", "json"));
  EXPECT_THAT(WordsAt({"show", "mnist", "--output", "j"}), ElementsAre("json"));
  EXPECT_THAT(WordsAt({"show", "--output=j"}), ElementsAre("--output=json"));
  EXPECT_EQ(At({"show", "--output", ""}).paths, Paths::kNone);
  EXPECT_THAT(WordsAt({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(WordsAt({"data", "make", "m"}), ElementsAre("mnist"));
}

TEST(Completion, OfJobs) {
  for (const char* command : {"show", "status", "logs", "events", "stop", "wait", "scale", "restart", "gc"}) {
    EXPECT_THAT(WordsAt({command, "mnist"}), ElementsAre("mnist", "mnist-aaaaaa")) << command;
    EXPECT_EQ(At({command, ""}).paths, Paths::kNone) << command;
  }
  EXPECT_THAT(WordsAt({"show", "mnist", ""}), IsEmpty()) << "there is only one";
  EXPECT_THAT(WordsAt({"gc", "mnist", "m"}), ElementsAre("mnist-aaaaaa")) << "each once";
}

TEST(Completion, OfJobFilesTheShellKnows) {
  for (const char* command : {"run", "plan", "up", "export"}) {
    EXPECT_THAT(WordsAt({command, ""}), IsEmpty()) << command;
    EXPECT_EQ(At({command, ""}).paths, Paths::kFiles) << command;
  }
  EXPECT_EQ(At({"run", "mnist.yaml", ""}).paths, Paths::kNone) << "there is only one";
}

TEST(Completion, OfJobsOrFiles) {
  EXPECT_THAT(WordsAt({"compare", "wide-bbbbbb", "mnist-"}), ElementsAre("mnist-aaaaaa"));
  EXPECT_EQ(At({"compare", "wide-bbbbbb", "mnist-"}).paths, Paths::kFiles);
}

TEST(Completion, OfFilesAndFolders) {
  EXPECT_EQ(At({"run", "-i", ""}).paths, Paths::kFiles);
  EXPECT_EQ(At({"run", "--known-hosts=/e"}).paths, Paths::kFiles);
  EXPECT_EQ(At({"bench", "--folder", ""}).paths, Paths::kFolders);
  EXPECT_EQ(At({"data", "make", "mnist", ""}).paths, Paths::kFolders);
  EXPECT_EQ(At({"data", "make", "mnist", "folder", ""}).paths, Paths::kNone) << "there is only one";
  EXPECT_EQ(At({"run", "--timeout", ""}).paths, Paths::kNone) << "a number";
  EXPECT_EQ(At({"bench", "--models", ""}).paths, Paths::kNone);
}

TEST(Completion, OfTasksOfTheJob) {
  EXPECT_THAT(WordsAt({"logs", "-f", "mnist", "w"}), ElementsAre("worker:0", "worker:1"));
  EXPECT_THAT(WordsAt({"logs", "mnist", "worker:0", "w"}), ElementsAre("worker:1"));
  EXPECT_THAT(WordsAt({"restart", "mnist", "ps"}), ElementsAre("ps:0"));
  EXPECT_THAT(WordsAt({"logs", "wide-bbbbbb", ""}), IsEmpty());
}

TEST(Completion, OfHostsOfTheInventory) {
  EXPECT_THAT(WordsAt({"run", "-d", "--on", "g"}), ElementsAre("gpu-1", "gpu-2"));
  EXPECT_THAT(WordsAt({"run", "-d", "-i", "other.yaml", "--on", ""}), ElementsAre("other"));
  EXPECT_THAT(WordsAt({"run", "--inventory=other.yaml", "--on="}), ElementsAre("--on=other"));
  EXPECT_THAT(WordsAt({"run", "-iother.yaml", "--on", ""}), ElementsAre("other"));
  EXPECT_THAT(WordsAt({"exec", "--hosts", "gpu-1,"}), ElementsAre("gpu-1,gpu-2", "gpu-1,ps-1"));
  EXPECT_THAT(WordsAt({"exec", "--hosts=gpu-1,p"}), ElementsAre("--hosts=gpu-1,ps-1"));
  EXPECT_THAT(WordsAt({"exec", "--hosts", "gpu-1", "p"}), ElementsAre("ps-1")) << "as CLI11 takes them";
  EXPECT_THAT(WordsAt({"exec", "--hosts", "gpu-1", "--par"}), ElementsAre("--parallel"));
}

TEST(Completion, OfServersThatStand) {
  EXPECT_THAT(WordsAt({"run", "--cluster", ""}), ElementsAre("pool"));
  EXPECT_EQ(At({"run", "--cluster", "pool", ""}).paths, Paths::kFiles);
}

TEST(Completion, BehindDashesNothingIsAnOption) {
  EXPECT_THAT(WordsAt({"exec", "--", "df", "-"}), IsEmpty());
  EXPECT_EQ(At({"exec", "--", "df", "-"}).paths, Paths::kNone);
  EXPECT_THAT(WordsAt({"show", "--", "mnist-"}), ElementsAre("mnist-aaaaaa"));
}

TEST(Completion, WhatIsWrongIsPassedOver) {
  EXPECT_THAT(WordsAt({"show", "--nonsense", "-x", "mnist-"}), ElementsAre("mnist-aaaaaa"));
  EXPECT_THAT(WordsAt({"show", "--nonsense=j"}), IsEmpty());
  EXPECT_THAT(WordsAt({"show", "--metrics=j"}), IsEmpty());
}

TEST(Completion, ShortOptionsMayStandTogether) {
  EXPECT_THAT(WordsAt({"show", "-mo", "j"}), ElementsAre("json"));
  EXPECT_THAT(WordsAt({"show", "-ojson", "mnist-"}), ElementsAre("mnist-aaaaaa"));
}

// What --help says of a value is all that completion goes by: TEXT says nothing.
TEST(Completion, EveryOptionSaysWhatItTakes) {
  const CommandLine line("1.0");
  std::vector<const CLI::App*> commands = line.app.get_subcommands({});
  for (const CLI::App* command : line.data->get_subcommands({})) commands.push_back(command);
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) continue;
      EXPECT_NE(option->get_type_name(), "TEXT") << command->get_name() << " " << option->get_name();
    }
  }
}

TEST(BashWords, AreJoinedWhereBashParts) {
  const auto joined = [](const std::vector<std::string>& parts) { return JoinBashWords(parts); };
  EXPECT_THAT(joined({"logs", "mnist", "worker", ":", "0"}).words, ElementsAre("logs", "mnist", "worker:0"));
  EXPECT_EQ(joined({"logs", "mnist", "worker", ":", "0"}).kept, 7u);
  EXPECT_EQ(joined({"logs", "mnist", "worker", ":"}).kept, 7u);
  EXPECT_THAT(joined({"show", "--output", "=", "js"}).words, ElementsAre("show", "--output=js"));
  EXPECT_EQ(joined({"show", "--output", "=", "js"}).kept, 9u);
  EXPECT_THAT(joined({"show", "--output", "=", "json", ""}).words, ElementsAre("show", "--output=json", ""));
  EXPECT_EQ(joined({"show", "--output", "=", "json", ""}).kept, 0u);
  EXPECT_EQ(joined({"logs", "worker:0"}).kept, 0u) << "it need not part them";
  EXPECT_THAT(joined({}).words, IsEmpty());
}

TEST(BashWords, HaveNoQuotes) {
  EXPECT_THAT(
      JoinBashWords(std::vector<std::string>{"'a b'", "\"a 'b\"", "a\\ b", "'a\\'", "\"a\\\"\"", "'a"}).words,
      ElementsAre("a b", "a 'b", "a b", "a\\", "a\"", "'a"));
}

TEST(CompletionAnswer, IsWhatTheShellTakes) {
  const Completion completion = {.candidates = {{"worker:0", "on\thost-1\n"}, {"ps:0", ""}},
                                 .paths = Paths::kFolders};
  EXPECT_EQ(CompletionAnswer(Shell::kBash, completion), "folders\nworker:0\nps:0\n");
  EXPECT_EQ(CompletionAnswer(Shell::kZsh, completion), "folders\nworker\\:0:on host-1 \nps\\:0\n");
  EXPECT_EQ(CompletionAnswer(Shell::kFish, completion), "folders\nworker:0\ton host-1 \nps:0\n");
  EXPECT_EQ(CompletionAnswer(Shell::kBash, {.candidates = {{"worker:0", ""}}, .paths = Paths::kNone}, 7),
            "none\n0\n");
}

TEST(Shell, IsOneOfThree) {
  EXPECT_EQ(*ParseShell("zsh"), Shell::kZsh);
  EXPECT_EQ(ParseShell("tcsh").status().message(), "there is no completion for the shell 'tcsh'");
}

}  // namespace
}  // namespace muster
