// What a job file may say of models, optimizers and schedules is what the trainer understands: the launcher
// has tables of its own, because it includes nothing of the trainer.
#include <absl/strings/match.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/file.h"
#include "inventory/inventory.h"
#include "inventory/job.h"
#include "kernels/optimizer.h"
#include "launcher/data_sets.h"
#include "launcher/plan.h"
#include "trainer/models/model.h"
#include "trainer/options.h"

namespace muster {
namespace {

// A key, a value that is nobody's default, and what it means.
struct Key {
  std::string name;
  std::string value;
  void (*set)(OptimizerConfig& config);
};

const std::vector<Key> kOptimizerKeys = {
    {"weight_decay", "0.25", [](OptimizerConfig& c) { c.weight_decay = 0.25f; }},
    {"momentum", "0.25", [](OptimizerConfig& c) { c.momentum = 0.25f; }},
    {"nesterov", "true", [](OptimizerConfig& c) { c.nesterov = true; }},
    {"beta1", "0.25", [](OptimizerConfig& c) { c.beta1 = 0.25f; }},
    {"beta2", "0.25", [](OptimizerConfig& c) { c.beta2 = 0.25f; }},
    {"epsilon", "0.25", [](OptimizerConfig& c) { c.epsilon = 0.25f; }},
    {"initial_accumulator", "0.25", [](OptimizerConfig& c) { c.initial_accumulator = 0.25f; }},
    {"l1", "0.25", [](OptimizerConfig& c) { c.l1 = 0.25f; }},
    {"l2", "0.25", [](OptimizerConfig& c) { c.l2 = 0.25f; }},
};

const std::vector<Key> kScheduleKeys = {
    {"gamma", "0.25", [](OptimizerConfig& c) { c.schedule.gamma = 0.25f; }},
    {"power", "0.25", [](OptimizerConfig& c) { c.schedule.power = 0.25f; }},
    {"step_size", "3", [](OptimizerConfig& c) { c.schedule.step_size = 3; }},
    {"decay_steps", "3", [](OptimizerConfig& c) { c.schedule.decay_steps = 3; }},
    {"final_fraction", "0.25", [](OptimizerConfig& c) { c.schedule.final_fraction = 0.25f; }},
};

class JobFlags : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteFileAtomically(trainer_.path() / "required_glibc", "2.34\n").ok());
  }

  // What the trainer makes of the flags of a worker whose job file says `train`, and `keys` beside it. Its
  // own optimizer is Adam as it usually is.
  absl::StatusOr<TrainerOptions> Options(const std::string& train, const std::string& keys = "") {
    return OptionsOf("mnist_mlp", train, keys);
  }
  absl::StatusOr<TrainerOptions> OptionsOf(const std::string& model, const std::string& train,
                                           const std::string& keys = "") {
    return OptionsOfJob("name: j\nmodel: " + model +
                            "\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ntrain: {" + train + "}\n" +
                            keys,
                        {"--ps_hosts=here:1", "--worker_hosts=here:2"});
  }
  // `cluster`: the flags of the first worker, the last task, that muster adds at the start.
  absl::StatusOr<TrainerOptions> OptionsOfJob(const std::string& text,
                                              const std::vector<std::string>& cluster) {
    MUSTER_ASSIGN_OR_RETURN(const Job job, ParseJob(text, "job.yaml", "/home/me"));
    MUSTER_ASSIGN_OR_RETURN(const Inventory inventory,
                            ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me"));
    MUSTER_ASSIGN_OR_RETURN(const JobPlan plan,
                            MakePlan(job, inventory, {.installation = {.trainer = trainer_.path()}}));
    const auto& argv = plan.record.tasks().rbegin()->start().argv();
    std::vector<std::string> arguments(argv.begin() + 1, argv.end());
    arguments.insert(arguments.end(), {"--job_name=worker", "--task_index=0"});
    arguments.insert(arguments.end(), cluster.begin(), cluster.end());
    const auto line = ParseCommandLine(arguments, [](const std::string&) { return std::nullopt; });
    // The job file was accepted: then the trainer has to understand it.
    EXPECT_TRUE(line.ok()) << text << ": " << line.status();
    if (!line.ok()) return line.status();
    return line->options;
  }
  absl::StatusOr<OptimizerConfig> Optimizer(const std::string& train) {
    MUSTER_ASSIGN_OR_RETURN(const TrainerOptions options, Options(train));
    return options.optimizer;
  }

  TemporaryDirectory trainer_;
};

