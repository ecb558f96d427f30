#include "trainer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<std::string> flags) {
  const auto is_job_name = [](const std::string& flag) { return flag.starts_with("--job_name="); };
  if (std::none_of(flags.begin(), flags.end(), is_job_name)) flags.insert(flags.begin(), "--job_name=local");
  return ParseCommandLine(flags, [](const std::string&) { return std::nullopt; });
}

TrainerOptions Options(const std::vector<std::string>& flags) {
  const auto line = Parse(flags);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->options : TrainerOptions{};
}

std::string Error(const std::vector<std::string>& flags) {
  const auto line = Parse(flags);
  EXPECT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument) << testing::PrintToString(flags);
  return std::string(line.status().message());
}

struct NumberFlag {
  std::string name;
  std::string expected;  // as errors say it
  std::string minimum;
  std::string maximum;
  std::vector<std::string> with = {};  // flags without which it means nothing
};

NumberFlag Whole(const std::string& name, const std::string& minimum, const std::string& maximum,
                 std::vector<std::string> with = {}) {
  return {name, "a whole number from " + minimum + " to " + maximum, minimum, maximum, std::move(with)};
}

NumberFlag Real(const std::string& name, const std::string& minimum, const std::string& maximum,
                std::vector<std::string> with = {}) {
  return {name, "a number from " + minimum + " to " + maximum, minimum, maximum, std::move(with)};
}

// One of two, of one server.
const std::vector<std::string> kWorker = {"--job_name=worker", "--task_index=0", "--ps_hosts=p:1",
                                          "--worker_hosts=a:1,b:1"};

// All flags of the trainer that take a number, but for --min_workers: its maximum depends on others.
const std::vector<NumberFlag>& NumberFlags() {
  static const std::vector<NumberFlag> flags = {
      Whole("task_index", "0", "999999"),
      Whole("connect_timeout", "1", "1000000000"),
      Whole("server_timeout", "1", "1000000000"),
      Whole("worker_timeout", "1", "1000000000"),
      Whole("worker_lease", "2", "1000000000"),
      Whole("bounded_staleness", "0", "1000000", kWorker),
      Whole("max_staleness", "0", "1000000", kWorker),
      Whole("batch_size", "1", "1000000"),
      Whole("global_batch_size", "1", "1000000"),
      Whole("train_steps", "1", "1000000000000"),
      Whole("seed", "0", "18446744073709551615"),
      Whole("threads", "1", "1024"),
      Whole("log_every", "1", "1000000000000"),
      Whole("eval_every", "0", "1000000000000"),
      Real("learning_rate", "1e-30", "1e+30"),
      Real("weight_decay", "0", "1e+30"),
      Real("momentum", "0", "0.999999", {"--optimizer=momentum"}),
      Real("beta1", "0", "0.999999", {"--optimizer=adam"}),
      Real("beta2", "0", "0.999999", {"--optimizer=adam"}),
      Real("epsilon", "1e-30", "1e+30", {"--optimizer=adam"}),
      Real("initial_accumulator", "1e-30", "1e+30", {"--optimizer=adagrad"}),
      Real("l1", "0", "1e+30", {"--optimizer=ftrl"}),
      Real("l2", "0", "1e+30", {"--optimizer=ftrl"}),
      Real("learning_rate_gamma", "0", "1e+30", {"--learning_rate_schedule=inverse"}),
      Real("learning_rate_power", "0", "1e+30", {"--learning_rate_schedule=inverse"}),
      Whole("learning_rate_step_size", "1", "1000000000000", {"--learning_rate_schedule=step"}),
      Whole("learning_rate_decay_steps", "1", "1000000000000", {"--learning_rate_schedule=cosine"}),
      Real("learning_rate_final_fraction", "0", "1", {"--learning_rate_schedule=cosine"}),
      Whole("warmup_steps", "0", "1000000000000"),
  };
  return flags;
}

TEST(Options, AFlagThatIsGivenTwiceIsSaid) {
  EXPECT_EQ(Error({"--seed=1", "--seed=2"}), "--seed is given twice");
  EXPECT_EQ(Error({"--task_index=1", "--task_id=2"}), "--task_index is given twice");
  EXPECT_THAT(Error({"--sync_replicas", "--sync_replicas", "--seed"}), HasSubstr("--seed: 1 required"));
}

TEST(Options, NumbersOutsideTheirBoundsAreRefusedInOneSentence) {
  for (const NumberFlag& flag : NumberFlags()) {
    std::vector<std::string> bad = {"-5", "-1", std::string(40, '9'), "nan", "inf", "x", "1x", "0x", "1,"};
    if (flag.minimum != "0") bad.push_back("0");
    if (flag.expected.starts_with("a whole")) bad.insert(bad.end(), {"+1", "1.0", "1e2", "0x10", " 1"});
    for (const std::string& text : bad) {
      const std::string sentence =
          absl::StrFormat("--%s: expected %s, found \"%s\"", flag.name, flag.expected, text);
      EXPECT_EQ(Error({"--" + flag.name + "=" + text}), sentence);
      EXPECT_EQ(Error({"--" + flag.name, text}), sentence);
    }
  }
  EXPECT_EQ(Error({"--sync_replicas", "--replicas_to_aggregate=-1"}),
            "--replicas_to_aggregate: expected a whole number from 1 to 1000000, found \"-1\"");
  // 2^32 would be task 0 if it wrapped.
  EXPECT_THAT(Error({"--task_id=4294967296"}), HasSubstr("found \"4294967296\""));
}

