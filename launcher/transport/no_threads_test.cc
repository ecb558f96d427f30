// Where this account may have no more threads, a connection does without, or fails with the reason.
#include <gtest/gtest.h>

#include "launcher/transport/agent_keys.h"
#include "launcher/transport/ssh_gateway.h"
#include "launcher/transport/ssh_socket.h"
#include "tests/support/without_threads.h"

namespace muster {
namespace {

Limits Soon() { return {.deadline = Now() + std::chrono::seconds(30)}; }

bool SaysWhy(const absl::Status& status) {
  return absl::IsUnavailable(status) &&
         std::string(status.message()).find("this account may have no more threads") != std::string::npos;
}

void ExpectWithoutThreads(const std::function<bool()>& works) {
  const int code = ExitCodeWithoutThreads(works);
  if (code == kMayStartThreads) GTEST_SKIP() << "no limit of processes holds here";
  EXPECT_EQ(code, 0);
}

TEST(NoThreads, ANameIsLookedUpAllTheSame) {
  ExpectWithoutThreads([] { return LookUpAddress("localhost", Soon()).ok(); });
}

TEST(NoThreads, AJumpHostIsNotReached) {
  ExpectWithoutThreads([] {
    SshGateway gateway({.name = "gate"}, {}, Now() + std::chrono::seconds(30));
    Limits limits = Soon();
    return !gateway.works() && SaysWhy(gateway.Open("10.0.0.1", 22, limits, nullptr).status());
  });
}

TEST(NoThreads, TheKeysOfAnAgentAreNotAskedFor) {
  ExpectWithoutThreads([] { return SaysWhy(AgentFront::Start(UniqueFd(), {}, Soon()).status()); });
}

}  // namespace
}  // namespace muster
