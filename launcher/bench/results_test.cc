#include "launcher/bench/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string ErrorOf(const Json& json) { return std::string(FromJson(json.dump()).status().message()); }

// Of every field, "measurements[0].cell.workers", and where it stands.
void ForEachField(const Json& json, const std::string& place, const Json::json_pointer& at,
                  const std::function<void(const std::string&, const Json::json_pointer&)>& call) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = json.is_array() ? place + "[" + key + "]"
                             : place.empty() ? key
                                             : place + "." + key;
    const Json::json_pointer below =
        json.is_array() ? at / static_cast<size_t>(std::stoul(key)) : at / std::string(key);
    call(name, below);
    if (value.is_structured()) ForEachField(value, name, below, call);
  }
}

TEST(Results, ComeBackBitForBit) {
  const Results results = FullResults();
  const auto read = FromJson(ToJson(results));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, results);
  EXPECT_EQ(ToJson(*read), ToJson(results));
  const auto empty = FromJson(ToJson({}));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(*empty, Results());
}

TEST(Results, AreNotReadWithoutAField) {
  const Json json = Json::parse(ToJson(FullResults()));
  int fields = 0;
  ForEachField(json, "", Json::json_pointer(), [&](const std::string& name, const Json::json_pointer& at) {
    Json less = json;
    if (json[at.parent_pointer()].is_array()) return;
    less[at.parent_pointer()].erase(at.back());
    EXPECT_EQ(ErrorOf(less), "bench results: " + name + " is missing");
    ++fields;
  });
  EXPECT_EQ(fields, 14 + 2 + 2 * (22 + 6) + 5 + (2 + 6 + 2 * 2) + 2 * (1 + 6));
}

TEST(Results, AreNotReadWithAFieldOfAnotherType) {
  const Json json = Json::parse(ToJson(FullResults()));
  ForEachField(json, "", Json::json_pointer(), [&](const std::string& name, const Json::json_pointer& at) {
    for (const Json& other :
         {Json(7), Json(-7), Json(true), Json("seven"), Json::array({-1}), Json::object(), Json()}) {
      const Json was = json[at];
      const bool can_be_null =
          name.ends_with("target_accuracy") || name.ends_with("test_accuracy") ||
          name.ends_with("seconds_to_target") || name == "median_prediction_error" || name == "noise" ||
          name.ends_with("predicted_step_seconds") || name.ends_with("latency_seconds") ||
          name.ends_with("communication_seconds") || name.ends_with("algorithm_bytes_per_second") ||
          name.ends_with("bus_bytes_per_second") || name.ends_with("bound_link_bytes_per_second") ||
          name.ends_with("sent_bytes_per_second") || name.ends_with("received_bytes_per_second");
      if (other.type() == was.type() || (other == 7 && (was.is_number() || can_be_null)) ||
          (other.is_null() && can_be_null))
        continue;
      Json changed = json;
      changed[at] = other;
      EXPECT_THAT(ErrorOf(changed), HasSubstr("bench results: " + name)) << other;
    }
  });
}

TEST(Results, AreNotReadWithNumbersOutOfRange) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = Json::parse(ToJson(FullResults()));
    json[Json::json_pointer(pointer)] = value;
    return ErrorOf(json);
  };
  EXPECT_EQ(with("/measurements/0/cell/workers", 0),
            "bench results: measurements[0].cell.workers is 0, which is out of range");
  EXPECT_EQ(with("/measurements/0/cell/workers", 1'000'000'000'000),
            "bench results: measurements[0].cell.workers is 1000000000000, which is out of range");
  EXPECT_EQ(with("/measurements/0/cell/workers", 1.5),
            "bench results: measurements[0].cell.workers is not a whole number");
  EXPECT_EQ(with("/curves/0/points/1/samples_per_second", -0.5),
            "bench results: curves[0].points[1].samples_per_second is -0.5, which is negative");
  EXPECT_EQ(with("/measurements/0/step_seconds/2", "x"),
            "bench results: measurements[0].step_seconds[2] is not a number");
  EXPECT_EQ(
      with("/crossings/0/faster/strategy", "ps"),
      "bench results: crossings[0].faster.strategy is not one: there is no strategy 'ps', only ps_async, "
      "ps_sync, ps_backup, allreduce, hybrid");
}

TEST(Results, OfAnotherVersionAreRefusedWithBoth) {
  Json json = Json::parse(ToJson(FullResults()));
  json["schema_version"] = 1;
  json.erase("measurements");  // what it lacks does not matter then
  EXPECT_EQ(ErrorOf(json), "bench results: schema_version is 1, and this muster reads 6");
}

TEST(Results, CutOffAnywhereAreAnError) {
  const std::string text = ToJson(FullResults());
  for (size_t length = 0; length + 2 < text.size(); ++length) {  // the last two are "}\n"
    EXPECT_EQ(FromJson(text.substr(0, length)).status().message(),
              "bench results: not a JSON object, or cut off");
  }
  EXPECT_TRUE(FromJson(text.substr(0, text.size() - 1)).ok());
}

// Each byte is another one: an error or other results, and never a crash.
TEST(Results, SpoiledAnywhereAreReadOrRefused) {
  const std::string text = ToJson(FullResults());
  int refused = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char other : {'9', '"', '[', '-', '\0', '\xff'}) {
      std::string spoiled = text;
      spoiled[i] = other;
      const auto read = FromJson(spoiled);
      refused += read.ok() ? 0 : 1;
      EXPECT_TRUE(!read.ok() || FromJson(ToJson(*read)).ok()) << i << other;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Results, WithWhatJsonCannotHoldAreWrittenAllTheSame) {
  Results results = FullResults();
  results.where =
      "a\xff"
      "b";
  const auto read = FromJson(ToJson(results));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->where,
            "a\xef\xbf\xbd"
            "b");
  results.measurements[1].samples_per_second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FromJson(ToJson(results)).status().message(),
            "bench results: measurements[1].samples_per_second is not a number");
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
