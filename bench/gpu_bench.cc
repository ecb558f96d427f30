// Speed of training that stays on a GPU: steps per second, and the time to an accuracy.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "trainer/cuda_module.h"
#include "trainer/load_data.h"
#include "trainer/models/device.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

constexpr char kHelp[] =
    R"(Times training on a GPU with everything there: data, parameters, optimizer, runs of steps as CUDA graphs.

steps: steps per second of mnist_mlp 784-512-512-10 and of mnist_cnn `deep`, batch 128, and of wide_deep
`tutorial`, batch 40 and 2048, as wall time of runs of --steps steps, median and range over the rounds, and the
share of it in which the device worked. bench/peers/torch_gpu_train.py holds them against PyTorch with CUDA
graphs, in the same math.

accuracy: seconds from the start of this process until `deep` (Adam, rate 0.001, batch 128) has a test accuracy
of 99 %, evaluated every 100 steps, and the share of that time in which the device worked on steps.)";

using Json = nlohmann::ordered_json;

constexpr int64_t kBatch = 128;

struct Workload {
  std::string name;
  ModelConfig model;
  std::optional<OptimizerConfig> optimizer;  // unset: the model's own
  int64_t batch = kBatch;
};

const std::vector<Workload>& Workloads() {
  static const std::vector<Workload> workloads = {
      {"mlp512",
       {.model = "mnist_mlp", .hidden = {512, 512}},
       OptimizerConfig{.kind = OptimizerKind::kMomentum, .learning_rate = 0.01f}},
      {"deep",
       {.model = "mnist_cnn", .variant = "deep"},
       OptimizerConfig{.kind = OptimizerKind::kMomentum, .learning_rate = 0.01f}},
      {.name = "wide_deep", .model = {.model = "wide_deep", .variant = "tutorial"}, .batch = 40},
      {.name = "wide_deep", .model = {.model = "wide_deep", .variant = "tutorial"}, .batch = 2048},
  };
  return workloads;
}

constexpr uint64_t kSeed = 1;
constexpr std::pair<const char*, cuda::Math> kMaths[] = {
    {"fp32", cuda::Math::kFloat32}, {"tf32", cuda::Math::kTf32}, {"bf16", cuda::Math::kBfloat16}};

constexpr char kAccuracyName[] = "accuracy/deep";

struct Options {
  int device = 0;
  std::vector<std::string> only = {};  // names of results; all if empty
  std::vector<std::string> maths = {};
  int rounds = 7;
  int64_t steps = 2000;
  std::string data = "";
  bool json = false;
};

absl::StatusOr<std::unique_ptr<DeviceTraining>> Begin(Device& device, const Workload& workload,
                                                      const TrainTestData& data, cuda::Math math) {
  MUSTER_ASSIGN_OR_RETURN(const ModelRecipe recipe, FindModel(workload.model));
  MUSTER_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(recipe.spec));
  std::vector<float> parameters(plan.layout.size());
  plan.layout.Initialize(kSeed, {0, plan.layout.size()}, parameters);
  std::vector<OptimizerConfig> optimizers = {workload.optimizer.value_or(recipe.defaults.optimizer)};
  if (recipe.defaults.wide_optimizer) optimizers.push_back(*recipe.defaults.wide_optimizer);
  MUSTER_ASSIGN_OR_RETURN(auto training, device.MakeTraining(plan, data,
                                                             {.optimizers = optimizers,
                                                              .batch_size = workload.batch,
                                                              .evaluation_batch_size = 1000,
                                                              .seed = kSeed,
                                                              .math = math}));
  MUSTER_RETURN_IF_ERROR(training->Start(parameters));
  return training;
}

std::string NameOf(const Workload& workload) { return "steps/" + workload.name; }

bool IsAskedFor(const std::vector<std::string>& asked, const std::string& name) {
  return asked.empty() || std::find(asked.begin(), asked.end(), name) != asked.end();
}

