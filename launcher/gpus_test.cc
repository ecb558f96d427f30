#include "launcher/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Gpus, AreReadFromWhatNvidiaSmiPrints) {
  const auto gpus = ParseGpus(
      "1, NVIDIA H100 80GB HBM3, 81559, 550.54.15\n"
      "0, NVIDIA H100 80GB HBM3, 81559, 550.54.15\n"
      "2, NVIDIA GB10, [N/A], 550.54.15\n");
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 3u);
  EXPECT_EQ((*gpus)[0].index, 0);
  EXPECT_EQ((*gpus)[1].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ((*gpus)[1].memory_bytes, uint64_t{81559} << 20);
  EXPECT_EQ((*gpus)[2].memory_bytes, 0u);
  EXPECT_THAT(DescribeGpus(*gpus),
              ElementsAre("1x NVIDIA GB10", "2x NVIDIA H100 80GB HBM3 (79.6 GiB)", "driver 550.54.15"));
}

TEST(Gpus, NoneAreFine) {
  EXPECT_THAT(*ParseGpus(""), IsEmpty());
  EXPECT_THAT(*ParseGpus("\n"), IsEmpty());
  EXPECT_THAT(DescribeGpus({}), IsEmpty());
}

TEST(Gpus, WhatIsNoGpuIsAnError) {
  for (const char* text : {"No devices were found\n", "0, NVIDIA A100\n", "x, NVIDIA A100, 40960, 1\n",
                           "-1, NVIDIA A100, 40960, 1\n", "0, a, b, 1, 2\n"}) {
    const auto gpus = ParseGpus(text);
    ASSERT_TRUE(absl::IsUnavailable(gpus.status())) << text;
    EXPECT_THAT(std::string(gpus.status().message()), HasSubstr("nvidia-smi says what is no GPU: \""));
  }
}

}  // namespace
}  // namespace muster
