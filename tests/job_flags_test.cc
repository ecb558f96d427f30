// What a job file may say of optimizers and schedules is what the trainer understands: the launcher has
// tables of its own, because it includes nothing of the trainer.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "inventory/inventory.h"
#include "inventory/job.h"
#include "kernels/optimizer.h"
#include "launcher/plan.h"
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

  // What the trainer makes of the flags of a worker whose job file says `train`.
  absl::StatusOr<OptimizerConfig> Optimizer(const std::string& train) {
    // Its own optimizer is Adam as it usually is.
    MUSTER_ASSIGN_OR_RETURN(
        const Job job,
        ParseJob("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ntrain: {" +
                     train + "}\n",
                 "job.yaml", "/home/me"));
    MUSTER_ASSIGN_OR_RETURN(const Inventory inventory,
                            ParseInventory("hosts: {here: {local: true}}\n", "hosts.yaml", "/home/me"));
    MUSTER_ASSIGN_OR_RETURN(const JobPlan plan,
                            MakePlan(job, inventory, {.installation = {.trainer = trainer_.path()}}));
    const auto& argv = plan.record.tasks(1).start().argv();
    std::vector<std::string> arguments(argv.begin() + 1, argv.end());
    arguments.push_back("--job_name=local");
    const auto line = ParseCommandLine(arguments, [](const std::string&) { return std::nullopt; });
    // The job file was accepted: then the trainer has to understand it.
    EXPECT_TRUE(line.ok()) << train << ": " << line.status();
    if (!line.ok()) return line.status();
    return line->options.optimizer;
  }

  TemporaryDirectory trainer_;
};

bool Contains(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
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

}  // namespace
}  // namespace muster
