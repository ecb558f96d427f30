#include "launcher/transport/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <optional>
#include <thread>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(Turns, WhoeverComesTooManyWaitsUntilOneIsGivenBack) {
  const Turns turns(2, "others", std::chrono::minutes(5));
  std::optional<absl::StatusOr<Turns::Turn>> first(turns.Take(-1, nullptr)), second(turns.Take(-1, nullptr));
  ASSERT_TRUE(first->ok() && second->ok());
  std::atomic<bool> has_waited = false;
  std::jthread third([&] { EXPECT_TRUE(turns.Take(-1, [&] { has_waited = true; }).ok()); });
  while (!has_waited) std::this_thread::yield();
  first.reset();
  third.join();
}

TEST(Turns, NobodyWaitsForEver) {
  const Turns turns(1, "the logins to other hosts", std::chrono::milliseconds(10));
  const auto taken = turns.Take(-1, nullptr);
  const absl::Status late = turns.Take(-1, nullptr).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("waiting for the logins to other hosts"));
}

TEST(Turns, AnInterruptEndsTheWait) {
  const Turns turns(1, "others", std::chrono::minutes(5));
  const auto taken = turns.Take(-1, nullptr);
  const UniqueFd interrupt(::eventfd(1, EFD_CLOEXEC));
  EXPECT_TRUE(absl::IsCancelled(turns.Take(interrupt.get(), nullptr).status()));
}

}  // namespace
}  // namespace muster
