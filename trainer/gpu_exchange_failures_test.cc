// What becomes of a training by GPUs whose NCCL fails. With a made-up one, which can be told to.
#include "collective/fake_nccl.h"
#include "tests/support/gpu_exchange_fixture.h"

namespace muster {
namespace {

class GpuExchangeFails : public GpuExchange {
 protected:
  ~GpuExchangeFails() override { FailFakeNccl(0, ncclSuccess); }
};

// In the middle of training, and of a gradient's buckets. Sums that were begun on the GPUs count for nothing.
TEST_P(GpuExchangeFails, AndGoesOnThroughTheHosts) {
  before_step = [&](int worker, int64_t step) {
    if (worker == 1 && step == 11) FailFakeNccl(1, ncclUnhandledCudaError);
    return false;
  };
  ExpectTheSame(LossesOfGpus(CollectiveChoice::kAuto), LossesOfTheCpu());
  EXPECT_EQ(FakeCommunicators(), 0);
}

INSTANTIATE_TEST_SUITE_P(Workers, GpuExchangeFails, ::testing::Values(2, 3));

}  // namespace
}  // namespace muster
