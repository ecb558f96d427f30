// What commands do with their outputs, signals and deadlines, whatever a job does: exec, and those that print
// until somebody has read enough.
#include <algorithm>

#include "launcher/job_store.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterCommands : public LifecycleTest {};

TEST_F(ClusterCommands, ListTellsJobsThatAreEndingFromThoseThatHaveEnded) {
  using reconcile::Result;
  const std::tuple<std::string, Result, bool> jobs[] = {
      {"Fetching", Result::kSucceeded, false}, {"Succeeded", Result::kSucceeded, true},
      {"Stopping", Result::kStopped, false},   {"Stopped", Result::kStopped, true},
      {"Stopping", Result::kFailed, false},    {"Failed", Result::kFailed, true}};
  std::map<std::string, std::string> expected;
  record::JobRecord record;
  record.set_version(kJobRecordVersion);
  for (const auto& [state, result, has_ended] : jobs) {
    record.set_id("job-" + std::to_string(expected.size()));
    record.mutable_cluster()->mutable_ending()->set_result(static_cast<int>(result));
    record.set_ended_micros(has_ended ? 1 : 0);
    const std::filesystem::path folder = cluster_.home() / "jobs" / record.id();
    ASSERT_TRUE(MakeDirectories(folder).ok());
    ASSERT_TRUE(WriteFileAtomically(folder / kRecordFile, record.SerializeAsString()).ok());
    expected[record.id()] = state;
  }
  const CommandResult list = Muster({"list", "-o", "json"});
  ASSERT_EQ(list.exit_code, 0) << list.stderr_text;
  std::map<std::string, std::string> states;
  for (const Json& row : Json::parse(list.stdout_text)) states[row["job"]] = row["state"];
  EXPECT_EQ(states, expected);
}

TEST_F(ClusterCommands, ListSaysWhatCanBeDoneAboutARecordThatCannotBeRead) {
  const std::filesystem::path jobs = cluster_.home() / "jobs";
  ASSERT_TRUE(MakeDirectories(jobs / "lost-aaaaaa").ok());
  ASSERT_TRUE(WriteFileAtomically(jobs / "lost-aaaaaa" / kRecordFile, "\x0a\xff").ok());
  ASSERT_TRUE(WriteFileAtomically(jobs / "notes", "of a person").ok());
  const CommandResult list = Muster({"list"});
  EXPECT_EQ(list.exit_code, 1);
  EXPECT_EQ(list.stderr_text, (jobs / "lost-aaaaaa" / kRecordFile).string() +
                                  " is damaged; if nothing of the job runs, its folder can be removed\n"
                                  "muster: 1 record could not be read\n");
}

TEST_F(ClusterCommands, ExecRunsACommandOnEachHost) {
  const auto exec = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"exec", "-i", cluster_.inventory()});
    return Muster(arguments);
  };
  const CommandResult line = exec({"--", "echo $HOME | grep -o 'host-[0-9]'; echo oops >&2; exit 3"});
  EXPECT_EQ(line.exit_code, 3);
  for (const std::string host : {"host-1", "host-2", "host-3"}) {
    EXPECT_THAT(line.stdout_text, HasSubstr("[" + host + "] " + host + "\n"));
    EXPECT_THAT(line.stderr_text,
                AllOf(HasSubstr("[" + host + "] oops\n"), HasSubstr(host + ": exited with code 3\n")));
  }
  const CommandResult words =
      exec({"--hosts", "host-2", "-o", "json", "--", "printf", "%s|", "a  b", "$HOME", "it's"});
  ASSERT_EQ(words.exit_code, 0) << words.stderr_text;
  const Json runs = Json::parse(words.stdout_text);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0]["stdout"], "a  b|$HOME|it's|");
  EXPECT_EQ(runs[0]["exit_code"], 0);

  const std::string lock = cluster_.Path("lock");
  const std::string alone = "mkdir " + lock + " && sleep 0.2 && rmdir " + lock;
  EXPECT_EQ(exec({"--parallel", "1", "--", alone}).exit_code, 0);
  EXPECT_EQ(exec({"--parallel", "0", "--", "true"}).exit_code, 2);

  const CommandResult late = exec({"--timeout", "0.5", "--", "sleep", "600"});
  EXPECT_EQ(late.exit_code, 124);
  EXPECT_THAT(late.stderr_text,
              HasSubstr("host-2: the command has not ended within 500ms, and may go on there\n"));
  const CommandResult endless = cluster_.Shell("muster exec -i " + cluster_.inventory() +
                                               " --timeout 0.5 -- 'yes >&2' 2>/dev/null; echo \"code $?\"");
  EXPECT_EQ(endless.stdout_text, "code 124\n");  // however much that was
  const CommandResult much = cluster_.Shell(
      "muster exec -i " + cluster_.inventory() +
      " --hosts host-1 -o json -- 'yes | head -c 68000000' | grep -o 'more than [0-9]* bytes of output'");
  EXPECT_EQ(much.stdout_text, "more than 67108864 bytes of output\n");
  for (const char* words : {"two\nlines", "two\rlines"}) {
    const CommandResult broken = exec({"--", "echo", words});
    EXPECT_EQ(broken.exit_code, 2);
    EXPECT_THAT(broken.stderr_text, HasSubstr("a word holds a line break"));
  }
  const CommandResult errors = exec({"--hosts", "host-1", "--", "seq 20000 >&2"});
  EXPECT_EQ(std::ranges::count(errors.stderr_text, '\n'), 20000);
  cluster_.hosts().Kill("host-3");
  const CommandResult two = exec({"--", "echo here"});
  EXPECT_EQ(two.exit_code, 69);
  EXPECT_THAT(two.stdout_text, AllOf(HasSubstr("[host-1] here\n"), HasSubstr("[host-2] here\n")));
  EXPECT_THAT(two.stderr_text, HasSubstr("host-3 ("));
  cluster_.hosts().Start("host-3");
}

TEST_F(ClusterCommands, AskOnlyTheHostsThatAreChosen) {
  const std::string inventory = InventoryWithHead();
  const auto hosts = [&](const std::vector<std::string>& command, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"-i", inventory, "-o", "json"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = Muster(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
    std::string names;
    for (const Json& row : Json::parse(result.stdout_text)) {
      names += std::string(row["host"]) + " ";
    }
    return names;
  };
  const std::vector<std::pair<std::string, std::string>> kChosen = {
      {"host-[2:3]", "host-2 host-3 "}, {"cpu", "host-1 host-2 "}, {"head,host-1,host-3", "host-1 host-3 "}};
  for (const auto& [words, names] : kChosen) {
    EXPECT_EQ(hosts({"exec", "--hosts", words}, {"--", "true"}), names);
    EXPECT_EQ(hosts({"check", "--hosts", words}), names);
  }
}

// Who has read enough goes, and what would print on ends well.
TEST_F(ClusterCommands, WhatNobodyReadsAnyMoreEnds) {
  ASSERT_EQ(
      RunJob(ScriptJob("talks", "while :; do echo line; sleep 0.1; done", "count: 2"), {"-d"}).exit_code, 0);
  ASSERT_EQ(RunJob(ScriptJob("waits", "echo line; exec sleep 600", "count: 2"), {"-d"}).exit_code, 0);
  for (const std::string& command : {"exec -i " + cluster_.inventory() + " -- yes",
                                     std::string("logs -f talks"), std::string("logs -f waits")}) {
    const CommandResult result =
        cluster_.Shell("{ muster " + command + "; echo \"code $?\" >&2; } | head -n 1");
    EXPECT_EQ(std::ranges::count(result.stdout_text, '\n'), 1) << command;
    EXPECT_EQ(result.stderr_text, "code 0\n") << command;
  }
  for (const char* job : {"talks", "waits"}) EXPECT_EQ(Muster({"stop", job}).exit_code, 0);
}

// A pager that nobody scrolls until the job has ended: more than its pipe takes is on the way to it.
TEST_F(ClusterCommands, WhoeverStopsReadingStopsNotTheRun) {
  const std::string job = ScriptJob("slow", "seq 100000; exec sleep 600", "count: 1");
  const CommandResult result = cluster_.Shell(
      "{ sh -c 'echo $$ >" + Path("pid") + "; exec \"$MUSTER\" run " + job + " -i " + cluster_.inventory() +
      "' 2>&1; echo \"code $?\"; } | { until muster logs slow worker:0 2>/dev/null | tail -n 1 "
      "| grep -qx 100000; do sleep 0.1; done; kill -INT $(cat " +
      Path("pid") +
      "); until muster list | grep slow | grep -Eqv 'Running|Pending'; do sleep 0.1; done; cat; }");
  EXPECT_THAT(result.stdout_text, ::testing::EndsWith("code 130\n"));
  EXPECT_THAT(result.stdout_text, HasSubstr("[worker:0@host-1] 100000\n"));
}

// As nohup has it, when its terminal goes.
TEST_F(ClusterCommands, AHangupThatIsIgnoredStopsNothing) {
  for (const std::string how : {"", "-d "}) {
    std::filesystem::remove(Path("go"));
    const std::string job = ScriptJob("job", kWaitForGo, "count: 2");
    const CommandResult run =
        cluster_.Shell("trap '' HUP INT; \"$MUSTER\" run " + how + job + " -i " + cluster_.inventory() +
                       " & pid=$!; until muster list | grep -q Running; do sleep 0.1; done; kill -HUP $pid "
                       "2>/dev/null; kill -INT "
                       "$pid 2>/dev/null; sleep 0.5; touch " +
                       Path("go") + "; wait $pid; echo code $?; muster wait job");
    EXPECT_THAT(run.stdout_text, HasSubstr("code 0\n")) << run.stderr_text;
    EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  }
}

}  // namespace
}  // namespace muster
