#include "launcher/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// As a trainer writes it; `changes` replace what it has.
Json Record(const Json& changes = Json::object()) {
  Json record = Json::parse(R"({
    "schema_version": 1, "model": "mnist_mlp", "variant": null, "strategy": "parameter_server",
    "update_mode": "async", "workers": 2, "ps": 1, "seed": 1, "steps": 1000, "samples": 200000,
    "batch_size": 100, "seconds_to_first_step": 0.5, "seconds_training": 8.0,
    "samples_per_second": 25000.0, "steps_per_second": 125.0, "train_loss": 0.25, "test_loss": 0.3,
    "test_accuracy": 0.9, "test_auc": null, "parameter_bytes": 1600000, "bytes_pushed": 1000000,
    "bytes_pulled": 2000000, "chief_steps": 500,
    "pushes": {"received": 1000, "applied": 1000, "stale": 0, "duplicate": 0, "rejected": 0},
    "parameters_crc32c": "0000abcd", "device": "cpu", "instruction_set": "avx512", "threads": 1,
    "program_sha256": "0123456789abcdef0123", "hosts": ["10.0.0.1", "10.0.0.2"], "platform": "ssh"})");
  record.update(changes);
  return record;
}

Comparison::Measure MeasureOf(const Comparison& comparison, const std::string& field) {
  for (const Comparison::Measure& measure : comparison.measures) {
    if (measure.field == field) return measure;
  }
  return {};
}

std::string ErrorOf(const std::string& text) {
  return std::string(ParseResultRecord(text).status().message());
}

TEST(ResultRecord, IsReadIfThisMusterKnowsItsVersion) {
  EXPECT_EQ(*ParseResultRecord(Record().dump()), Record());
  EXPECT_EQ(ErrorOf(Record({{"schema_version", 2}}).dump()),
            "schema_version is 2, and this muster reads 1: compare it with the muster that its trainer came "
            "with");
}

TEST(ResultRecord, WhatIsNoneIsRefused) {
  for (const std::string& text : {std::string(), std::string("[]"), std::string("accuracy: 0.9"),
                                  std::string(R"({"schema_version": 6, "measurements": []})"),
                                  Record({{"schema_version", "1"}}).dump(), Record().dump().substr(0, 200)}) {
    EXPECT_EQ(ErrorOf(text), "no result record, or cut off: `muster-trainer --result_json=PATH` writes one")
        << text;
  }
  EXPECT_EQ(ErrorOf(Record({{"test_accuracy", "high"}}).dump()), "test_accuracy is \"high\", and no number");
  EXPECT_EQ(ErrorOf(Record({{"pushes", {{"stale", true}}}}).dump()), "pushes.stale is true, and no number");
  EXPECT_EQ(ErrorOf(Record({{"parameter_bytes", "many"}}).dump()),
            "parameter_bytes is \"many\", and no number");
}

TEST(Comparison, RatiosAreToTheFirstRun) {
  const Comparison comparison =
      Compare({{"one", Record()},
               {"two", Record({{"seconds_training", 2}, {"pushes", {{"stale", 3}}}})},
               {"none", Record({{"seconds_training", nullptr}, {"pushes", nullptr}})}});
  EXPECT_THAT(MeasureOf(comparison, "seconds_training").values, ElementsAre(8.0, 2, nullptr));
  EXPECT_THAT(MeasureOf(comparison, "seconds_training").ratios, ElementsAre(1.0, 0.25, std::nullopt));
  EXPECT_THAT(MeasureOf(comparison, "pushes.stale").values, ElementsAre(0, 3, nullptr));
  EXPECT_THAT(MeasureOf(comparison, "pushes.stale").ratios,
              ElementsAre(std::nullopt, std::nullopt, std::nullopt));
  EXPECT_THAT(
      MeasureOf(Compare({{"none", Record({{"samples", nullptr}})}, {"one", Record()}}), "samples").ratios,
      ElementsAre(std::nullopt, std::nullopt));
}

