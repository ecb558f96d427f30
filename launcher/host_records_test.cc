#include "launcher/host_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(RecordOf, NamesKeysAsTheyAreFoundFromAnywhere) {
  const std::string here = std::filesystem::current_path().string();
  const Host host{.name = "gpu-1",
                  .identities = {"keys/../keys/train", "/key", "none"},
                  .jumps = {{.name = "gate", .identities = {"keys/gate", "none"}}}};
  const record::Host record = RecordOf(host);
  EXPECT_THAT(record.identities(), ElementsAre(here + "/keys/train", "/key", "none"));
  EXPECT_THAT(record.jumps(0).identities(), ElementsAre(here + "/keys/gate", "none"));
  EXPECT_EQ(RecordOf(HostOf(record)).SerializeAsString(), record.SerializeAsString());
}

}  // namespace
}  // namespace muster
