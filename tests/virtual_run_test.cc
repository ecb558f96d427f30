// Jobs on virtual hosts, run as `muster run` runs them: agents and trainers in network namespaces, without
// sshd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "inventory/job.h"
#include "launcher/job_store.h"
#include "launcher/plan.h"
#include "launcher/runner.h"
#include "launcher/running_job.h"
#include "launcher/virtual_hosts.h"
#include "tests/support/checkout.h"

namespace muster {
namespace {

using Json = nlohmann::json;

class Logs final : public RunObserver {
 public:
  void OnView(const reconcile::View&) override {}
  void OnHostFacts(const HostFacts& facts) override {
    const auto& addresses = facts.facts.addresses();
    addresses_[facts.host] = {addresses.begin(), addresses.end()};
  }
  void OnNotice(const std::string&) override {}
  void OnUpload(const UploadStep&) override { ++uploads_; }
  void OnLog(const std::string&, const std::string& bytes, bool) override { text_ += bytes; }
  void OnTraining(const TrainingPoint&) override {}

  const std::string& text() const { return text_; }
  int uploads() const { return uploads_; }
  const std::map<std::string, std::vector<std::string>>& addresses() const { return addresses_; }

 private:
  std::string text_;
  int uploads_ = 0;
  std::map<std::string, std::vector<std::string>> addresses_;
};

class VirtualRun : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
    std::signal(SIGPIPE, SIG_IGN);
    auto hosts = VirtualHosts::Create(
        {.count = 2, .rate = {.bits_per_second = 1'000'000'000}, .folder = folder_.path()});
    ASSERT_TRUE(hosts.ok()) << hosts.status();
    hosts_ = *std::move(hosts);
  }

  // The result record of a job on the hosts; the job file says so much about it.
  Json RunJobOf(const std::string& lines) {
    const std::filesystem::path agent_path = BuildPath("bin/muster-agent");
    const Installation installation{.agent = agent_path,
                                    .trainer = agent_path.parent_path().parent_path() / "lib/muster/trainer"};
    const auto agent = LoadAgentProgram(installation);
    EXPECT_TRUE(agent.ok()) << agent.status();
    const auto job = ParseJob("name: virtual\nmodel: mnist_softmax\n" + lines +
                                  "train: {steps: " + std::to_string(kSteps) + ", batch_size: 20}\n",
                              "job.yaml", "/");
    EXPECT_TRUE(job.ok()) << job.status();
    auto plan = MakePlan(*job, hosts_->inventory(), {.installation = installation});
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(BeginJob(&plan->record).ok());
    const JobStore store(folder_.path() / "launcher");
    const RunOptions options{.connect = {.agent = &*agent, .local_hosts = hosts_->local_hosts()},
                             .run_deadline = std::chrono::minutes(2)};
    const auto result = RunJob(store, plan->record, plan->contents, options, logs_);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->outcome.exit_code, 0) << result->outcome.message << "\n" << logs_.text();
    return Json::parse(result->result_json, nullptr, /*allow_exceptions=*/false);
  }

  // So much has left a host through its link.
  int64_t BytesSent(int host) {
    const auto transport = MakeLocalTransport(hosts_->local_hosts().at(VirtualHosts::Name(host)));
    const auto result = RunOnHost(*transport, "awk '/eth0:/ {print $10}' /proc/net/dev", "",
                                  Now() + std::chrono::seconds(60));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? std::stoll(result->stdout_text) : 0;
  }

  static constexpr int kSteps = 100;
  static constexpr int64_t kGradientBytes = (784 * 10 + 10) * 4;

  TemporaryDirectory folder_;
  std::unique_ptr<VirtualHosts> hosts_;
  Logs logs_;
};

TEST_F(VirtualRun, WorkersAllReduceOverTheirLinks) {
  const Json result = RunJobOf("strategy: allreduce\nreplicas: {worker: {count: 2}}\n");
  EXPECT_EQ(result["strategy"], "allreduce");
  EXPECT_EQ(result["workers"], 2);
  EXPECT_EQ(result["steps"], kSteps);
  EXPECT_EQ(result["platform"], "local");
  EXPECT_GT(result["test_accuracy"], 0.5);
  // Of two ranks each sends the other all of its gradient, or half of it and half of the sum. In shared
  // memory they would send nothing.
  for (int host = 0; host < 2; ++host) EXPECT_GT(BytesSent(host), kSteps * kGradientBytes) << host;
  for (int host = 0; host < 2; ++host) {
    EXPECT_THAT(logs_.addresses().at(VirtualHosts::Name(host)),
                testing::ElementsAre(VirtualHosts::Address(host)));
  }
}

TEST_F(VirtualRun, AWorkerReachesItsServerOverTheirLinks) {
  const Json result = RunJobOf("update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n");
  EXPECT_EQ(result["strategy"], "parameter_server");
  EXPECT_EQ(result["steps"], kSteps);
  for (int host = 0; host < 2; ++host) EXPECT_GT(BytesSent(host), kSteps * kGradientBytes) << host;
}

TEST_F(VirtualRun, ASecondJobFindsWhatTheFirstBrought) {
  const std::string job = "strategy: allreduce\nreplicas: {worker: {count: 2}}\n";
  const Json first = RunJobOf(job);
  const int uploads = logs_.uploads();
  EXPECT_GT(uploads, 0);
  const Json second = RunJobOf(job);
  EXPECT_EQ(logs_.uploads(), uploads);
  EXPECT_TRUE(first["parameters_crc32c"].is_string()) << first;
  EXPECT_EQ(second["parameters_crc32c"], first["parameters_crc32c"]);
}

}  // namespace
}  // namespace muster