bool Contains(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST_F(JobFlags, ModelsAreThoseOfTheTrainerWithTheirVariantsAndData) {
  for (const std::string& model : ModelNames()) {
    const auto recipe = FindModel({.model = model});
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ(DataSetOfModel(model).name, recipe->columns ? "census" : "mnist");
    std::vector<std::string> variants = ModelVariants(model);
    if (variants.empty()) {
      EXPECT_FALSE(OptionsOf(model, "", "variant: deep\n").ok()) << model;
      variants = {""};
    }
    for (const std::string& variant : variants) {
      const std::string key = variant.empty() ? "" : "variant: " + variant + "\n";
      const auto options = OptionsOf(model, "", key);
      ASSERT_TRUE(options.ok()) << model << " " << variant << ": " << options.status();
      EXPECT_EQ(options->model.model, model);
      EXPECT_EQ(options->model.variant, variant);
      EXPECT_EQ(OptionsOf(model, "", key + "hidden: [3]\n").ok(),
                FindModel({.model = model, .variant = variant, .hidden = {3}}).ok())
          << model << " " << variant;
    }
    EXPECT_FALSE(OptionsOf(model, "", "variant: nobodys\n").ok()) << model;
  }
}

TEST_F(JobFlags, OptimizersAreThoseOfTheTrainer) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad,
                                   OptimizerKind::kAdam, OptimizerKind::kFtrl}) {
    const std::string train = "optimizer: " + OptimizerName(kind);
    EXPECT_EQ(*Optimizer(train), UsualOptimizer(kind));
    for (const std::string_view field : OptimizerFields(kind)) {
      EXPECT_TRUE(std::any_of(kOptimizerKeys.begin(), kOptimizerKeys.end(), [&](const Key& key) {
        return key.name == field;
      })) << field;
    }
    for (const Key& key : kOptimizerKeys) {
      const auto optimizer = Optimizer(train + ", " + key.name + ": " + key.value);
      ASSERT_EQ(optimizer.ok(), Contains(OptimizerFields(kind), key.name)) << train << ", " << key.name;
      if (!optimizer.ok()) continue;
      OptimizerConfig expected = UsualOptimizer(kind);
      key.set(expected);
      EXPECT_EQ(*optimizer, expected) << train << ", " << key.name;
    }
  }
}

TEST_F(JobFlags, AllReduceIsWithoutServers) {
  const std::string head = "name: j\nmodel: mnist_mlp\nstrategy: allreduce\nreplicas: ";
  const auto all = OptionsOfJob(head + "{worker: {count: 2}}\n", {"--worker_hosts=here:1,here:2"});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->strategy, Strategy::kAllReduce);
  EXPECT_EQ(all->min_workers, std::nullopt) << "all";
  const auto some = OptionsOfJob(head + "{chief: {count: 1}, worker: {count: 2, min: 1}}\n",
                                 {"--cluster_spec=chief|here:3,worker|here:1;here:2"});
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->min_workers, 2) << "the chief is one of them";
  const auto buckets = [&](const std::string& bytes) {
    return OptionsOfJob(head + "{worker: {count: 1}}\nupdate: {bucket_bytes: " + bytes + "}\n",
                        {"--worker_hosts=here:1"})
        ->bucket_bytes;
  };
  EXPECT_EQ(buckets("auto"), std::nullopt);
  for (const int64_t bytes : {int64_t{1024}, int64_t{1} << 40})
    EXPECT_EQ(buckets(std::to_string(bytes)), bytes);
}

TEST_F(JobFlags, CollectivesAreThoseOfTheTrainer) {
  const auto options = [&](const std::string& keys) {
    return *OptionsOfJob(
        "name: j\nmodel: mnist_mlp\nstrategy: allreduce\nreplicas: {worker: {count: 1}}\n" + keys,
        {"--worker_hosts=here:1"});
  };
  EXPECT_EQ(options("").collective, CollectiveChoice::kAuto);
  EXPECT_EQ(options("collective: auto\n").collective, CollectiveChoice::kAuto);
  EXPECT_EQ(options("collective: native\n").collective, CollectiveChoice::kNative);
  EXPECT_EQ(options("collective: nccl\n").collective, CollectiveChoice::kNccl);
  EXPECT_FALSE(options("").trusted_network);
  EXPECT_FALSE(options("trusted_network: false\n").trusted_network);
  EXPECT_TRUE(options("trusted_network: true\n").trusted_network);
}

TEST_F(JobFlags, HybridHasAllWorkersAndServers) {
  const auto options = OptionsOfJob(
      "name: j\nmodel: wide_deep\nstrategy: hybrid\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n"
      "update: {bucket_bytes: 4096, evict_rows_after: 2}\ndurability: journal\n",
      {"--ps_hosts=here:3", "--worker_hosts=here:1,here:2"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->strategy, Strategy::kHybrid);
  EXPECT_EQ(options->update.rule.mode, UpdateMode::kSync);
  EXPECT_EQ(options->min_workers, std::nullopt) << "all";
  EXPECT_EQ(options->bucket_bytes, 4096);
  EXPECT_EQ(options->update.eviction.after, 2u);
}

TEST_F(JobFlags, UpdatesAreMadeAsTheJobFileSays) {
  const auto update = [&](const std::string& text) {
    return OptionsOf("mnist_mlp", "", "update: {" + text + "}\n")->update;
  };
  EXPECT_EQ(update("mode: sync").rule.mode, UpdateMode::kSync);
  EXPECT_EQ(update("mode: async").rule.mode, UpdateMode::kAsync);
  EXPECT_EQ(update("mode: bounded, staleness: 3").rule.mode, UpdateMode::kBounded);
  EXPECT_EQ(update("mode: bounded, staleness: 3").rule.staleness, 3u);
  EXPECT_EQ(update("max_staleness: 3").rule.max_staleness, 3u);
  EXPECT_TRUE(update("scale_rate: true").rule.scale_rate);
  EXPECT_FALSE(update("scale_rate: false").rule.scale_rate);
  EXPECT_EQ(update("wire_type: float16").compression.wire_type, ps::FLOAT16);
  EXPECT_EQ(update("wire_type: bfloat16").compression.wire_type, ps::BFLOAT16);
  EXPECT_EQ(update("wire_type: float32, top_k: 0.001").compression.top_k, 0.001);
  EXPECT_EQ(
      OptionsOf("mnist_mlp", "batch_size: 10", "update: {mode: sync, aggregate: 4}\n")->global_batch_size,
      40);
}

TEST_F(JobFlags, TheWidePartHasAnOptimizerOfItsOwn) {
  const OptimizerConfig ftrl = *OptionsOf("wide_deep", "")->wide_optimizer;
  const OptimizerConfig adagrad = OptionsOf("wide_deep", "")->optimizer;
  EXPECT_EQ(ftrl.kind, OptimizerKind::kFtrl);
  EXPECT_NE(adagrad.kind, OptimizerKind::kFtrl);
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad,
                                   OptimizerKind::kAdam, OptimizerKind::kFtrl}) {
    for (const Key& key : kOptimizerKeys) {
      const std::string wide = "optimizer: " + OptimizerName(kind) + ", " + key.name + ": " + key.value;
      const auto options = OptionsOf("wide_deep", "wide: {" + wide + "}");
      ASSERT_EQ(options.ok(), Contains(OptimizerFields(kind), key.name)) << wide;
      if (!options.ok()) continue;
      OptimizerConfig expected = kind == ftrl.kind ? ftrl : UsualOptimizer(kind);
      key.set(expected);
      EXPECT_EQ(*options->wide_optimizer, expected) << wide;
      EXPECT_EQ(options->optimizer, adagrad) << wide;
    }
  }
  const auto options =
      *OptionsOf("wide_deep",
                 "steps: 20, learning_rate: 0.5, wide: {optimizer: adam, learning_rate: 0.25, "
                 "schedule: {kind: cosine, final_fraction: 0.25, warmup_steps: 7}}");
  OptimizerConfig expected = UsualOptimizer(OptimizerKind::kAdam);
  expected.learning_rate = 0.25f;
  expected.schedule = {
      .kind = ScheduleKind::kCosine, .decay_steps = 13, .final_fraction = 0.25f, .warmup_steps = 7};
  EXPECT_EQ(*options.wide_optimizer, expected);
  EXPECT_EQ(options.optimizer.learning_rate, 0.5f);
  EXPECT_EQ(options.optimizer.schedule, adagrad.schedule);
}

