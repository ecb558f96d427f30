#include "launcher/bench/results_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/bench/results_testing.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ResultsTable, ShowsEveryCell) {
  Measurement measurement = Measured(Strategy::kSyncServers, 4, 1000, {.servers_on_workers = true});
  measurement.scaling_efficiency = 0.8;
  measurement.test_accuracy = 0.97;
  measurement.seconds_to_target = 12.5;
  measurement.bound_step_seconds = 0.3;
  measurement.predicted_step_seconds = 0.44;
  Measurement other = Measured(Strategy::kAllReduce, 4, 2000, {.link_bytes_per_second = 0});
  other.predicted_step_seconds = 0.19;
  const Table table = ResultsTable(
      {.measurements = {measurement, other, Failed(Strategy::kHybrid, 2, "worker:1\nwas lost")}});
  EXPECT_EQ(
      table.ToText(),
      "MODEL      LINK               STRATEGY   WORKERS  K  SERVERS     STEP    SAMPLES/S  EFFICIENCY  SENT  "
      "  "
      "RECEIVED  CPU      ACCURACY  TO TARGET  BOUND   OF BOUND  PREDICTED  OFF BY  ERROR\n"
      "mnist_mlp  1 Gbit/s           ps_sync    4        2  on workers  400 ms  1000       80 %        2.1 "
      "MB  "
      "2.2 MB    10.0 ms  0.9700    12.5 s     300 ms  75 %      440 ms     +10 %   \n"
      "mnist_mlp  links as they are  allreduce  4                       200 ms  2000                   2.1 "
      "MB  "
      "2.2 MB    10.0 ms                                         190 ms     -5.0 %  \n"
      "mnist_mlp  1 Gbit/s           hybrid     2        2  own hosts                                        "
      "  "
      "                                                                             worker:1 was lost\n");
  const auto json = nlohmann::json::parse(table.ToJson());
  EXPECT_EQ(json[0]["step"], 0.4);
  EXPECT_NEAR(json[0]["off_by"].get<double>(), 0.1, 1e-9);
  EXPECT_EQ(json[0]["k"], 2);
  EXPECT_EQ(json[1]["k"], nullptr);
  EXPECT_EQ(json[2]["error"], "worker:1 was lost");
}

TEST(ResultsTable, ShowsTheBusiestHostAndTheBandwidths) {
  Measurement measurement = Measured(Strategy::kAllReduce, 2, 1000);
  measurement.hosts = {{.host = "a", .busy_processors = 1.2, .sent_bytes_per_second = 9e6},
                       {.host = "b", .busy_processors = 0.5, .received_bytes_per_second = 1.5e7}};
  measurement.algorithm_bytes_per_second = 30e6;
  measurement.bus_bytes_per_second = 45e6;
  const auto json = nlohmann::json::parse(ResultsTable({.measurements = {measurement}}).ToJson());
  EXPECT_EQ(json[0]["host_cpu"], 1.2);
  EXPECT_EQ(json[0]["host_net"], 1.5e7);
  EXPECT_EQ(json[0]["algbw"], 30e6);
  EXPECT_EQ(json[0]["busbw"], 45e6);
  EXPECT_THAT(ResultsTable({.measurements = {measurement}}).ToText(), HasSubstr("120 %     15 MB/s"));
}

TEST(ResultsTable, ShowsTheRangeOfTheRepetitions) {
  Measurement measurement = Measured(Strategy::kAllReduce, 2, 1000);
  measurement.step_seconds = {0.21, 0.19, 0.4};
  const Table table = ResultsTable({.measurements = {measurement}});
  EXPECT_EQ(table.header()[5], "STEP RANGE");
  EXPECT_EQ(table.rows()[0][5].text, "190 ms to 400 ms");
}

TEST(ResultsTable, SaysWhatWasFitted) {
  Measurement measurement = Measured(Strategy::kAllReduce, 2, 1000);
  measurement.predicted_step_seconds = 0.2002;
  measurement.is_fitted = true;
  const Results results = {.measurements = {measurement}};
  EXPECT_EQ(ResultsTable(results).rows()[0].back().text, "+0.1 % (fitted)");
  EXPECT_THAT(ResultsText(results, 20), HasSubstr("  1000       fitted\n"));
}

// Its bound is what it took.
TEST(ResultsTable, SaysWhichCellGaveTheRateOfTheLinks) {
  Measurement measurement = Measured(Strategy::kAllReduce, 2, 1000);
  measurement.bound_step_seconds = 0.199;
  measurement.bound_link_bytes_per_second = 1e8;
  const auto of_bound = [&] { return ResultsTable({.measurements = {measurement}}).rows()[0].back().text; };
  EXPECT_EQ(of_bound(), "100 %");
  measurement.is_fitted = true;
  EXPECT_EQ(of_bound(), "gave the rate");
  const auto json = nlohmann::json::parse(ResultsTable({.measurements = {measurement}}).ToJson());
  EXPECT_TRUE(json[0]["of_bound"].is_null());
}

// An asynchronous step is of one worker.
TEST(ResultsTable, ComparesProcessorsForAGradientOfEachWorker) {
  const Results results = {
      .measurements = {Measured(Strategy::kAsyncServers, 4, 1000), Measured(Strategy::kAllReduce, 4, 1000)}};
  const auto json = nlohmann::json::parse(ResultsTable(results).ToJson());
  EXPECT_EQ(json[0]["cpu"], 0.04);
  EXPECT_EQ(json[1]["cpu"], 0.01);
}

TEST(ResultsText, IsTheWholeTableWhereItFits) {
  const Results results = {.measurements = {Measured(Strategy::kAllReduce, 2, 1000)}};
  const std::string all = ResultsTable(results).ToText();
  const size_t width = all.size() - all.find('\n') - 2;  // the second line is longer
  EXPECT_EQ(ResultsText(results), all);
  EXPECT_EQ(ResultsText(results, width), all);
  EXPECT_NE(ResultsText(results, width - 1), all);
}

TEST(ResultsText, HasWhatMattersMostForANarrowTerminal) {
  Measurement measurement =
      Measured(Strategy::kBackupWorkers, 4, 1000, {.servers = 1, .servers_on_workers = true});
  measurement.bound_step_seconds = 0.3;
  measurement.predicted_step_seconds = 0.44;
  const Measurement failed = Failed(Strategy::kHybrid, 2, "worker:1\nwas lost");
  const Measurement other = Measured(Strategy::kAllReduce, 4, 2000, {.model = "a\tb"});
  const std::string text = ResultsText({.measurements = {measurement, failed, other}}, 80);
  EXPECT_EQ(text,
            "mnist_mlp over 1 Gbit/s\n"
            "STRATEGY                       WORKERS  STEP    SAMPLES/S  BOUND   PREDICTED\n"
            "ps_backup (k = 1, on workers)  4        400 ms  1000       300 ms  440 ms\n"
            "hybrid (k = 2, own hosts), 2 workers: worker:1 was lost\n"
            "\n"
            "a b over 1 Gbit/s\n"
            "STRATEGY   WORKERS  STEP    SAMPLES/S\n"
            "allreduce  4        200 ms  2000\n");
}

TEST(ResultsSections, AreByModelAndLinkWithTheSameColumns) {
  Measurement measurement = Measured(Strategy::kSyncServers, 4, 1000);
  measurement.bound_step_seconds = 0.3;
  const auto sections =
      ResultsSections({.measurements = {measurement, Measured(Strategy::kAllReduce, 1, 50, {.model = "b"}),
                                        Failed(Strategy::kHybrid, 2, "lost")}});
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].title, "mnist_mlp over 1 Gbit/s");
  EXPECT_EQ(sections[1].title, "b over 1 Gbit/s");
  for (const TableSection& section : sections) {
    EXPECT_THAT(section.table.header(), ElementsAre("STRATEGY, WORKERS", "STEP", "SAMPLES/S", "SENT",
                                                    "RECEIVED", "CPU", "BOUND", "OF BOUND"));
  }
  EXPECT_EQ(sections[0].table.rows()[0][0].text, "ps_sync (k = 2, own hosts), 4 workers");
  EXPECT_THAT(sections[0].failures, ElementsAre("", "lost"));
}

TEST(ResultsSections, OfFailuresHaveTheirErrors) {
  const auto sections = ResultsSections({.measurements = {Failed(Strategy::kHybrid, 2, "lost")}});
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_THAT(sections[0].table.header(), ElementsAre("STRATEGY, WORKERS", "ERROR"));
  EXPECT_TRUE(ResultsSections({}).empty());
}

TEST(HostsSections, HaveEachHostOfEachCell) {
  Measurement measurement = Measured(Strategy::kSyncServers, 1, 1000);
  measurement.hosts = {{.host = "a", .tasks = "worker:0", .busy_processors = 0.5},
                       {.host = "b", .tasks = "ps:0, ps:1", .sent_bytes_per_second = 2e6}};
  Measurement failed = measurement;
  failed.error = "lost";
  const auto sections = HostsSections({.measurements = {measurement, failed}});
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].title, "mnist_mlp over 1 Gbit/s");
  EXPECT_EQ(sections[0].table.ToText(),
            "STRATEGY, WORKERS                     HOST  TASKS       CPU   SENT      RECEIVED\n"
            "ps_sync (k = 2, own hosts), 1 worker  a     worker:0    50 %            \n"
            "ps_sync (k = 2, own hosts), 1 worker  b     ps:0, ps:1  0 %   2.0 MB/s  \n");
  EXPECT_TRUE(HostsSections({.measurements = {failed}}).empty());
}

TEST(ResultsTable, LeavesOutWhatNoCellHas) {
  const Table table = ResultsTable({.measurements = {Measured(Strategy::kAllReduce, 1, 50)}});
  EXPECT_THAT(table.header(), ElementsAre("MODEL", "LINK", "STRATEGY", "WORKERS", "STEP", "SAMPLES/S", "SENT",
                                          "RECEIVED", "CPU"));
  EXPECT_TRUE(ResultsTable({}).empty());
}

TEST(ResultsTable, MovesNoCursor) {
  Measurement failed = Failed(Strategy::kAllReduce, 1, "\x1b[2J\rlost\x7f");
  failed.cell.model = "a\tb";
  const std::string text = ResultsTable({.measurements = {failed}}).ToText();
  EXPECT_THAT(text, HasSubstr(" [2J lost \n"));
  EXPECT_THAT(text, HasSubstr("a b "));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(ResultsTable, SaysThatThereAreNoNumbers) {
  const Measurement nothing = {.cell = MakeCell(Strategy::kAllReduce, 1)};
  EXPECT_THAT(ResultsTable({.measurements = {nothing}}).ToText(), HasSubstr("no numbers"));
}

TEST(ResultsTable, SaysWhyTheTimeToTheTargetIsNotKnown) {
  Measurement measurement = Measured(Strategy::kAllReduce, 1, 50);
  measurement.target_error = "worker:1\nwas lost";
  const Measurement other = Measured(Strategy::kAllReduce, 2, 90);
  const Table table = ResultsTable({.measurements = {measurement, other}});
  EXPECT_EQ(table.header().back(), "ERROR");
  EXPECT_EQ(table.rows()[0].back().text, "to target: worker:1 was lost");
  EXPECT_EQ(table.rows()[1].back().text, "");
}

TEST(ResultsTable, SaysWhatFailedWhereOtherRepetitionsHaveNumbers) {
  Measurement measurement = Measured(Strategy::kAllReduce, 1, 50);
  measurement.failures = 1;
  measurement.failure = "worker:1\nwas lost";
  const Results results = {.measurements = {measurement}};
  const std::string said = "1 of its jobs failed: worker:1 was lost";
  EXPECT_EQ(ResultsTable(results).rows()[0].back().text, said);
  EXPECT_EQ(ResultsSections(results)[0].table.rows()[0].back().text, said);
  EXPECT_THAT(ResultsText(results, 20), HasSubstr("\nallreduce, 1 worker: " + said + "\n"));

  measurement.failure = "to target: lost";
  measurement.target_error = "lost";
  EXPECT_EQ(ResultsTable({.measurements = {measurement}}).rows()[0].back().text,
            "1 of its jobs failed: to target: lost");
}

TEST(ResultsView, SaysNumbersInShort) {
  EXPECT_EQ(AmountText(0.523), "0.52");
  EXPECT_EQ(AmountText(81.26), "81.3");
  EXPECT_EQ(AmountText(99999), "99999");
  EXPECT_EQ(AmountText(1.24e6), "1.2M");
  EXPECT_EQ(AmountText(3e21), "3e+09T");
  EXPECT_EQ(SecondsText(2.514e-6), "2.51 us");
  EXPECT_EQ(SecondsText(0.99949), "999 ms");
  EXPECT_EQ(SecondsText(0.9996), "1.00 s");
  EXPECT_EQ(SecondsText(2136.4), "2136 s");
  EXPECT_EQ(PercentText(0.034), "3.4 %");
  EXPECT_EQ(PercentText(-0.12), "-12 %");
  EXPECT_EQ(PercentText(0), "0 %");
  EXPECT_EQ(PercentText(-0.0004), "0 %");
  EXPECT_EQ(PercentText(-0.0006), "-0.1 %");
  EXPECT_EQ(LinkText(125e6), "1 Gbit/s");
  EXPECT_EQ(LinkText(3.125e6), "25 Mbit/s");
  EXPECT_EQ(BytesText(-1), "0 B");
  EXPECT_EQ(BytesText(1e300), "1000000 TB");
  EXPECT_EQ(ListText({"a", "b", "c"}), "a, b and c");
  EXPECT_EQ(ListText({}), "");
}

}  // namespace
}  // namespace muster::bench
