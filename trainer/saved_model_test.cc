#include "trainer/saved_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SavedModelTest : public ::testing::Test {
 protected:
  ModelPlan Plan(const ModelConfig& config) { return *PlanModel(FindModel(config)->spec); }

  void Save(const ModelConfig& config, const SafetensorsMetadata& metadata) {
    const ModelPlan plan = Plan(config);
    std::vector<float> parameters(plan.layout.size());
    plan.layout.Initialize(1, {0, plan.layout.size()}, parameters);
    ASSERT_TRUE(SaveSafetensors(path_, plan.layout, parameters, metadata).ok());
  }

  std::string Error() {
    const absl::Status status = LoadModel(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_TRUE(message.starts_with(path_.string() + ": ")) << message;
    return message.substr(std::min(message.size(), path_.string().size() + 2));
  }

  const TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_.path() / "model.safetensors";
};

TEST_F(SavedModelTest, ComesBackAsItWas) {
  const SavedModelInfo info{.config = {.model = "mnist_mlp", .hidden = {30, 20}},
                            .data_set = "mnist",
                            .steps = 77,
                            .test_accuracy = 0.9125};
  Save(info.config, ToMetadata(info));
  const auto saved = LoadModel(path_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->info.config.model, "mnist_mlp");
  EXPECT_EQ(saved->info.config.variant, "");
  EXPECT_THAT(saved->info.config.hidden, ElementsAre(30, 20));
  EXPECT_EQ(saved->info.data_set, "mnist");
  EXPECT_EQ(saved->info.steps, 77u);
  EXPECT_EQ(saved->info.test_accuracy, 0.9125);
  std::vector<float> expected(saved->plan.layout.size());
  saved->plan.layout.Initialize(1, {0, saved->plan.layout.size()}, expected);
  EXPECT_TRUE(std::ranges::equal(saved->parameters.values(), expected));
}

TEST_F(SavedModelTest, DefaultSizesOfHiddenLayersAreWrittenDown) {
  const auto hidden = [&](const ModelConfig& config) { return WithHiddenSizes(config, Plan(config)).hidden; };
  EXPECT_THAT(hidden({.model = "mnist_mlp"}), ElementsAre(100));
  EXPECT_THAT(hidden({.model = "mnist_mlp", .hidden = {5, 6}}), ElementsAre(5, 6));
  EXPECT_THAT(hidden({.model = "mnist_softmax"}), ElementsAre());
}

TEST_F(SavedModelTest, WhatItDoesNotSayOrSaysWrongIsRefused) {
  const ModelConfig config = {.model = "mnist_mlp", .hidden = {4}};
  const SafetensorsMetadata good = ToMetadata({.config = config, .data_set = "mnist"});
  const auto error = [&](const std::string& key, const std::string& value) {
    SafetensorsMetadata metadata = good;
    metadata[key] = value;
    Save(config, metadata);
    return Error();
  };
  Save(config, good);
  ASSERT_TRUE(LoadModel(path_).ok());
  Save(config, {});
  EXPECT_THAT(Error(), HasSubstr("not written by muster-trainer --save_model"));
  EXPECT_EQ(error("muster_model_version", "2"), "muster_model_version is 2; this program reads 1");
  EXPECT_THAT(error("model", "mnist_mpl"), HasSubstr("did you mean 'mnist_mlp'?"));
  EXPECT_THAT(error("variant", "deep"), HasSubstr("no variants"));
  EXPECT_EQ(error("hidden", "4,x"), "hidden is \"4,x\", expected sizes like 512,512");
  EXPECT_EQ(error("hidden", "5"), "tensor \"hidden_0/weights\": expected the shape [784,5], found [784,4]");
  EXPECT_EQ(error("hidden", "4,4"), "tensor \"hidden_1/weights\" of shape [4,4] is missing");
  // Refused for its size, not tried.
  EXPECT_THAT(error("hidden", "9000000000000000000,9000000000000000000"), HasSubstr("hidden_0/weights"));
  EXPECT_EQ(error("steps", ""), "steps is \"\", expected a number");
  EXPECT_EQ(error("test_accuracy", "high"), "test_accuracy is \"high\", expected a number");
}

}  // namespace
}  // namespace muster