TEST_F(JobFlags, SchedulesAreThoseOfTheTrainer) {
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kInverse, ScheduleKind::kStep, ScheduleKind::kCosine}) {
    OptimizerConfig usual = UsualOptimizer(OptimizerKind::kAdam);
    usual.schedule = UsualSchedule(kind);
    usual.schedule.warmup_steps = 7;
    std::string train = "steps: 20, schedule: {kind: " + ScheduleName(kind) + ", warmup_steps: 7";
    if (kind == ScheduleKind::kStep) {
      train += ", step_size: 5";
      usual.schedule.step_size = 5;
    }
    if (kind == ScheduleKind::kCosine) usual.schedule.decay_steps = 13;
    EXPECT_EQ(*Optimizer(train + "}"), usual);
    for (const Key& key : kScheduleKeys) {
      if (kind == ScheduleKind::kStep && key.name == "step_size") continue;  // needed, so it is there already
      const auto optimizer = Optimizer(train + ", " + key.name + ": " + key.value + "}");
      ASSERT_EQ(optimizer.ok(), Contains(ScheduleFields(kind), key.name)) << train << ", " << key.name;
      if (!optimizer.ok()) continue;
      OptimizerConfig expected = usual;
      key.set(expected);
      EXPECT_EQ(*optimizer, expected) << train << ", " << key.name;
    }
  }
}

TEST_F(JobFlags, AugmentationAndOutputsReachTheTrainer) {
  const TrainerOptions plain = *Options("");
  EXPECT_FALSE(plain.augment_shift);
  EXPECT_EQ(plain.save_model, "{task_dir}/model.safetensors");
  EXPECT_EQ(plain.log_dir, "{task_dir}/events");
  EXPECT_EQ(plain.save_onnx, "");
  const TrainerOptions asked = *Options("augment: shift, save_onnx: true");
  EXPECT_TRUE(asked.augment_shift);
  EXPECT_EQ(asked.save_onnx, "{task_dir}/model.onnx");
  EXPECT_EQ(Options("save_onnx: false")->save_onnx, "");
}

