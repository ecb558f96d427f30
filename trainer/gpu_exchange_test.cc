// Workers whose parameters stay on their GPUs, which add up gradients there by NCCL, have the losses of one
// process on the CPU.
#include <gmock/gmock.h>

#include "tests/support/gpu_exchange_fixture.h"

namespace muster {
namespace {

using GpuExchangeTest = GpuExchange;

TEST_P(GpuExchangeTest, HasTheLossesOfTheCpu) {
  ExpectTheSame(LossesOfGpus(CollectiveChoice::kNccl), LossesOfTheCpu());
}

// Whoever has it knows before it is sent, so nobody takes it for its own.
TEST_P(GpuExchangeTest, WhoseGradientIsNotFiniteIsNamedByAll) {
  const int spoiled = GetParam() - 1;
  before_step = [&](int worker, int64_t step) { return worker == spoiled && step == 7; };
  LossesOfGpus(CollectiveChoice::kNccl);
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[spoiled])) << statuses[spoiled];
  for (int i = 0; i < spoiled; ++i) {
    EXPECT_TRUE(absl::IsFailedPrecondition(statuses[i])) << statuses[i];
    EXPECT_THAT(std::string(statuses[i].message()),
                ::testing::HasSubstr(TaskName({Role::kWorker, spoiled}) + ": "));
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, GpuExchangeTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster
