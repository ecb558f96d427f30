// Beside the suite over all backends: what there is to see of NCCL with and without a GPU.
#include "collective/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective/nccl_library.h"
#include "kernels/cuda/runtime.h"

namespace muster {
namespace {

TEST(Nccl, AMissingLibraryIsNamed) {
  const absl::Status status = LoadNccl("libnccl_of_nobody.so.2").status();
  EXPECT_EQ(status,
            FailedPrecondition("NCCL is missing on this host (libnccl_of_nobody.so.2 is neither where "
                               "the loader looks, see LD_LIBRARY_PATH, nor in /usr/local/cuda/lib64/)"));
}

TEST(Nccl, ALibraryWithoutItsFunctionsIsRefused) {
  const absl::Status status = LoadNccl("libc.so.6").status();
  EXPECT_EQ(status, FailedPrecondition(
                        "the NCCL of this host has no ncclGetVersion: it needs version 2.18 or newer"));
}

TEST(Nccl, TheInstalledLibraryHasAllFunctions) {
  const auto nccl = LoadNccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status().message();
  int version = 0;
  EXPECT_EQ(nccl->get_version(&version), ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION(2, 18, 0));
  EXPECT_STREQ(nccl->get_error_string(ncclSuccess), "no error");
}

// What is on the GPU already is summed there.
TEST(Nccl, MemoryOfTheGpuIsNotCopied) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  const auto gpu = MakeNccl(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  const Interrupt interrupt;
  const auto id = (*gpu)->MakeGroupId();
  ASSERT_TRUE(id.ok()) << id.status();
  const auto group = (*gpu)->Meet({.names = {"worker:0"}}, *id, interrupt);
  ASSERT_TRUE(group.ok()) << group.status();
  const std::vector<float> values = {1, 2, 3};
  const auto input = cuda::CopyToDevice<float>(values);
  const auto output = cuda::DeviceArray<float>::Create(3);
  ASSERT_TRUE(input.ok() && output.ok());
  ASSERT_EQ((*group)->Perform(AllReduce({input->data(), 3}, {output->data(), 3})), absl::OkStatus());
  std::vector<float> sums(3);
  ASSERT_EQ(cudaMemcpy(sums.data(), output->data(), 3 * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(sums, values);
}

}  // namespace
}  // namespace muster
