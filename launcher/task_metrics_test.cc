#include "launcher/task_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(TaskMetrics, AreReadWithTheirLabels) {
  const auto samples = ParseMetrics(
      "# HELP a_total What.\n# TYPE a_total counter\na_total 3\n\n"
      "b{task=\"ps:0\",path=\"C:\\\\x\\\"y\"} -2.5e-3\nc_bucket{le=\"+Inf\"} +Inf\nd{} 1");
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 4u);
  EXPECT_EQ(samples->at(0).name, "a_total");
  EXPECT_EQ(samples->at(0).value, 3);
  EXPECT_EQ(samples->at(1).labels.at("task"), "ps:0");
  EXPECT_EQ(samples->at(1).labels.at("path"), "C:\\x\"y");
  EXPECT_EQ(samples->at(1).value, -2.5e-3);
  EXPECT_EQ(samples->at(2).labels.at("le"), "+Inf");
  for (const std::string line : {"a", "a{", "a{b", "a{b=\"", "a{b=\"c", "a{b=\"c\\", "a{b=\"c\"",
                                 "a{b=\"c\"}", "a{b=\"c\"}1", "a x", " 1", "{} 1", "a{b=\"\x1b[2J\"} 1"}) {
    const auto bad = ParseMetrics("good 1\n" + line + "\n");
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2 is no metric")) << line;
  }
}

TEST(TaskMetrics, BecomeTables) {
  const auto worker = ParseMetrics(
      "muster_worker_step 70\nmuster_worker_steps_total 20\nmuster_worker_sent_bytes_total "
      "NaN\nmuster_worker_samples_total 200\n"
      "muster_worker_step_seconds_count{phase=\"compute\"} 20\n"
      "muster_worker_step_seconds_sum{phase=\"compute\"} 0.05\n"
      "muster_worker_step_seconds_count{phase=\"push\"} 0\nmuster_worker_step_seconds_sum{phase=\"push\"} 0\n"
      "muster_worker_step_seconds_count{phase=\"wait\"} 1\n"
      "muster_worker_step_seconds_sum{phase=\"wait\"} NaN\n"
      "muster_worker_waiting_seconds{shard=\"0\"} 0\nmuster_worker_waiting_seconds{shard=\"1\"} 4.23\n"
      "process_resident_memory_bytes 61000000\n");
  const auto server = ParseMetrics(
      "muster_ps_primary{shard=\"0\"} 1\nmuster_ps_step{shard=\"0\"} 70\nmuster_ps_held_pushes{shard=\"0\"} "
      "1\n"
      "muster_ps_primary{shard=\"1\"} 0\nmuster_ps_step{shard=\"1\"} 69\n"
      "muster_ps_checkpoint_age_seconds{shard=\"0\"} 12\n"
      "muster_ps_awaited_seconds{shard=\"0\",worker=\"worker:1\"} 12.3\n"
      "muster_ps_pushes_received_total{shard=\"0\",worker=\"worker:1\"} 75\n"
      "muster_ps_pushes_received_total{shard=\"1\",worker=\"worker:1\"} 0\n"
      "muster_ps_pushes_total{shard=\"0\",worker=\"worker:1\",outcome=\"applied\"} 70\n"
      "muster_ps_pushes_total{shard=\"0\",worker=\"worker:1\",outcome=\"stale\"} 4\n"
      "muster_ps_push_staleness_steps_bucket{shard=\"0\",worker=\"worker:1\",le=\"0\"} 60\n"
      "muster_ps_push_staleness_steps_bucket{shard=\"0\",worker=\"worker:1\",le=\"1\"} 60\n"
      "muster_ps_push_staleness_steps_bucket{shard=\"0\",worker=\"worker:1\",le=\"2\"} 69\n"
      "muster_ps_push_staleness_steps_bucket{shard=\"0\",worker=\"worker:1\",le=\"+Inf\"} 70\n");
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE(server.ok()) << server.status();
  const MetricsTables tables = MakeMetricsTables({{"ps:0", *server}, {"worker:1", *worker}});
  EXPECT_EQ(
      tables.workers.ToText(),
      "TASK      STEP  STEPS  SAMPLES  COMPUTE  PUSH  WAIT  PULL  SENT  RECEIVED  MEMORY  WAITS FOR\n"
      "worker:1  70    20     200      2.5 ms                                     61 MB   ps:1 (4.2 s)\n");
  EXPECT_EQ(
      tables.shards.ToText(),
      "TASK  SHARD  ROLE     STEP  HELD  QUEUED  CHECKPOINT AGE  SENT  RECEIVED  MEMORY  WAITS FOR\n"
      "ps:0  0      primary  70    1             12 s                                    worker:1 (12 s)\n"
      "ps:0  1      backup   69                                                          \n");
  EXPECT_EQ(tables.pushes.ToText(),
            "TASK  SHARD  WORKER    RECEIVED  APPLIED  STALE  DUPLICATE  REJECTED  STALENESS\n"
            "ps:0  0      worker:1  75        70       4                           0: 60, 2: 9, +Inf: 1\n");
}

}  // namespace
}  // namespace muster