absl::StatusOr<Json> TimeSteps(Device& device, const Workload& workload, const TrainTestData& data,
                               const std::string& math_name, cuda::Math math, const Options& options) {
  MUSTER_ASSIGN_OR_RETURN(const auto training, Begin(device, workload, data, math));
  MUSTER_RETURN_IF_ERROR(training->Run(std::min<int64_t>(options.steps, 500)).status());  // builds its graphs
  std::vector<double> rates, shares;
  for (int round = 0; round < options.rounds; ++round) {
    const double busy_before = training->device_seconds();
    const TimePoint start = Now();
    MUSTER_RETURN_IF_ERROR(training->Run(options.steps).status());
    const double seconds = ToSeconds(Now() - start);
    rates.push_back(static_cast<double>(options.steps) / seconds);
    shares.push_back((training->device_seconds() - busy_before) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  std::sort(shares.begin(), shares.end());
  return Json{{"name", NameOf(workload)},
              {"math", math_name},
              {"batch", workload.batch},
              {"steps_per_second", rates[rates.size() / 2]},
              {"lowest", rates.front()},
              {"highest", rates.back()},
              {"device_share", shares[shares.size() / 2]}};
}

absl::StatusOr<Json> TimeToAccuracy(Device& device, const TrainTestData& data, TimePoint process_start) {
  constexpr double kAccuracy = 0.99;
  constexpr int64_t kMostSteps = 20'000, kStepsBetween = 100;
  const Workload workload{"deep",
                          {.model = "mnist_cnn", .variant = "deep"},
                          OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f}};
  MUSTER_ASSIGN_OR_RETURN(const auto training, Begin(device, workload, data, cuda::Math::kTf32));
  BatchResult test;
  int64_t steps = 0;
  while (steps < kMostSteps && !(test.samples > 0 && test.accuracy() >= kAccuracy)) {
    MUSTER_RETURN_IF_ERROR(training->Run(kStepsBetween).status());
    steps += kStepsBetween;
    MUSTER_ASSIGN_OR_RETURN(const Evaluation evaluation, training->EvaluateTestSet());
    test = evaluation.result;
  }
  const double seconds = ToSeconds(Now() - process_start);
  return Json{{"name", kAccuracyName},
              {"math", "tf32"},
              {"reached", test.accuracy() >= kAccuracy},
              {"test_accuracy", test.accuracy()},
              {"steps", steps},
              {"seconds_from_process_start", seconds},
              {"device_share", training->device_seconds() / seconds}};
}

absl::Status Run(const Options& options, TimePoint process_start) {
  MUSTER_ASSIGN_OR_RETURN(const auto device, OpenCudaDevice(CudaModuleFolder(), options.device));
  MUSTER_ASSIGN_OR_RETURN(const ModelRecipe mnist, FindModel({.model = "mnist_mlp"}));
  MUSTER_ASSIGN_OR_RETURN(const LoadedData images, LoadData(mnist, options.data));
  Json results = Json::array();
  const auto add = [&](const Json& result) {
    results.push_back(result);
    if (!options.json) std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  };
  // First, because it counts from the start of the process.
  if (IsAskedFor(options.only, kAccuracyName)) {
    MUSTER_ASSIGN_OR_RETURN(const Json accuracy, TimeToAccuracy(*device, images.sets, process_start));
    add(accuracy);
  }
  for (const Workload& workload : Workloads()) {
    if (!IsAskedFor(options.only, NameOf(workload))) continue;
    MUSTER_ASSIGN_OR_RETURN(const ModelRecipe recipe, FindModel(workload.model));
    LoadedData census;
    if (recipe.columns) {
      MUSTER_ASSIGN_OR_RETURN(census, LoadData(recipe, options.data));
    }
    const TrainTestData& data = recipe.columns ? census.sets : images.sets;
    for (const auto& [name, math] : kMaths) {
      if (!IsAskedFor(options.maths, name)) continue;
      MUSTER_ASSIGN_OR_RETURN(const Json result, TimeSteps(*device, workload, data, name, math, options));
      add(result);
    }
  }
  if (options.json) {
    const Json all = {
        {"device", device->name()}, {"data", DataSetName(mnist, options.data)}, {"results", results}};
    std::printf("%s\n", all.dump(2).c_str());
  }
  return absl::OkStatus();
}

std::set<std::string> ResultNames() {
  std::set<std::string> names = {kAccuracyName};
  for (const Workload& workload : Workloads()) names.insert(NameOf(workload));
  return names;
}

std::set<std::string> MathNames() {
  std::set<std::string> names;
  for (const auto& [name, _] : kMaths) names.insert(name);
  return names;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const muster::TimePoint start = muster::Now();
  muster::Options options;
  if (const char* const folder = std::getenv("MUSTER_DATA")) options.data = folder;
  CLI::App app(muster::kHelp, "gpu_bench");
  app.add_flag("--json", options.json, "all results as one JSON object");
  app.add_option("--device", options.device, "which GPU")->capture_default_str();
  app.add_option("--only", options.only, "which results, all without")
      ->delimiter(',')
      ->check(CLI::IsMember(muster::ResultNames()));
  app.add_option("--math", options.maths, "of the steps, all without")
      ->delimiter(',')
      ->check(CLI::IsMember(muster::MathNames()));
  app.add_option("--rounds", options.rounds, "of each measurement")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "of a round")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--data_dir", options.data,
                 "a folder with mnist/ and census/; MUSTER_DATA, or synthetic sets, without");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11's own statuses are above 100
  }
  const absl::Status status = muster::Run(options, start);
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return muster::ExitCodeFor(status);
}
