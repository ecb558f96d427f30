// Commands that contact no host, or are refused before they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/local_muster.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class LocalCommands : public testing::Test {
 protected:
  LocalMuster muster_;
};

TEST_F(LocalCommands, AFlagOfWhatExecRunsIsNoCallForHelp) {
  for (const char* flag : {"-h", "--help"}) {
    const CommandResult forgotten = muster_.Muster({"exec", "df", flag});
    EXPECT_EQ(forgotten.exit_code, 2) << flag;
    EXPECT_THAT(forgotten.stderr_text, HasSubstr("muster exec -- df ..."));
    const CommandResult help = muster_.Muster({"exec", flag});
    EXPECT_EQ(help.exit_code, 0) << flag;
    EXPECT_THAT(help.stdout_text, HasSubstr("COMMAND"));
  }
}

TEST_F(LocalCommands, WhereThereIsNoInventoryItIsSaidHowToGiveOne) {
  const CommandResult check = muster_.Muster({"check"});
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(check.stderr_text, AllOf(StartsWith("muster: inventory.yaml: "), HasSubstr("-i FILE"),
                                       HasSubstr("MUSTER_INVENTORY")));
}

TEST_F(LocalCommands, ListSaysWhoDrivesAJob) {
  using Json = nlohmann::json;
  record::JobRecord job = LocalMuster::SucceededJob("done-aaaaaa", "done");
  muster_.AddJob(job);
  job = LocalMuster::SucceededJob("alone-aaaaaa", "alone");
  job.clear_ended_micros();
  job.mutable_cluster()->clear_ending();
  muster_.AddJob(job);
  const auto row = [&](const std::string& id) {
    for (Json& row : Json::parse(muster_.Muster({"list", "-o", "json"}).stdout_text)) {
      if (row["job"] == id) return row;
    }
    return Json::object();
  };
  EXPECT_TRUE(row("done-aaaaaa")["driver"].is_null());
  EXPECT_EQ(row("alone-aaaaaa")["driver"], "nobody");
  EXPECT_THAT(muster_.Muster({"list"}).stdout_text,
              ContainsRegex("alone-aaaaaa +Running +[^ ]+ +[^ ]+ +nobody "));
  const JobStore jobs{muster_.Path("muster")};
  const auto lock = jobs.Lock("alone-aaaaaa");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(row("alone-aaaaaa")["driver"], "process " + std::to_string(::getpid()));
}

// Of tests/cluster/loopback, which asks no host for that either.
TEST_F(LocalCommands, LoopbackSaysWhatIsWrongWithWhatItIsGiven) {
  muster_.Write("cluster/host-1/sshd_config", "");
  const std::string cluster = muster_.Path("cluster");
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SourcePath("tests/cluster/loopback"));
    const CommandResult result = muster_.Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, Not(HasSubstr("namespace: No such file")));
    return result.stderr_text;
  };
  for (const char* command : {"cut", "mute", "deafen", "join"}) {
    EXPECT_EQ(refused({command, cluster, "host-9"}), "loopback: " + cluster + " has no host host-9\n");
    EXPECT_EQ(refused({command, cluster, "host-1"}),
              "loopback: host-1 is no network namespace: loopback up DIR N --namespaces\n");
  }
  EXPECT_THAT(refused({"slow", cluster, "host-9", "3mbit"}), HasSubstr("has no host host-9"));
  muster_.Write("cluster/host-1/namespace", "none");
  EXPECT_THAT(refused({"slow", cluster, "host-1"}), HasSubstr("RATE"));
}

}  // namespace
}  // namespace muster