TEST(Options, HowUpdatesAreMade) {
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), kWorker.begin(), kWorker.end());
    return flags;
  };
  const TrainerOptions backup =
      Options(with({"--sync_replicas", "--replicas_to_aggregate=1", "--batch_size=10"}));
  EXPECT_EQ(backup.update.rule.mode, UpdateMode::kSync);
  EXPECT_EQ(backup.update.aggregate, 1);
  EXPECT_EQ(backup.global_batch_size, 20);
  const TrainerOptions accumulated =
      Options(with({"--sync_replicas", "--replicas_to_aggregate=5", "--batch_size=10"}));
  EXPECT_EQ(accumulated.update.aggregate, 2) << "as sums";
  EXPECT_EQ(accumulated.global_batch_size, 50);
  const TrainerOptions bounded = Options(with({"--bounded_staleness=0"}));
  EXPECT_EQ(bounded.update.rule.mode, UpdateMode::kBounded);
  EXPECT_EQ(bounded.update.rule.staleness, 0u);
  const TrainerOptions async = Options(with({"--max_staleness=3", "--scale_rate_by_staleness"}));
  EXPECT_EQ(async.update.rule.mode, UpdateMode::kAsync);
  EXPECT_EQ(async.update.rule.max_staleness, 3u);
  EXPECT_TRUE(async.update.rule.scale_rate);
  EXPECT_EQ(async.update.rule.worker_count, 2);

  EXPECT_EQ(async.update.compression.wire_type, ps::FLOAT32);
  EXPECT_EQ(async.update.compression.top_k, 0);
  const TrainerOptions compressed = Options(with({"--wire_type=bfloat16", "--top_k=0.01"}));
  EXPECT_EQ(compressed.update.compression.wire_type, ps::BFLOAT16);
  EXPECT_EQ(compressed.update.compression.top_k, 0.01);
  EXPECT_EQ(Options(with({"--wire_type=float16"})).update.compression.wire_type, ps::FLOAT16);

  EXPECT_FALSE(compressed.update.eviction.is_on());
  const RowEviction eviction =
      Options(with({"--evict_rows_after=3", "--checkpoint_every=200"})).update.eviction;
  EXPECT_EQ(eviction.after, 3u);
  EXPECT_EQ(eviction.every, 200u);
  EXPECT_THAT(Error({"--evict_rows_after=3"}), HasSubstr("--evict_rows_after: parameter servers drop rows"));
  EXPECT_THAT(Error(with({"--evict_rows_after=-1"})), HasSubstr("--evict_rows_after"));

  EXPECT_EQ(Error({"--top_k=0.01"}), "--top_k: a process without parameter servers sends nothing");
  EXPECT_EQ(Error({"--wire_type=float16"}), "--wire_type: a process without parameter servers sends nothing");
  EXPECT_THAT(Error(with({"--top_k=0"})), HasSubstr("a number from 1e-06 to 0.5"));
  EXPECT_THAT(Error(with({"--wire_type=int8"})), HasSubstr("--wire_type"));
  EXPECT_EQ(Error(with({"--replicas_to_aggregate=1"})), "--replicas_to_aggregate needs --sync_replicas");
  EXPECT_THAT(Error(with({"--sync_replicas", "--max_staleness=1"})),
              HasSubstr("--max_staleness is for asynchronous updates"));
  EXPECT_THAT(Error(with({"--bounded_staleness=1", "--scale_rate_by_staleness"})),
              HasSubstr("--scale_rate_by_staleness is for asynchronous updates"));
  EXPECT_THAT(Error({"--bounded_staleness=1", "--sync_replicas"}), HasSubstr("excludes"));
  EXPECT_THAT(Error(with({"--sync_replicas", "--replicas_to_aggregate=5", "--global_batch_size=10"})),
              HasSubstr("needs --batch_size"));
  EXPECT_THAT(Error(with({"--scale_rate_by_staleness", "--optimizer=ftrl"})),
              HasSubstr("ftrl takes a constant rate"));
  EXPECT_THAT(Error(with({"--scale_rate_by_staleness", "--model=wide_deep"})),
              HasSubstr("ftrl takes a constant rate"));
}

TEST(Options, BothBoundsAreWithin) {
  for (const NumberFlag& flag : NumberFlags()) {
    for (const std::string& bound : {flag.minimum, flag.maximum}) {
      std::vector<std::string> flags = flag.with;
      flags.push_back("--" + flag.name + "=" + bound);
      EXPECT_EQ(Parse(flags).status(), absl::OkStatus()) << flags.back();
    }
  }
  EXPECT_EQ(Options({"--seed=18446744073709551615"}).seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Options({"--learning_rate=1e-30"}).optimizer.learning_rate, 1e-30f);
  EXPECT_EQ(Options({"--batch_size", "0100"}).global_batch_size, 100);  // decimal, not octal
}

