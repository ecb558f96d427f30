// Wide & deep on the census, as real processes: alone, over servers, and back from its file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kMinibatch = {"--model=wide_deep", "--variant=minibatch", "--sync_replicas",
                                             "--global_batch_size=60", "--train_steps=40"};

std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

class WideDeep : public Trainers {
 protected:
  Json RunLocal(const std::vector<std::string>& flags, const std::string& run) {
    std::vector<Started> local;
    local.push_back(Start(run, With(flags, {"--job_name=local", "--metrics_jsonl=" + Path(run + ".jsonl"),
                                            "--result_json=" + Path(run + ".json"),
                                            "--save_model=" + Path(run + ".safetensors"),
                                            "--save_onnx=" + Path(run + ".onnx")})));
    WaitForSuccess(local);
    return Result(run);
  }
};

TEST_F(WideDeep, SyncOverServersGivesTheBitsOfOneProcess) {
  const Json expected = RunLocal(kMinibatch, "local");
  for (const int ps : {1, 3}) {
    const std::string run = "ps" + std::to_string(ps);
    const Json result =
        Run(MakeCluster(ps, 1), With(kMinibatch, {"--save_onnx=" + Path(run + ".onnx")}), run);
    EXPECT_EQ(result["parameters_crc32c"], expected["parameters_crc32c"]) << ps;
    EXPECT_EQ(result["test_auc"], expected["test_auc"]) << ps;
    EXPECT_EQ(*ReadFile(Path(run + ".safetensors")), *ReadFile(Path("local.safetensors"))) << ps;
    EXPECT_EQ(*ReadFile(Path(run + ".onnx")), *ReadFile(Path("local.onnx"))) << ps;
    // Rows of a few hundred ids, not tables of thousands.
    EXPECT_LT(result["bytes_pulled"], result["bytes_pushed"].get<int64_t>() + 10'000'000);
  }
}

// In 16 bits, and of the dense part only what matters. Beside the steps there is a join, and what evaluation
// reads.
TEST_F(WideDeep, AStepOf40SamplesTakesLessThan20KB) {
  const std::vector<std::string> flags = {"--model=wide_deep", "--variant=tutorial", "--sync_replicas",
                                          "--batch_size=40"};
  const auto run = [&](int steps, const std::vector<std::string>& compression) {
    const std::string name = std::to_string(steps) + std::to_string(compression.size());
    return Run(MakeCluster(2, 2), With(With(flags, {"--train_steps=" + std::to_string(steps)}), compression),
               name);
  };
  const auto bytes = [](const Json& result) {
    return result["bytes_pushed"].get<int64_t>() + result["bytes_pulled"].get<int64_t>();
  };
  const std::vector<std::string> compression = {"--wire_type=bfloat16", "--top_k=0.01"};
  const Json compressed = run(300, compression), whole = run(300, {});
  EXPECT_LT((bytes(compressed) - bytes(run(100, compression))) / 200, 20'000);
  EXPECT_GT((bytes(whole) - bytes(run(100, {}))) / 200, 80'000);
  EXPECT_GT(compressed["test_auc"], whole["test_auc"].get<double>() - 0.01);
}

TEST_F(WideDeep, ThePartsHaveOptimizersOfTheirOwn) {
  // A penalty that no gradient overcomes: the wide weights stay zero, and the deep part learns.
  const std::vector<std::string> flags = {"--model=wide_deep",      "--variant=minibatch", "--sync_replicas",
                                          "--global_batch_size=60", "--train_steps=300",   "--wide_l1=1000"};
  const Json local = RunLocal(flags, "local");
  const Json result = Run(MakeCluster(2, 1), flags, "over_servers");
  EXPECT_EQ(result["parameters_crc32c"], local["parameters_crc32c"]);
  EXPECT_GT(local["test_auc"], 0.7);
  const std::string file = *ReadFile(Path("local.safetensors"));
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof header_size);
  const Json header = Json::parse(file.substr(sizeof header_size, header_size));
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t data = sizeof header_size + header_size;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    const std::string bytes = file.substr(data + begin, end - begin);
    EXPECT_EQ(bytes == std::string(bytes.size(), '\0'), name.starts_with("wide/")) << name;
  }
}

TEST_F(WideDeep, TheSameGlobalBatchGivesTheSameLossesForEveryNumberOfWorkers) {
  const std::vector<std::string> flags = With(kMinibatch, {"--log_every=1"});
  Run(MakeCluster(1, 1), flags, "w1");
  const std::vector<double> expected = Losses("w1");
  ASSERT_EQ(expected.size(), 40u);
  Run(MakeCluster(2, 3), flags, "w3");
  const std::vector<double> losses = Losses("w3");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step]) << "step " << step;
  }
}

TEST_F(WideDeep, AKilledWorkerThatStartsAgainChangesNoBit) {
  const std::vector<std::string> flags = {"--model=wide_deep",      "--variant=tutorial", "--sync_replicas",
                                          "--global_batch_size=60", "--train_steps=1500", "--log_every=10"};
  const Json expected = Run(MakeCluster(2, 2), flags, "undisturbed");
  EXPECT_EQ(RunWithAKilledWorker(flags, "killed")["parameters_crc32c"], expected["parameters_crc32c"]);
}

TEST_F(WideDeep, AsynchronousWorkersTrainItToo) {
  const Json result =
      Run(MakeCluster(2, 3), {"--model=wide_deep", "--variant=minibatch", "--train_steps=600"}, "async");
  EXPECT_GT(result["test_auc"], 0.8);
  EXPECT_EQ(result["pushes"]["applied"], result["steps"]);
}

