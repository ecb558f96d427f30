// Workers whose parameters stay on their GPUs, which add up gradients there by NCCL, have the losses of one
// process on the CPU.
#include "trainer/gpu_exchange_fixture.h"

namespace muster {
namespace {

using GpuExchangeTest = GpuExchange;

TEST_P(GpuExchangeTest, HasTheLossesOfTheCpu) {
  ExpectTheSame(LossesOfGpus(CollectiveChoice::kNccl), LossesOfTheCpu());
}

INSTANTIATE_TEST_SUITE_P(Workers, GpuExchangeTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster
