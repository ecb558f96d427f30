#include "launcher/bench/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using Json = nlohmann::json;

// Of every object in it, with those below.
int Fields(const Json& json) {
  int fields = 0;
  for (const auto& [key, value] : json.items()) {
    fields += (json.is_object() ? 1 : 0) + (value.is_structured() ? Fields(value) : 0);
  }
  return fields;
}

TEST(Results, AreWrittenWithEveryFieldUnderItsName) {
  const Results results = FullResults();
  const Json json = Json::parse(ToJson(results));
  EXPECT_EQ(json["schema_version"], 7);
  EXPECT_EQ(json["where"], results.where);
  EXPECT_EQ(json["is_complete"], false);
  EXPECT_EQ(json["unfinished"], "interrupted");
  EXPECT_EQ(json["compute_seconds_per_step"], 0.05);
  const Json& measurement = json["measurements"][0];
  EXPECT_EQ(measurement["cell"]["strategy"], "ps_sync");
  EXPECT_EQ(measurement["step_seconds"], results.measurements[0].step_seconds) << "bit for bit";
  EXPECT_EQ(measurement["hosts"][0]["received_bytes_per_second"], 12e6);
  EXPECT_EQ(json["measurements"][1]["error"], "worker:1 was lost");
  EXPECT_EQ(json["curves"][0]["points"][1]["workers"], 1000);
  EXPECT_EQ(json["measurements"][0]["target_gap_seconds"], 0.6);
  EXPECT_EQ(json["unpredicted"][0]["why"], "no allreduce");
  EXPECT_EQ(Fields(json), 16 + 2 + 2 * (23 + 6) + 5 + (2 + 6 + 2 * 2) + 3);
}

TEST(Results, HaveNullForWhatIsNotKnown) {
  const Json json = Json::parse(ToJson({.measurements = {Failed(Strategy::kHybrid, 2, "lost")}}));
  EXPECT_EQ(json["is_complete"], true);
  for (const char* name :
       {"compute_seconds_per_step", "target_accuracy", "median_prediction_error", "noise"}) {
    EXPECT_TRUE(json[name].is_null()) << name;
  }
  EXPECT_TRUE(json["measurements"][0]["predicted_step_seconds"].is_null());
  EXPECT_EQ(Json::parse(ToJson({.compute_seconds_per_step = 0}))["compute_seconds_per_step"], 0)
      << "a wait of nothing is one";
}

TEST(Results, WithWhatJsonCannotHoldAreWrittenAllTheSame) {
  Results results = FullResults();
  results.where =
      "a\xff"
      "b";
  results.measurements[1].samples_per_second = std::numeric_limits<double>::quiet_NaN();
  const Json json = Json::parse(ToJson(results));
  EXPECT_EQ(json["where"],
            "a\xef\xbf\xbd"
            "b");
  EXPECT_TRUE(json["measurements"][1]["samples_per_second"].is_null());
}

TEST(Results, NamesOfStrategiesComeBack) {
  for (const Strategy strategy : {Strategy::kAsyncServers, Strategy::kSyncServers, Strategy::kBackupWorkers,
                                  Strategy::kAllReduce, Strategy::kHybrid}) {
    EXPECT_EQ(ParseStrategy(StrategyName(strategy)).value(), strategy);
  }
  EXPECT_EQ(StrategyName(Strategy::kBackupWorkers), "ps_backup");
  EXPECT_FALSE(ParseStrategy("").ok());
}

TEST(Results, MedianStepIsThatOfTheRepetitions) {
  const auto median = [](std::vector<double> seconds) {
    return Measurement{.step_seconds = std::move(seconds)}.median_step_seconds();
  };
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 8}), 3);
  EXPECT_EQ(median({1.6e308, 1.6e308}), 1.6e308);  // their sum is infinite
  EXPECT_TRUE(std::isnan(median({1, std::numeric_limits<double>::quiet_NaN(), 2})));
}

}  // namespace
}  // namespace muster::bench