TEST(Options, SizesOfHiddenLayers) {
  EXPECT_THAT(Options({"--model=mnist_mlp", "--hidden=512, 65536"}).model.hidden, ElementsAre(512, 65536));
  for (const std::string text : {"0", "-1", "65537", "4294967297"}) {
    EXPECT_EQ(Error({"--model=mnist_mlp", "--hidden=512," + text}),
              "hidden: a layer of size " + text + "; from 1 to 65536");
  }
  for (const std::string hidden : {"512,x", "512,1.5", "512,,512", "512,99999999999999999999"}) {
    EXPECT_EQ(Error({"--hidden=" + hidden}), "--hidden=" + hidden + ": expected sizes like 512,512");
  }
}

TEST(Options, WhatIsNotGivenOfTheOptimizerIsTheModels) {
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd, .learning_rate = 0.5f};
  EXPECT_EQ(Options({"--model=mnist_softmax"}).optimizer, sgd);
  EXPECT_EQ(Options({"--model=mnist_softmax", "--optimizer=sgd"}).optimizer, sgd);
  OptimizerConfig expected = sgd;
  expected.weight_decay = 0.01f;
  expected.learning_rate = 0.25f;
  EXPECT_EQ(Options({"--weight_decay=0.01", "--learning_rate=0.25"}).optimizer, expected);
}

TEST(Options, AnotherOptimizerThanTheModelsBeginsAsIsUsual) {
  EXPECT_EQ(Options({"--model=mnist_softmax", "--optimizer=adam"}).optimizer,
            (OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f}));
  EXPECT_EQ(
      Options({"--optimizer=momentum", "--momentum=0.8", "--nesterov", "--weight_decay=5e-4"}).optimizer,
      (OptimizerConfig{.kind = OptimizerKind::kMomentum,
                       .learning_rate = 0.01f,
                       .weight_decay = 5e-4f,
                       .momentum = 0.8f,
                       .nesterov = true}));
  EXPECT_EQ(Options({"--optimizer=adam", "--beta1=0.8", "--beta2=0.99", "--epsilon=1e-4"}).optimizer,
            (OptimizerConfig{.kind = OptimizerKind::kAdam,
                             .learning_rate = 0.001f,
                             .beta1 = 0.8f,
                             .beta2 = 0.99f,
                             .epsilon = 1e-4f}));
  EXPECT_EQ(Options({"--optimizer=adagrad", "--initial_accumulator=0.2"}).optimizer,
            (OptimizerConfig{
                .kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f, .initial_accumulator = 0.2f}));
  EXPECT_EQ(Options({"--optimizer=ftrl", "--l1=0.5", "--l2=0.25", "--learning_rate=0.1"}).optimizer,
            (OptimizerConfig{.kind = OptimizerKind::kFtrl, .learning_rate = 0.1f, .l1 = 0.5f, .l2 = 0.25f}));
}

TEST(Options, Schedules) {
  const auto schedule = [](std::vector<std::string> flags) { return Options(flags).optimizer.schedule; };
  EXPECT_EQ(schedule({"--warmup_steps=5"}), (LearningRateSchedule{.warmup_steps = 5}));
  EXPECT_EQ(schedule({"--learning_rate_schedule=inverse"}),
            (LearningRateSchedule{.kind = ScheduleKind::kInverse, .gamma = 1e-4f, .power = 0.75f}));
  EXPECT_EQ(
      schedule({"--learning_rate_schedule=inverse", "--learning_rate_gamma=2", "--learning_rate_power=0.5"}),
      (LearningRateSchedule{.kind = ScheduleKind::kInverse, .gamma = 2, .power = 0.5f}));
  EXPECT_EQ(schedule({"--learning_rate_schedule=step", "--learning_rate_step_size=30"}),
            (LearningRateSchedule{.kind = ScheduleKind::kStep, .gamma = 0.1f, .step_size = 30}));
  // All that the warm-up leaves, unless it is said.
  const LearningRateSchedule cosine{
      .kind = ScheduleKind::kCosine, .decay_steps = 90, .final_fraction = 0.1f, .warmup_steps = 10};
  EXPECT_EQ(schedule({"--learning_rate_schedule=cosine", "--warmup_steps=10", "--train_steps=100",
                      "--learning_rate_final_fraction=0.1"}),
            cosine);
  EXPECT_EQ(schedule({"--learning_rate_schedule=cosine", "--learning_rate_decay_steps=70"}),
            (LearningRateSchedule{.kind = ScheduleKind::kCosine, .decay_steps = 70}));
}

TEST(Options, FlagsThatMeanNothingTogetherAreRefused) {
  EXPECT_EQ(
      Error({"--optimizer=adma"}),
      "--optimizer: no optimizer 'adma', did you mean 'adam'?; there are: sgd, momentum, adagrad, adam, "
      "ftrl");
  EXPECT_EQ(Error({"--learning_rate_schedule=cosin"}),
            "--learning_rate_schedule: no learning-rate schedule 'cosin', did you mean 'cosine'?; there are: "
            "constant, inverse, step, cosine");
  EXPECT_EQ(Error({"--optimizer=sgd", "--momentum=0.9"}),
            "--momentum means nothing with the optimizer sgd, which takes --weight_decay");
  EXPECT_EQ(Error({"--model=mnist_mlp", "--l1=0.1"}),
            "--l1 means nothing with the optimizer adam, which takes --weight_decay, --beta1, --beta2, "
            "--epsilon");
  EXPECT_THAT(Error({"--optimizer=adam", "--nesterov"}), HasSubstr("--nesterov means nothing"));
  EXPECT_THAT(Error({"--optimizer=ftrl", "--weight_decay=0.1"}), HasSubstr("--weight_decay means nothing"));
  EXPECT_EQ(
      Error({"--learning_rate_gamma=0.1"}),
      "--learning_rate_gamma means nothing with the learning-rate schedule constant, which takes no such "
      "flag");
  EXPECT_EQ(Error({"--learning_rate_schedule=cosine", "--learning_rate_power=1"}),
            "--learning_rate_power means nothing with the learning-rate schedule cosine, which takes "
            "--learning_rate_decay_steps, --learning_rate_final_fraction");
  EXPECT_EQ(Error({"--learning_rate_schedule=step"}),
            "--learning_rate_schedule=step needs --learning_rate_step_size");
  EXPECT_THAT(
      Error({"--learning_rate_schedule=step", "--learning_rate_step_size=1", "--learning_rate_gamma=1.5"}),
      HasSubstr("gamma of the learning-rate schedule step is 1.5"));
  EXPECT_EQ(Error({"--learning_rate_schedule=cosine", "--warmup_steps=10", "--train_steps=10"}),
            "--warmup_steps=10 leaves the cosine nothing of 10 steps");
  EXPECT_THAT(Error({"--optimizer=ftrl", "--learning_rate_schedule=cosine"}), HasSubstr("constant"));
}

TEST(Options, TheWidePartHasAnOptimizerOfItsOwn) {
  const TrainerOptions plain = Options({"--model=wide_deep"});
  const TrainerOptions given = Options({"--model=wide_deep", "--wide_learning_rate=0.5", "--wide_l1=0.25",
                                        "--wide_l2=0.125", "--wide_initial_accumulator=2"});
  EXPECT_EQ(given.optimizer, plain.optimizer);
  EXPECT_EQ(*given.wide_optimizer, (OptimizerConfig{.kind = OptimizerKind::kFtrl,
                                                    .learning_rate = 0.5f,
                                                    .initial_accumulator = 2,
                                                    .l1 = 0.25f,
                                                    .l2 = 0.125f}));
  const TrainerOptions deep = Options({"--model=wide_deep", "--learning_rate=0.5", "--wide_optimizer=sgd"});
  EXPECT_EQ(deep.optimizer.learning_rate, 0.5f);
  EXPECT_EQ(*deep.wide_optimizer, UsualOptimizer(OptimizerKind::kSgd));

  EXPECT_EQ(Error({"--model=wide_deep", "--wide_momentum=0.9"}),
            "--wide_momentum means nothing with the optimizer ftrl, which takes --wide_initial_accumulator, "
            "--wide_l1, --wide_l2");
  EXPECT_EQ(Error({"--model=wide_deep", "--wide_optimizer=sgd", "--wide_learning_rate_schedule=step"}),
            "--wide_learning_rate_schedule=step needs --wide_learning_rate_step_size");
  EXPECT_THAT(Error({"--model=wide_deep", "--wide_optimizer=adma"}),
              HasSubstr("--wide_optimizer: no optimizer"));
  EXPECT_EQ(Error({"--model=mnist_mlp", "--wide_l1=1"}),
            "--wide_... is for a wide part beside a deep one; mnist_mlp has one optimizer, --optimizer");
  EXPECT_EQ(
      Error({"--model=wide_deep", "--variant=wide_only", "--wide_l1=1"}),
      "--wide_... is for a wide part beside a deep one; wide_deep wide_only has one optimizer, --optimizer");
}

TEST(Options, AllReduceHasNoServers) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--strategy=allreduce", "--job_name=worker", "--task_index=0"});
    return more;
  };
  const std::string workers = "--worker_hosts=a:1,b:1";
  const TrainerOptions options = Options(with({workers}));
  EXPECT_EQ(options.strategy, Strategy::kAllReduce);
  EXPECT_FALSE(options.is_async());
  EXPECT_EQ(options.first_workers, 2);
  EXPECT_THAT(Error(with({workers, "--ps_hosts=c:1"})), HasSubstr("leave --ps_hosts out"));
  EXPECT_THAT(Error({"--strategy=allreduce"}), HasSubstr("--job_name=local is one process"));
  EXPECT_THAT(Error({"--strategy=allreduce", "--job_name=ps", "--task_index=0", workers, "--ps_hosts=c:1"}),
              HasSubstr("leave --ps_hosts out"));
  EXPECT_THAT(Error(with({workers, "--model=wide_deep"})), HasSubstr("tables of wide_deep"));
  EXPECT_THAT(Error({"--strategy=all_reduce"}), HasSubstr("--strategy"));
  for (const char* flag :
       {"replicas_to_aggregate=2", "bounded_staleness=1", "max_staleness=1", "scale_rate_by_staleness",
        "wire_type=bfloat16", "top_k=0.1", "evict_rows_after=1", "checkpoint_buddy", "durability=journal"}) {
    const std::string given = std::string("--") + flag;
    EXPECT_EQ(Error(with({workers, given})),
              given.substr(0, given.find('=')) +
                  " is for parameter servers: it does not go with --strategy=allreduce");
  }
  EXPECT_EQ(Options(with({workers, "--checkpoint_dir=x"})).checkpoint_dir, "x");
  EXPECT_EQ(options.min_workers, std::nullopt);
  EXPECT_EQ(Options(with({workers, "--min_workers=1"})).min_workers, 1);
  EXPECT_EQ(Error(with({workers, "--min_workers=3"})), "--min_workers=3: there are 2 workers");
  for (const std::string text : {"0", "1000001", "x"}) {
    EXPECT_THAT(Error(with({workers, "--min_workers=" + text})),
                HasSubstr("expected a whole number from 1 to 1000000, found \"" + text + "\""));
  }
  EXPECT_EQ(Error({"--min_workers=1"}), "--min_workers is for --strategy=allreduce");
  EXPECT_EQ(options.bucket_bytes, std::nullopt);
  EXPECT_EQ(Options(with({workers, "--bucket_bytes=auto"})).bucket_bytes, std::nullopt);
  EXPECT_EQ(Options(with({workers, "--bucket_bytes=1025"})).bucket_bytes, 1088) << "whole blocks";
  EXPECT_GT(Options(with({workers, "--deterministic"})).bucket_bytes, int64_t{1} << 39) << "one bucket";
  EXPECT_EQ(Options(with({workers, "--deterministic", "--bucket_bytes=2048"})).bucket_bytes, 2048);
  for (const std::string text : {"0", "1023", "4MiB"}) {
    EXPECT_THAT(Error(with({workers, "--bucket_bytes=" + text})),
                testing::AllOf(HasSubstr("--bucket_bytes (or auto): expected a whole number from 1024"),
                               HasSubstr("found \"" + text + "\"")));
  }
  EXPECT_EQ(Error({"--bucket_bytes=1024"}), "--bucket_bytes is for --strategy=allreduce or hybrid");
  EXPECT_EQ(options.collective, CollectiveChoice::kAuto);
  EXPECT_FALSE(options.trusted_network);
  EXPECT_EQ(Options(with({workers, "--collective=nccl"})).collective, CollectiveChoice::kNccl);
  EXPECT_EQ(Options(with({workers, "--collective=native", "--device=cpu"})).collective,
            CollectiveChoice::kNative);
  EXPECT_TRUE(Options(with({workers, "--trusted_network"})).trusted_network);
  EXPECT_EQ(Error({"--collective=nccl"}), "--collective is for --strategy=allreduce or hybrid");
  EXPECT_EQ(Error({"--trusted_network"}), "--trusted_network is for --strategy=allreduce or hybrid");
  EXPECT_THAT(Error(with({workers, "--collective=mpi"})), HasSubstr("--collective"));
  for (const std::string other : {"--device=cpu", "--device=wait:5", "--deterministic"}) {
    EXPECT_EQ(Error(with({workers, "--collective=nccl", other})),
              "--collective=nccl is for GPUs: it does not go with " + other);
  }
}

TEST(Options, ABatchIsMadeForTheWorkersThatTheTrainingBeganWith) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--job_name=worker", "--task_index=0", "--batch_size=8"});
    return more;
  };
  const std::string three = "--worker_hosts=a:1,b:1,c:1", ps = "--ps_hosts=p:1";
  const std::string allreduce = "--strategy=allreduce";
  const TrainerOptions options = Options(with({three, allreduce, "--first_workers=2"}));
  EXPECT_EQ(options.first_workers, 2);
  EXPECT_EQ(options.global_batch_size, 16);
  EXPECT_EQ(options.update.rule.worker_count, 2);
  EXPECT_EQ(Options(with({three, ps, "--first_workers=4"})).global_batch_size, 32);
  EXPECT_EQ(Options(with({three, allreduce, "--first_workers=2", "--min_workers=3"})).min_workers, 3);
  EXPECT_EQ(Error({"--first_workers=2"}),
            "--first_workers is for tasks of a cluster: --job_name=local is one process");
  EXPECT_TRUE(Options(with({three, ps, "--first_workers=2", "--sync_replicas"})).may_scale());
  EXPECT_EQ(Error(with({three, ps, "--first_workers=2", "--sync_replicas", "--replicas_to_aggregate=1"})),
            "--first_workers: with --replicas_to_aggregate the workers stay those that there were at first");
  EXPECT_EQ(Error(with({three, ps, "--first_workers=2", "--bounded_staleness=1"})),
            "--first_workers: with --bounded_staleness the workers stay those that there were at first");
  EXPECT_EQ(
      Error({"--job_name=worker", "--task_index=0", three, allreduce, "--first_workers=1", "--batch_size=2"}),
      "--global_batch_size=2 is less than one sample for each of 3 workers");
}