TEST(Comparison, WhatNoRunHasIsLeftOut) {
  const Comparison comparison = Compare({{"one", Record()}, {"two", Record()}});
  EXPECT_TRUE(MeasureOf(comparison, "test_auc").values.empty());
  EXPECT_FALSE(MeasureOf(comparison, "test_accuracy").values.empty());
  EXPECT_THAT(ToText(comparison), Not(HasSubstr("variant")));
}

TEST(Comparison, TextSaysFirstWhatDiffers) {
  const std::string text =
      ToText(Compare({{"mnist-1", Record()},
                      {"k8s/result.json", Record({{"workers", 4},
                                                  {"ps", nullptr},
                                                  {"strategy", "allreduce"},
                                                  {"platform", "kubernetes"},
                                                  {"hosts", {"worker-0.mnist", "worker-1.mnist"}},
                                                  {"seconds_training", 3.98},
                                                  {"seconds_to_first_step", nullptr},
                                                  {"test_accuracy", 0.9018},
                                                  {"pushes", nullptr},
                                                  {"samples", 2000000},
                                                  {"bytes_pushed", 2000},
                                                  {"parameters_crc32c", "1234abcd"}})}}));
  EXPECT_EQ(text, R"(DIFFERENT  mnist-1           k8s/result.json
strategy   parameter_server  allreduce
workers    2                 4
ps         1                 -
platform   ssh               kubernetes

the same: model mnist_mlp, model size 1.6 MB, update mode async, batch size 100, steps 1000, seed 1, device cpu, instruction set avx512, threads 1, hosts 2, program 0123456789ab

MEASURE            mnist-1   k8s/result.json  RATIO
test accuracy      0.9000    0.9018           1.002
test loss          0.3       0.3              1.000
train loss         0.25      0.25             1.000
to first step      500 ms    -                -
training           8.00 s    3.98 s           0.497
steps/s            125       125              1.000
samples/s          25000     25000            1.000
samples            200000    2000000          10
chief's steps      500       500              1.000
chief sent         1.0 MB    2.0 kB           0.002
chief received     2.0 MB    2.0 MB           1.000
pushes received    1000      -                -
pushes applied     1000      -                -
pushes stale       0         -                -
pushes duplicate   0         -                -
pushes rejected    0         -                -
parameters CRC32C  0000abcd  1234abcd         other
)");
}

TEST(Comparison, OfRunsThatAreAlikeOnlyMeasuresAreATable) {
  const std::string text = ToText(Compare({{"one", Record()}, {"two", Record()}, {"three", Record()}}));
  EXPECT_TRUE(text.starts_with("the same: model mnist_mlp")) << text;
  EXPECT_THAT(text, HasSubstr("MEASURE            one       two       RATIO  three     RATIO\n"));
  EXPECT_THAT(text, HasSubstr("parameters CRC32C  0000abcd  0000abcd  same   0000abcd  same\n"));
}

// A record may come from anywhere.
TEST(Comparison, WhatWouldMoveTheCursorIsNotPrinted) {
  const Comparison comparison = Compare({{"a\x1b[2J", Record({{"device", "\x1b]0;me\n"}})}, {"b", Record()}});
  EXPECT_THAT(ToText(comparison), Not(HasSubstr("\x1b")));
}

TEST(Comparison, JsonHasEverything) {
  const Json second = Record({{"workers", 4}, {"seconds_training", 4.0}, {"variant", "deep"}});
  const Json json = Json::parse(ToJson(Compare({{"one", Record()}, {"two", second}})));
  EXPECT_EQ(json["runs"],
            Json({{{"name", "one"}, {"result", Record()}}, {{"name", "two"}, {"result", second}}}));
  EXPECT_EQ(json["different"], Json({{"workers", {2, 4}}, {"variant", {nullptr, "deep"}}}));
  EXPECT_EQ(json["same"]["model"], "mnist_mlp");
  EXPECT_EQ(json["same"]["hosts"], 2);
  EXPECT_EQ(json["measures"]["seconds_training"], Json({{"values", {8.0, 4.0}}, {"ratios", {1.0, 0.5}}}));
  EXPECT_EQ(json["measures"]["pushes.stale"]["ratios"], Json({nullptr, nullptr}));
  EXPECT_FALSE(json["measures"].contains("test_auc"));
}

}  // namespace
}  // namespace muster
