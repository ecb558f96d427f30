#include "launcher/host_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(NamesOf, TakesNamesOfFilesAndNoOtherPath) {
  agent::ListFilesResponse response;
  EXPECT_THAT(*NamesOf(response), testing::IsEmpty());
  response.add_names("events.out.tfevents.1.host-1");
  response.add_names("..a b");
  EXPECT_THAT(*NamesOf(response), testing::ElementsAre("events.out.tfevents.1.host-1", "..a b"));
  for (const std::string name : {"", ".", "..", "../record.pb", "a/b", "/etc/passwd", "a/"}) {
    agent::ListFilesResponse bad = response;
    bad.add_names(name);
    EXPECT_EQ(NamesOf(bad).status().code(), absl::StatusCode::kDataLoss) << name;
  }
}

}  // namespace
}  // namespace muster