TEST(Options, HybridHasServersForTablesAndAllWorkers) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"--strategy=hybrid", "--job_name=worker", "--task_index=0", "--worker_hosts=a:1,b:1"});
    return more;
  };
  const TrainerOptions options =
      Options(with({"--model=wide_deep", "--ps_hosts=c:1", "--bucket_bytes=4096", "--evict_rows_after=2"}));
  EXPECT_EQ(options.strategy, Strategy::kHybrid);
  EXPECT_EQ(options.update.rule.mode, UpdateMode::kSync);
  EXPECT_EQ(options.min_workers, std::nullopt);
  EXPECT_EQ(options.bucket_bytes, 4096);
  EXPECT_THAT(Error(with({})), HasSubstr("no parameter servers"));
  EXPECT_THAT(Error({"--strategy=hybrid", "--model=wide_deep"}),
              HasSubstr("--job_name=local is one process"));
  EXPECT_THAT(Error(with({"--ps_hosts=c:1", "--model=mnist_mlp"})), HasSubstr("mnist_mlp has no tables"));
  for (const char* flag : {"replicas_to_aggregate=2", "bounded_staleness=1", "max_staleness=1",
                           "scale_rate_by_staleness", "wire_type=bfloat16", "top_k=0.1", "min_workers=1"}) {
    const std::string given = std::string("--") + flag;
    EXPECT_EQ(
        Error(with({"--ps_hosts=c:1", given})),
        given.substr(0, given.find('=')) +
            " does not go with --strategy=hybrid: each of its steps is made of all gradients of all workers");
  }
  const std::vector<std::string> server = {"--strategy=hybrid",      "--job_name=ps",  "--task_index=0",
                                           "--worker_hosts=a:1,b:1", "--ps_hosts=c:1", "--checkpoint_dir=x"};
  EXPECT_THAT(Error(server), HasSubstr("nobody can go back to a checkpoint"));
  std::vector<std::string> journal = server;
  journal.push_back("--durability=journal");
  EXPECT_TRUE(Options(journal).journal);
}

TEST(Options, Devices) {
  using Kind = DeviceChoice::Kind;
  EXPECT_EQ(Options({}).device, DeviceChoice{});
  EXPECT_EQ(Options({"--device=cpu"}).device, DeviceChoice{.kind = Kind::kCpu});
  EXPECT_EQ(Options({"--device=cuda"}).device, DeviceChoice{.kind = Kind::kCuda});
  EXPECT_EQ(Options({"--device=cuda:3", "--cuda_math=tf32"}).device,
            (DeviceChoice{.kind = Kind::kCuda, .index = 3, .math = cuda::Math::kTf32}));
  for (const std::string device : {"gpu", "cuda:", "cuda:-1", "cuda:1024", "cuda:99999999999", "CPU",
                                   "wait:", "wait:-1", "wait:1000000"}) {
    EXPECT_EQ(Error({"--device=" + device}),
              "--device=" + device +
                  ": expected auto, cpu, cuda:N with the number of a GPU from 0, or wait:N with milliseconds "
                  "that each step waits instead of computing");
  }
  EXPECT_EQ(Options({"--device=wait:50"}).device, (DeviceChoice{.kind = Kind::kWait, .wait_ms = 50}));
  EXPECT_EQ(Options({"--device=wait:0", "--deterministic"}).device.kind, Kind::kWait);
  EXPECT_EQ(Error({"--evaluate=m", "--device=wait:1"}),
            "--device=wait:1 is for training: a wait evaluates nothing");
  EXPECT_EQ(Error({"--cuda_math=fp16"}), "--cuda_math=fp16: there are: fp32, tf32, bf16");
  // What is promised for unlike hosts is promised for their CPUs.
  EXPECT_EQ(Options({"--deterministic"}).device, DeviceChoice{.kind = Kind::kCpu});
  EXPECT_EQ(Error({"--deterministic", "--device=cuda:0"}),
            "--deterministic excludes --device=cuda:0: unlike GPUs do not give the same bits");
}

TEST(Options, AnEmptyValueIsAVariableThatIsNotSet) {
  for (const std::string flag : {"--save_model", "--data_dir", "--optimizer", "--variant", "--hidden"}) {
    EXPECT_EQ(Error({flag, ""}), flag + ": expected a value, found \"\"");
    EXPECT_EQ(Error({flag + "=", "--seed=3"}), flag + ": expected a value, found \"\"");
  }
}