TEST_F(JobFlags, DevicesAreThoseOfTheTrainer) {
  using Kind = DeviceChoice::Kind;
  EXPECT_EQ(Options("")->device, DeviceChoice{});
  EXPECT_EQ(Options("device: auto")->device, DeviceChoice{});
  EXPECT_EQ(Options("device: cpu")->device, DeviceChoice{.kind = Kind::kCpu});
  EXPECT_EQ(Options("device: cuda")->device, DeviceChoice{.kind = Kind::kCuda});
  EXPECT_EQ(Options("device: cuda:12")->device, (DeviceChoice{.kind = Kind::kCuda, .index = 12}));
  EXPECT_TRUE(Options("device: cuda:999").ok());
  for (const int ms : {0, 999'999}) {
    EXPECT_EQ(Options("device: wait:" + std::to_string(ms))->device,
              (DeviceChoice{.kind = DeviceChoice::Kind::kWait, .wait_ms = ms}));
  }
  for (const std::string device : {"wait:1000000", "wait:", "cuda:1000", "cuda:-1", "cuda:0x1", "gpu"}) {
    EXPECT_FALSE(Options("device: " + device).ok()) << device;
  }
  EXPECT_EQ(Options("")->device.math, cuda::Math::kFloat32);
  EXPECT_EQ(Options("cuda_math: fp32")->device.math, cuda::Math::kFloat32);
  EXPECT_EQ(Options("cuda_math: tf32")->device.math, cuda::Math::kTf32);
  EXPECT_EQ(Options("cuda_math: bf16")->device.math, cuda::Math::kBfloat16);
  EXPECT_FALSE(Options("cuda_math: fp16").ok());
}

// Of a job file: the ends are still accepted, what is beyond them is not.
struct Range {
  std::string before;  // in `train`, up to the number
  std::string below, lowest, highest, above;
  std::string after;
};

TEST_F(JobFlags, TheTrainerTakesBothEndsOfEveryRange) {
  const std::string cosine = "schedule: {kind: cosine, ", inverse = "schedule: {kind: inverse, ";
  const std::vector<Range> ranges = {
      {"steps: ", "0", "1", "1000000000", "1000000001", ""},
      {"batch_size: ", "0", "1", "1000000", "1000001", ""},
      {"global_batch_size: ", "0", "1", "1000000", "1000001", ""},
      {"learning_rate: ", "9.99e-31", "1e-30", "1000", "1000.1", ""},
      {"optimizer: sgd, weight_decay: ", "-1e-30", "0", "1e6", "1.1e6", ""},
      {"optimizer: momentum, momentum: ", "-1e-30", "0", "0.999999", "0.9999999", ""},
      {"optimizer: adam, beta1: ", "-1e-30", "0", "0.999999", "0.9999999", ""},
      {"optimizer: adam, beta2: ", "-1e-30", "0", "0.999999", "0.9999999", ""},
      {"optimizer: adam, epsilon: ", "9.99e-31", "1e-30", "1e6", "1.1e6", ""},
      {"optimizer: adagrad, initial_accumulator: ", "9.99e-31", "1e-30", "1e6", "1.1e6", ""},
      {"optimizer: ftrl, initial_accumulator: ", "9.99e-31", "1e-30", "1e6", "1.1e6", ""},
      {"optimizer: ftrl, l1: ", "-1e-30", "0", "1e6", "1.1e6", ""},
      {"optimizer: ftrl, l2: ", "-1e-30", "0", "1e6", "1.1e6", ""},
      {inverse + "gamma: ", "-1e-30", "0", "1e6", "1.1e6", "}"},
      {inverse + "power: ", "-1e-30", "0", "1e6", "1.1e6", "}"},
      {"schedule: {kind: step, step_size: 5, gamma: ", "9.99e-31", "1e-30", "1", "1.1", "}"},
      {"schedule: {kind: step, step_size: ", "0", "1", "1000000000", "1000000001", "}"},
      {cosine + "decay_steps: ", "0", "1", "1000000000", "1000000001", "}"},
      {cosine + "final_fraction: ", "-1e-30", "0", "1", "1.1", "}"},
      {"schedule: {warmup_steps: ", "-1", "0", "1000000000", "1000000001", "}"},
      {"steps: 20, " + cosine + "warmup_steps: ", "-1", "0", "19", "20", "}"},
      {cosine + "decay_steps: 5, warmup_steps: ", "-1", "0", "1000000000", "1000000001", "}"},
      {cosine + "warmup_steps: ", "-1", "0", "0", "1", "}"},  // without steps
      {"seed: ", "-1", "0", "9223372036854775807", "9223372036854775808", ""},
      {"eval_every: ", "0", "1", "1000000000", "1000000001", ""},
      {"threads: ", "0", "1", "1024", "1025", ""},
  };
  for (const auto& [before, below, lowest, highest, above, after] : ranges) {
    for (const std::string& end : {lowest, highest}) {
      const auto options = Options(before + end + after);
      EXPECT_TRUE(options.ok()) << before << end << ": " << options.status();
    }
    for (const std::string& beyond : {below, above}) {
      const auto options = Options(before + beyond + after);
      EXPECT_TRUE(absl::StartsWith(options.status().message(), "job.yaml:")) << before << beyond;
    }
  }
  for (const std::string top_k : {"1e-6", "0.5"}) {
    EXPECT_TRUE(Options("", "update: {top_k: " + top_k + "}\n").ok()) << top_k;
  }
  for (const std::string top_k : {"9.9e-7", "0.51"}) {
    EXPECT_FALSE(Options("", "update: {top_k: " + top_k + "}\n").ok()) << top_k;
  }
  const std::string layers = absl::StrJoin(std::vector<int>(1000, 1), ",");
  for (const std::string& hidden : {std::string("1"), std::string("65536"), layers}) {
    EXPECT_TRUE(Options("", "hidden: [" + hidden + "]\n").ok()) << hidden;
  }
  for (const std::string& hidden : {std::string("0"), std::string("65537"), layers + ",1"}) {
    EXPECT_FALSE(Options("", "hidden: [" + hidden + "]\n").ok()) << hidden;
  }
}

}  // namespace
}  // namespace muster