TEST_F(WideDeep, ReachesItsBars) {
  if (std::getenv("MUSTER_DATA") == nullptr)
    GTEST_SKIP() << "the bars are for the real data: set MUSTER_DATA";
  EXPECT_GE(RunLocal({"--model=wide_deep", "--variant=wide_only"}, "wide")["test_accuracy"], 0.832);
  // In small batches, which is faster than its own 200 steps over all samples.
  const Json tutorial = RunLocal(
      {"--model=wide_deep", "--variant=tutorial", "--batch_size=200", "--train_steps=600"}, "tutorial");
  EXPECT_GE(tutorial["test_accuracy"], 0.840);
  EXPECT_GE(tutorial["test_auc"], 0.89);
}

TEST_F(WideDeep, EveryVariantLearnsTheSyntheticCensus) {
  for (const std::string variant : {"tutorial", "dist_test", "minibatch", "wide_only"}) {
    const Json result = RunLocal({"--model=wide_deep", "--data_dir=synthetic", "--batch_size=200",
                                  "--train_steps=300", "--variant=" + variant},
                                 variant);
    EXPECT_EQ(result["variant"], variant);
    EXPECT_GT(result["test_auc"], 0.75) << variant;
  }
}

TEST_F(WideDeep, ASavedModelIsEvaluatedToTheSameNumbers) {
  const Json trained = RunLocal(kMinibatch, "local");
  std::vector<Started> evaluation;
  evaluation.push_back(Start(
      "evaluate", {"--evaluate=" + Path("local.safetensors"), "--result_json=" + Path("evaluate.json")}));
  WaitForSuccess(evaluation);
  const Json evaluated = Result("evaluate");
  for (const char* const key : {"test_accuracy", "test_auc", "test_loss", "parameters_crc32c", "variant"}) {
    EXPECT_EQ(evaluated[key], trained[key]) << key;
  }
  EXPECT_THAT(*ReadFile(evaluation[0].log), HasSubstr(absl::StrFormat("Census accuracy: %.4f, AUC %.4f\n",
                                                                      trained["test_accuracy"].get<double>(),
                                                                      trained["test_auc"].get<double>())));
}

TEST_F(WideDeep, WorkersThatDifferInWhatTheyTrainOnAreRefusedWithTheDifference) {
  const std::vector<std::string> common = {"--model=wide_deep", "--sync_replicas", "--train_steps=40",
                                           "--worker_timeout=10"};
  // Of worker:1, where worker:0 has the variant minibatch, the synthetic census and a batch of 60.
  const auto error = [&](const std::string& run, const std::string& variant, const std::string& data,
                         const std::string& batch) {
    const ClusterSpec cluster = MakeCluster(1, 2);
    std::vector<Started> tasks;
    tasks.push_back(StartTask(cluster, {Role::kPs, 0}, {"--worker_timeout=10"}, run));
    const auto start = [&](int index, const std::string& v, const std::string& d, const std::string& b) {
      return StartTask(cluster, {Role::kWorker, index},
                       With(common, {"--variant=" + v, "--data_dir=" + d, "--global_batch_size=" + b}), run);
    };
    tasks.push_back(start(0, "minibatch", "synthetic", "60"));
    const TimePoint deadline = Now() + std::chrono::minutes(1);
    while (ReadFile(tasks[0].log)->find("worker:0 has joined") == std::string::npos && Now() < deadline) {
      (void)tasks[0].process.Wait(Now() + std::chrono::milliseconds(5));
    }
    EXPECT_EQ(ExitCode(start(1, variant, data, batch)), 1);
    EXPECT_EQ(ExitCode(std::move(tasks[1])), 0) << "it is not waited for for ever";
    EXPECT_EQ(ExitCode(std::move(tasks[0])), 0) << "worker:0 has made all of each batch";
    return *ReadFile(Path(run + "-worker:1.log"));
  };
  EXPECT_THAT(error("variant", "tutorial", "synthetic", "60"),
              HasSubstr("this worker trains wide_deep tutorial, the first one wide_deep minibatch"));
  EXPECT_THAT(error("batch", "minibatch", "synthetic", "61"), HasSubstr("global_batch_size"));
  if (std::getenv("MUSTER_DATA") == nullptr) return;
  EXPECT_THAT(error("data", "minibatch", "auto", "60"), HasSubstr("training_set_crc32c"));
}

TEST_F(WideDeep, AFileIsNotEvaluatedIntoItself) {
  RunLocal(With(kMinibatch, {"--data_dir=synthetic"}), "local");
  const std::string model = Path("local.safetensors"), bytes = *ReadFile(model);
  EXPECT_EQ(ExitCode(Start("evaluate", {"--evaluate=" + model, "--result_json=" + model})), 2);
  EXPECT_THAT(*ReadFile(Path("evaluate.log")), HasSubstr("--evaluate and --result_json name the same file"));
  EXPECT_EQ(*ReadFile(model), bytes);
}

TEST_F(WideDeep, WhatItCannotDoIsSaidBeforeTraining) {
  const auto error = [this](const std::vector<std::string>& flags) {
    EXPECT_EQ(ExitCode(Start("bad", With(flags, {"--job_name=local", "--model=wide_deep"}))), 2);
    return *ReadFile(Path("bad.log"));
  };
  EXPECT_THAT(error({"--variant=wide_only", "--hidden=3"}), HasSubstr("wide_only has no hidden layers"));
  EXPECT_THAT(error({"--augment=shift"}), HasSubstr("for images"));
  EXPECT_THAT(error({"--data_dir=" + Path("nothing")}), HasSubstr("adult.data"));
}

}  // namespace
}  // namespace muster