TEST(Options, FlagsWithoutAValueTakeTrueAndFalse) {
  EXPECT_TRUE(Options({"--prefetch"}).prefetch);
  EXPECT_TRUE(Options({"--prefetch=true"}).prefetch);
  EXPECT_FALSE(Options({"--prefetch=false"}).prefetch);
  for (const std::string flag :
       {"--sync_replicas", "--prefetch", "--deterministic", "--nesterov", "--wide_nesterov"}) {
    for (const std::string value : {"maybe", "3", "-1", "99999999999999999999"}) {
      EXPECT_THAT(Error({flag + "=" + value}), HasSubstr(flag + ": " + value + " not in {true,false,1,0}"));
    }
  }
}

TEST(Options, ATypingErrorIsToldTheNearestFlag) {
  EXPECT_EQ(
      Error({"--trian_steps=3"}),
      "unexpected argument --trian_steps=3; did you mean '--train_steps'? (muster-trainer --help lists the "
      "flags)");
}

TEST(Options, MetricsAreOfTasks) {
  const auto parse = [](std::vector<std::string> flags) {
    return ParseCommandLine(flags, [](const std::string&) { return std::nullopt; });
  };
  const std::vector<std::string> task = {"--job_name=ps", "--task_index=0", "--ps_hosts=a:1",
                                         "--worker_hosts=b:1"};
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> flags = task;
    flags.push_back(flag);
    return parse(flags);
  };
  EXPECT_EQ(with("--metrics_address=0.0.0.0:9464")->options.metrics.address, "0.0.0.0:9464");
  EXPECT_THAT(std::string(with("--metrics_address=9464").status().message()),
              HasSubstr("--metrics_address: "));
  EXPECT_THAT(std::string(with("--metrics_address=9464,127.0.0.1:9465").status().message()),
              HasSubstr("one address, host:port"));
  EXPECT_EQ(with("--metrics_address=[::1]:9464").status().message(),
            "--metrics_address=[::1]:9464: no IPv6 address can be listened on here; name an IPv4 one");
}

TEST(Options, OneProcessIsInNoCluster) {
  for (const std::string flag : {"--ps_hosts=a:1", "--worker_hosts=b:1,c:1", "--cluster_spec=worker|b:1",
                                 "--bind_host=a", "--tls_dir=/t", "--transport=tcp", "--cluster_file=c",
                                 "--metrics_address=a:1", "--metrics_file=m", "--replicas_to_aggregate=4",
                                 "--bounded_staleness=0", "--max_staleness=1", "--scale_rate_by_staleness"}) {
    EXPECT_EQ(Error({flag}),
              flag.substr(0, flag.find('=')) + " is for tasks of a cluster: --job_name=local is one process");
  }
  // In what scripts copy, this one changes nothing: the updates of one worker are synchronous.
  EXPECT_TRUE(Parse({"--sync_replicas"}).ok());
}

// As the command lines of TensorFlow's examples have them.
TEST(Options, WhatIsTrueMayBeginWithACapital) {
  for (const std::string value : {"True", "TRUE", "true", "1"}) {
    EXPECT_EQ(Options({"--sync_replicas=" + value}).update.rule.mode, UpdateMode::kSync) << value;
  }
  for (const std::string value : {"False", "FALSE", "false", "0"}) {
    EXPECT_EQ(Options({"--sync_replicas=" + value}).update.rule.mode, UpdateMode::kAsync) << value;
  }
}

