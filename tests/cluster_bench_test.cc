// `muster bench` on the hosts of an inventory, over SSH.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kUnreachable = 69;

class ClusterBench : public ::testing::Test {
 protected:
  // Trains on the synthetic set, wherever the test runs.
  ClusterBench() { ::unsetenv("MUSTER_DATA"); }

  CommandResult Bench(MusterCluster& cluster) const {
    return cluster.Muster({"bench", "-i", cluster.inventory(), "--folder", cluster.Path("bench"), "--models",
                           "mnist_softmax", "--strategies", "ps_sync,allreduce", "--workers", "1,2", "--ps",
                           "1", "--steps", "20", "--repeat", "1"},
                          std::chrono::minutes(3));
  }
};

TEST_F(ClusterBench, EveryCellRunsOnTheHosts) {
  MusterCluster cluster(3);
  const CommandResult run = Bench(cluster);
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text, AllOf(HasSubstr("ps_sync"), HasSubstr("allreduce")));
  const Json results = Json::parse(cluster.Text("bench/results.json"));
  EXPECT_THAT(results["where"].get<std::string>(), HasSubstr("3 hosts of "));
  ASSERT_EQ(results["links"].size(), 1u);
  EXPECT_GT(results["links"][0]["latency_seconds"], 0);
  ASSERT_EQ(results["measurements"].size(), 4u);
  for (const Json& measurement : results["measurements"]) {
    SCOPED_TRACE(measurement.dump());
    EXPECT_EQ(measurement["error"], "");
    EXPECT_GT(measurement["samples_per_second"], 0);
    const int workers = measurement["cell"]["workers"];
    ASSERT_GE(measurement["hosts"].size(), workers);
    for (int worker = 0; worker < workers; ++worker) {
      const Json& host = measurement["hosts"][worker];
      EXPECT_EQ(host["host"], "host-" + std::to_string(worker + 1));
      EXPECT_EQ(host["tasks"], "worker:" + std::to_string(worker));
      EXPECT_GT(host["busy_processors"], 0);
      EXPECT_TRUE(host["sent_bytes_per_second"].is_null()) << "the loopback is no network";
    }
  }
  EXPECT_THAT(cluster.Text("bench/report.html"), AllOf(HasSubstr("<svg"), HasSubstr("host-2")));
}

TEST_F(ClusterBench, AHostThatIsNotThereIsNamedBeforeAnythingIsRun) {
  MusterCluster cluster(3);
  cluster.hosts().Kill("host-2");
  const CommandResult run = Bench(cluster);
  EXPECT_EQ(run.exit_code, kUnreachable);
  EXPECT_THAT(run.stderr_text, AllOf(HasSubstr("host-2"), HasSubstr("1 of 3 hosts cannot be used")));
  EXPECT_FALSE(std::filesystem::exists(cluster.Path("bench")));
}

}  // namespace
}  // namespace muster
