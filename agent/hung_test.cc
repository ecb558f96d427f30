// Tasks that hang, and those that only seem to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "agent/agent_fixture.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(AgentTest, AHungTaskIsKilledWithEvidence) {
  AgentClient client(root_);
  agent::Request request = StartRequest("job", "worker:0", Shell("echo begins; sleep 1000 & wait"));
  request.mutable_start_task()->set_hung_after_ms(2000);
  const agent::TaskStatus status = RunToEnd(client, request);
  EXPECT_EQ(status.state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(status.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(status.reason(), HasSubstr("no progress for "));
  EXPECT_EQ(CountTokens("job"), 0);
  const std::string log = client.Follow("job", "worker:0", 0).value_or("");
  EXPECT_THAT(log, AllOf(testing::StartsWith("begins\nmuster: worker:0 has made no progress for "),
                         testing::ContainsRegex(
                             "process [0-9]+ \\(sleep\\)\n  thread [0-9]+ \\(sleep\\): S \\(sleeping\\)"),
                         testing::EndsWith("muster: killed\n")));
}

TEST_F(AgentTest, ATaskThatHangsOnceIsStartedAgainByItsPolicy) {
  AgentClient client(root_);
  agent::Request request =
      StartRequest("job", "worker:0", Shell("[ $MUSTER_INCARNATION = 2 ] || sleep 1000"));
  request.mutable_start_task()->set_hung_after_ms(2000);
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  request.mutable_start_task()->set_max_restarts(1);
  const agent::TaskStatus status = RunToEnd(client, request);
  EXPECT_EQ(status.state(), agent::TASK_STATE_SUCCEEDED);
  EXPECT_EQ(status.restarts(), 1u);
}

TEST_F(AgentTest, ATaskThatSaysItMakesProgressIsNotHung) {
  AgentClient client(root_);
  for (const char* progress : {"echo on", "touch \"$MUSTER_PROGRESS_FILE\""}) {
    agent::Request request = NewStart("worker:0", Shell("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do " +
                                                        std::string(progress) + "; sleep 0.5; done"));
    request.mutable_start_task()->set_hung_after_ms(4000);
    const agent::TaskStatus status = RunToEnd(client, request);
    EXPECT_EQ(status.state(), agent::TASK_STATE_SUCCEEDED) << status.reason();
  }
}

}  // namespace
}  // namespace muster