TEST(Options, CheckpointsAreOfParameterServers) {
  const auto parse = [](std::vector<std::string> flags, bool local = false) {
    if (!local) {
      flags.insert(flags.end(), {"--job_name=ps", "--task_index=0", "--ps_hosts=a:1", "--worker_hosts=b:1"});
    }
    return ParseCommandLine(flags, [](const std::string&) { return std::nullopt; });
  };
  const auto line =
      parse({"--checkpoint_dir=/c", "--checkpoint_every=7", "--keep_checkpoints=2", "--durability=journal"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.checkpoint_dir, "/c");
  EXPECT_EQ(line->options.checkpoint_every, 7u);
  EXPECT_EQ(line->options.keep_checkpoints, 2);
  EXPECT_TRUE(line->options.journal);
  const auto error = [&](const std::vector<std::string>& flags, bool local = false) {
    return std::string(parse(flags, local).status().message());
  };
  EXPECT_THAT(error({"--durability=journal"}), HasSubstr("--durability=journal needs --checkpoint_dir"));
  EXPECT_THAT(error({"--durability=replicated"}),
              HasSubstr("--durability=replicated needs two parameter servers"));
  EXPECT_THAT(error({"--durability=twice"}), HasSubstr("--durability"));
  const std::vector<std::string> two = {"--job_name=worker", "--task_index=0", "--ps_hosts=a:1,b:1",
                                        "--worker_hosts=c:1", "--durability=replicated"};
  const auto replicated = parse(two, true);
  ASSERT_TRUE(replicated.ok()) << replicated.status();
  EXPECT_TRUE(replicated->options.replicated);
  std::vector<std::string> with_checkpoints = two;
  with_checkpoints.push_back("--checkpoint_dir=/c");
  EXPECT_THAT(error(with_checkpoints, true), HasSubstr("leave --checkpoint_dir out"));
  EXPECT_FALSE(line->options.checkpoint_buddy);
  EXPECT_THAT(error({"--checkpoint_buddy"}), HasSubstr("--checkpoint_buddy copies checkpoints"));
  EXPECT_THAT(error({"--checkpoint_buddy", "--checkpoint_dir=/c"}),
              HasSubstr("--checkpoint_buddy needs two parameter servers"));
  const auto copied = parse({"--job_name=ps", "--task_index=1", "--ps_hosts=a:1,b:1", "--worker_hosts=c:1",
                             "--checkpoint_buddy", "--checkpoint_dir=/c"},
                            true);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_TRUE(copied->options.checkpoint_buddy);
  EXPECT_EQ(line->options.transport, Transport::kAuto);
  EXPECT_EQ(parse({"--transport=tcp"})->options.transport, Transport::kTcp);
  EXPECT_THAT(error({"--transport=infiniband"}), HasSubstr("--transport"));
  EXPECT_THAT(error({"--checkpoint_every=0"}), HasSubstr("--checkpoint_every"));
  EXPECT_THAT(error({"--keep_checkpoints=0"}), HasSubstr("--keep_checkpoints"));
  EXPECT_THAT(error({"--job_name=local", "--checkpoint_dir=/c"}, true),
              HasSubstr("--checkpoint_dir: parameter servers write checkpoints"));
  EXPECT_EQ(parse({"--inspect_checkpoint=/c"}, true)->inspect_checkpoint, "/c");
  EXPECT_THAT(error({"--inspect_checkpoint=/c", "--seed=3"}, true),
              HasSubstr("--seed means nothing with --inspect_checkpoint"));
}

TEST(Options, ServersMayStandAndJobsHaveNumbersForThem) {
  const auto server = Parse({"--job_name=ps", "--task_index=0", "--ps_hosts=p:1", "--standing"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(server->options.is_standing);
  EXPECT_EQ(server->options.generation, 0u);
  const auto with = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--job_name=worker", "--task_index=0", "--worker_hosts=w:1"});
    return flags;
  };
  const auto worker = Parse(with({"--ps_hosts=p:1", "--job_number=1795730111036630"}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->options.generation, 1'795'730'111'036'630u);
  EXPECT_FALSE(worker->options.is_standing);

  const std::vector<std::string> standing = {"--job_name=ps", "--task_index=0", "--ps_hosts=p:1,p:2",
                                             "--standing"};
  const auto and_also = [&](const std::string& flag) {
    std::vector<std::string> flags = standing;
    flags.push_back(flag);
    return Error(flags);
  };
  EXPECT_THAT(and_also("--worker_hosts=w:1"), HasSubstr("leave --worker_hosts out"));
  EXPECT_THAT(and_also("--durability=replicated"), HasSubstr("not with --durability=replicated yet"));
  EXPECT_THAT(and_also("--job_number=3"), HasSubstr("--job_number is for workers"));
  EXPECT_THAT(Error({"--standing"}), HasSubstr("--standing is for parameter servers: --job_name=ps"));
  EXPECT_THAT(Error({"--job_number=3"}), HasSubstr("--job_number is for workers"));
  EXPECT_THAT(Error(with({"--strategy=allreduce", "--job_number=3"})),
              HasSubstr("--job_number is for workers"));
}

TEST(Options, MakingDataNeedsAFolderAndNoCluster) {
  const auto parse = [](const std::vector<std::string>& flags) {
    return ParseCommandLine(flags, [](const std::string&) { return std::nullopt; });
  };
  const auto line = parse({"--make_data=census", "--data_dir=/tmp/d"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->make_data, "census");
  EXPECT_EQ(line->options.data_dir, "/tmp/d");
  for (const std::string folder : {"auto", "synthetic"}) {
    EXPECT_THAT(Error({"--make_data=mnist", "--data_dir", folder}), HasSubstr("needs --data_dir=FOLDER"));
  }
  EXPECT_THAT(Error({"--make_data=mnist"}), HasSubstr("needs --data_dir=FOLDER"));
  EXPECT_EQ(Error({"--make_data=mnist", "--data_dir=/tmp/d", "--seed=3"}),
            "--seed means nothing with --make_data, which takes --job_name, --data_dir");
  EXPECT_EQ(parse({"--make_data=mnist", "--data_dir=/tmp/d", "--job_name=worker"}).status().message(),
            "--make_data is done by one process: --job_name=local, or none");
  EXPECT_THAT(Error({"--make_data=cifar", "--data_dir=/tmp/d"}), HasSubstr("cifar"));
  const auto training = Parse({});
  ASSERT_TRUE(training.ok());
  EXPECT_FALSE(training->make_data.has_value());
}

}  // namespace
}  // namespace muster
