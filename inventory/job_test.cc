#include "inventory/job.h"

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Pair;
using Restart = ReplicaSpec::Restart;

absl::StatusOr<Job> Parse(std::string_view text) { return ParseJob(text, "jobs/job.yaml", "/home/me"); }

std::string ErrorOf(std::string_view text) {
  const auto job = Parse(text);
  if (job.ok()) return "OK";
  EXPECT_EQ(ExitCodeFor(job.status()), 2);
  return std::string(job.status().message());
}

TEST(Job, ReadsEveryKeyOfAModelsJob) {
  const auto job = Parse(R"(
name: mnist
model: mnist_mlp
hidden: [512, 256]
data: auto
strategy: parameter_server
update: {mode: sync, aggregate: 4, staleness: 0}
replicas:
  ps:     {count: 2, on: cpu}
  worker: {count: 4, on: gpu, restart: on_failure, max_restarts: 5}
train: {steps: 1000, batch_size: 100, optimizer: adam, learning_rate: 0.001, seed: 1, eval_every: 50, threads: 2,
        augment: shift, save_onnx: true}
checkpoint: {every_steps: 200, keep: 5, buddy: true}
durability: checkpoint
env: {OMP_NUM_THREADS: 4, GREETING: "a b", EMPTY: ""}
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->path, "jobs/job.yaml");
  EXPECT_EQ(job->name, "mnist");
  EXPECT_EQ(job->model, "mnist_mlp");
  EXPECT_THAT(job->hidden, ElementsAre(512, 256));
  EXPECT_EQ(job->data.kind, DataSource::Kind::kAuto);
  EXPECT_EQ(job->strategy, "parameter_server");
  EXPECT_EQ(job->update.mode, UpdateSpec::Mode::kSync);
  EXPECT_EQ(job->update.aggregate, 4);
  EXPECT_EQ(job->ps.count, 2);
  EXPECT_EQ(job->ps.on, "cpu");
  EXPECT_EQ(job->ps.on_position.ToString(), "jobs/job.yaml:9:26");
  EXPECT_EQ(job->ps.restart, Restart::kOnFailure) << "what goes back to a checkpoint is started again";
  EXPECT_EQ(job->ps.max_restarts, 3);
  ASSERT_TRUE(job->checkpoint);
  EXPECT_EQ(job->checkpoint->every_steps, 200);
  EXPECT_EQ(job->checkpoint->keep, 5);
  EXPECT_TRUE(job->checkpoint->buddy);
  EXPECT_EQ(job->worker.count, 4);
  EXPECT_EQ(job->worker.restart, Restart::kOnFailure);
  EXPECT_EQ(job->worker.max_restarts, 5);
  EXPECT_EQ(job->chief.count, 0);
  EXPECT_EQ(&job->replicas(ReplicaRole::kWorker), &job->worker);
  EXPECT_EQ(&job->replicas(ReplicaRole::kPs), &job->ps);
  EXPECT_EQ(&job->replicas(ReplicaRole::kChief), &job->chief);
  EXPECT_EQ(job->train.steps, 1000);
  EXPECT_EQ(job->train.batch_size, 100);
  EXPECT_EQ(job->train.global_batch_size, std::nullopt);
  EXPECT_EQ(job->train.optimizer.kind, "adam");
  EXPECT_EQ(job->train.optimizer.learning_rate, 0.001);
  EXPECT_EQ(job->train.seed, 1);
  EXPECT_EQ(job->train.eval_every, 50);
  EXPECT_EQ(job->train.threads, 2);
  EXPECT_EQ(job->train.augment, "shift");
  EXPECT_TRUE(job->train.save_onnx);
  EXPECT_THAT(job->env,
              ElementsAre(Pair("OMP_NUM_THREADS", "4"), Pair("GREETING", "a b"), Pair("EMPTY", "")));
  EXPECT_TRUE(job->program.empty());
}

TEST(Job, ReadsEveryKeyOfOptimizersAndSchedules) {
  const auto optimizer = [](const std::string& text) {
    const auto job = Parse(
        "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ntrain: {" + text + "}\n");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->train.optimizer : OptimizerSpec{};
  };
  const OptimizerSpec momentum = optimizer(
      "optimizer: momentum, momentum: 0.8, nesterov: true, weight_decay: 5e-4, schedule: {kind: inverse, "
      "gamma: 1e-4, power: 0.75, warmup_steps: 0}");
  EXPECT_EQ(momentum.kind, "momentum");
  EXPECT_EQ(momentum.momentum, 0.8);
  EXPECT_EQ(momentum.nesterov, true);
  EXPECT_EQ(momentum.weight_decay, 5e-4);
  EXPECT_EQ(momentum.schedule.kind, "inverse");
  EXPECT_EQ(momentum.schedule.gamma, 1e-4);
  EXPECT_EQ(momentum.schedule.power, 0.75);
  EXPECT_EQ(momentum.schedule.warmup_steps, 0);
  const OptimizerSpec adam = optimizer(
      "optimizer: adam, beta1: 0.8, beta2: 0.99, epsilon: 1e-4, schedule: {kind: cosine, decay_steps: 50, "
      "final_fraction: 0.1, warmup_steps: 5}");
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.beta2, 0.99);
  EXPECT_EQ(adam.epsilon, 1e-4);
  EXPECT_EQ(adam.schedule.decay_steps, 50);
  EXPECT_EQ(adam.schedule.final_fraction, 0.1);
  EXPECT_EQ(adam.schedule.warmup_steps, 5);
  const OptimizerSpec ftrl =
      optimizer("optimizer: ftrl, l1: 0.5, l2: 0.25, initial_accumulator: 0.2, schedule: {}");
  EXPECT_EQ(ftrl.l1, 0.5);
  EXPECT_EQ(ftrl.l2, 0.25);
  EXPECT_EQ(ftrl.initial_accumulator, 0.2);
  EXPECT_EQ(ftrl.schedule.kind, std::nullopt);
  const OptimizerSpec step = optimizer("schedule: {kind: step, step_size: 30, gamma: 0.5}");
  EXPECT_EQ(step.schedule.step_size, 30);
  EXPECT_EQ(step.kind, std::nullopt);
}

TEST(Job, LeavesWhatIsNotGivenToTheTrainer) {
  const auto job = Parse("name: j\nmodel: mnist_softmax\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->strategy, "parameter_server");
  EXPECT_EQ(job->data.kind, DataSource::Kind::kAuto);
  EXPECT_EQ(job->update.mode, std::nullopt);
  EXPECT_EQ(job->update.aggregate, std::nullopt);
  EXPECT_EQ(job->train.steps, std::nullopt);
  EXPECT_EQ(job->train.seed, std::nullopt);
  EXPECT_EQ(job->train.augment, std::nullopt);
  EXPECT_FALSE(job->train.save_onnx);
  EXPECT_TRUE(job->hidden.empty());
  EXPECT_TRUE(job->env.empty());
}

TEST(Job, AllReduceHasWorkersThatComeBack) {
  using Restart = ReplicaSpec::Restart;
  const std::string head = "name: j\nmodel: mnist_mlp\nstrategy: allreduce\nreplicas: ";
  const auto job = Parse(head + "{chief: {count: 1}, worker: {count: 3, min: 2}}\nupdate: {mode: sync}\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->is_allreduce());
  EXPECT_EQ(job->worker.min, 2);
  EXPECT_EQ(job->worker.max, std::nullopt);
  const std::string grows = head + "{worker: {count: 3, max: 9}}\ntrain: {batch_size: 3}\n";
  EXPECT_EQ(Parse(grows)->worker.max, 9);
  const auto scaled = ParseJob(grows, "job.yaml", "/home/me", {.workers = 12});
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->worker.count, 12);
  EXPECT_EQ(scaled->worker.max, std::nullopt) << "who says how many there are to be has said it";
  for (const ReplicaSpec& replicas : {job->chief, job->worker}) {
    EXPECT_EQ(replicas.restart, Restart::kOnFailure);
    EXPECT_GT(replicas.max_restarts, 0);
  }
  EXPECT_EQ(Parse(head + "{worker: {count: 3, restart: never}}\n")->worker.restart, Restart::kNever);
  for (const std::string bytes : {"auto", "4194304"}) {
    EXPECT_EQ(
        Parse(head + "{worker: {count: 3}}\nupdate: {bucket_bytes: " + bytes + "}\n")->update.bucket_bytes,
        bytes);
  }
}

TEST(Job, HybridHasServersAndWorkersThatComeBack) {
  const auto job = Parse(
      "name: j\nmodel: wide_deep\nstrategy: hybrid\nreplicas: {ps: {count: 2}, worker: {count: 3}}\n"
      "update: {bucket_bytes: auto, evict_rows_after: 3}\ncheckpoint: {every_steps: 5}\ndurability: "
      "journal\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->is_hybrid());
  EXPECT_EQ(job->worker.restart, ReplicaSpec::Restart::kOnFailure);
  EXPECT_EQ(job->ps.restart, ReplicaSpec::Restart::kOnFailure);
}

TEST(Job, EveryModelIsSavedAsOnnxOnRequest) {
  for (const std::string model : {"mnist_softmax", "mnist_mlp", "mnist_cnn", "wide_deep"}) {
    const auto job = Parse("name: j\nmodel: " + model +
                           "\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ntrain: {save_onnx: true}\n");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(job->train.save_onnx);
  }
}

TEST(Job, ReadsAnyOtherProgram) {
  const auto job = Parse(R"(
name: my-job
program: [python3, train.py, --rate, 0.5, ""]
files: [train.py, ./lib/x.py]
flags: tensorflow
data: {on_hosts: /data}
replicas: {worker: {count: 2, restart: exit_code}, chief: {count: 1, max_restarts: 0}}
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model, "");
  EXPECT_EQ(job->strategy, "");
  EXPECT_THAT(job->program, ElementsAre("python3", "train.py", "--rate", "0.5", ""));
  EXPECT_THAT(job->files,
              ElementsAre(Field(&ProgramFile::path, "train.py"), Field(&ProgramFile::path, "lib/x.py")));
  EXPECT_EQ(job->files[1].position.ToString(), "jobs/job.yaml:4:19");
  EXPECT_EQ(job->data.position.ToString(), "jobs/job.yaml:6:7");
  EXPECT_TRUE(job->tensorflow_flags);
  EXPECT_EQ(job->data.kind, DataSource::Kind::kOnHosts);
  EXPECT_EQ(job->data.folder, "/data");
  EXPECT_EQ(job->worker.restart, Restart::kExitCode);
  EXPECT_EQ(job->worker.max_restarts, 3);
  EXPECT_EQ(job->chief.restart, Restart::kOnFailure);
  EXPECT_EQ(job->chief.max_restarts, 0);

  const auto plain = Parse("name: j\nprogram: [./x]\nflags: none\nreplicas: {worker: {count: 1}}\n");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->tensorflow_flags);
  EXPECT_EQ(plain->data.kind, DataSource::Kind::kNone);
}

TEST(Job, AFolderOfDataIsRelativeToTheJobFile) {
  const auto folder = [](const std::string& data) {
    const auto job = Parse("name: j\nmodel: mnist_mlp\ndata: " + data +
                           "\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n");
    EXPECT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->data.kind, DataSource::Kind::kFolder);
    return job->data.folder;
  };
  EXPECT_EQ(folder("sets"), "jobs/sets");
  EXPECT_EQ(folder("/sets"), "/sets");
  EXPECT_EQ(folder("~/sets"), "/home/me/sets");
}

TEST(Job, RefusesBadInputWithItsPlace) {
  // Lines 1 to 3 of each case; the case itself starts at line 4.
  const std::string head = "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 2}, worker: {count: 3}}\n";
  const struct {
    const char* text;
    const char* error;  // after "jobs/job.yaml:"
  } kCases[] = {
      {"modle: x\n", "4:1: unknown key \"modle\" in the job; did you mean \"model\"?"},
      {"name: k\n", "4:1: duplicate key \"name\", given before at jobs/job.yaml:1:1"},
      {"variant: deep\n", "4:1: \"mnist_mlp\" has no variants"},
      {"hidden: 100\n", "4:9: expected a list of sizes of hidden layers, found \"100\""},
      {"hidden: [0]\n", "4:10: expected a whole number from 1 to 65536, found \"0\""},
      {"data: [a]\n", "4:7: expected auto, a folder, or {on_hosts: a folder there}, found a list"},
      {"data: {on_host: /data}\n", "4:8: unknown key \"on_host\" in data; did you mean \"on_hosts\"?"},
      {"data: {on_hosts: data}\n", "4:18: \"data\" must start with / or ~/: it is a folder on the host"},
      {"data:\n", "4:1: expected auto, a folder, or {on_hosts: a folder there}, found nothing"},
      {"strategy: hybrid\n", "4:11: mnist_mlp has no tables for parameter servers: take allreduce"},
      {"strategy: allreduce\n", "3:24: strategy allreduce has no ps: leave it out"},
      {"strategy: parameter-server\n",
       "4:11: unknown strategy \"parameter-server\"; did you mean \"parameter_server\"?"},
      {"update: sync\n", "4:9: expected a mapping (`key: value`) in update, found \"sync\""},
      {"update: {mode: bounded}\n",
       "4:9: `mode: bounded` needs \"staleness\", the steps that a worker may be ahead of the slowest"},
      {"update: {mode: bounded, staleness: 2, aggregate: 2}\n",
       "4:39: \"aggregate\" needs `mode: sync`: only there a number of gradients makes a step"},
      {"update: {mode: sync, max_staleness: 2}\n", "4:22: \"max_staleness\" needs `mode: async`"},
      {"update: {mode: bounded, staleness: 1, scale_rate: true}\n",
       "4:39: \"scale_rate\" needs `mode: async`"},
      {"update: {wire_type: float8}\n", "4:21: unknown wire type \"float8\"; did you mean \"float32\"?"},
      {"update: {top_k: 1.5}\n", "4:17: expected a number from 1e-06 to 0.5, found \"1.5\""},
      {"update: {evict_rows_after: -1}\n", "4:28: expected a whole number from 0 to 1000000, found \"-1\""},
      {"update: {mode: snyc}\n", "4:16: unknown mode \"snyc\"; did you mean \"sync\"?"},
      {"update: {mode: fast}\n", "4:16: unknown mode \"fast\"; it is one of: async, sync, bounded"},
      {"update: {mode: async, staleness: 2}\n",
       "4:23: \"staleness\" needs `mode: bounded`; what drops old gradients in async mode is "
       "\"max_staleness\""},
      {"update: {mode: sync, staleness: 2}\n",
       "4:22: \"staleness\" needs `mode: bounded`; what drops old gradients in async mode is "
       "\"max_staleness\""},
      {"update: {mode: async, aggregate: 3}\n",
       "4:23: \"aggregate\" needs `mode: sync`: only there a number of gradients makes a step"},
      {"update: {mode: sync, aggregate: 4}\ntrain: {global_batch_size: 300}\n",
       "4:22: 4 gradients of 3 workers need `train: {batch_size: ...}`, the samples of each gradient"},
      {"update: {mode: sync, aggregate: 0}\n", "4:33: expected a whole number from 1 to 8192, found \"0\""},
      {"train: {step: 5}\n", "4:9: unknown key \"step\" in train; did you mean \"steps\"?"},
      {"train: {steps: -5}\n", "4:16: expected a whole number from 1 to 1000000000, found \"-5\""},
      {"train: {steps: many}\n", "4:16: expected a whole number from 1 to 1000000000, found \"many\""},
      {"train: {steps: 1e3}\n", "4:16: expected a whole number from 1 to 1000000000, found \"1e3\""},
      {"train: {batch_size: 99999999999999999999}\n",
       "4:21: expected a whole number from 1 to 1000000, found \"99999999999999999999\""},
      {"train: {learning_rate: 0}\n", "4:24: expected a number from 1e-30 to 1000, found \"0\""},
      {"train: {learning_rate: nan}\n", "4:24: expected a number from 1e-30 to 1000, found \"nan\""},
      {"train: {optimizer: adma}\n", "4:20: unknown optimizer \"adma\"; did you mean \"adam\"?"},
      {"train: {optimizer: [adam]}\n",
       "4:20: expected one of sgd, momentum, adagrad, adam, ftrl, found a list"},
      {"train: {momentum: 0.9}\n",
       "4:9: \"momentum\" belongs to an optimizer: give \"optimizer\" too, one of momentum"},
      {"train: {optimizer: adam, nesterov: true}\n",
       "4:26: \"nesterov\" means nothing with `optimizer: adam`, only with momentum"},
      {"train: {optimizer: ftrl, weight_decay: 0.1}\n",
       "4:26: \"weight_decay\" means nothing with `optimizer: ftrl`, only with sgd, momentum, adagrad, adam"},
      {"train: {optimizer: momentum, momentum: 1}\n",
       "4:40: expected a number from 0 to 0.999999, found \"1\""},
      {"train: {optimizer: momentum, momemtum: 0.9}\n",
       "4:30: unknown key \"momemtum\" in train; did you mean \"momentum\"?"},
      {"train: {optimizer: momentum, nesterov: 1}\n", "4:40: expected true or false, found \"1\""},
      {"train: {optimizer: momentum, nesterov: tRUE}\n", "4:40: expected true or false, found \"tRUE\""},
      {"train: {optimizer: adam, epsilon: 0}\n", "4:35: expected a number from 1e-30 to 1e+06, found \"0\""},
      {"train: {schedule: cosine}\n",
       "4:19: expected a mapping (`key: value`) in schedule, found \"cosine\""},
      {"train: {schedule: {kind: cosin}}\n", "4:26: unknown schedule \"cosin\"; did you mean \"cosine\"?"},
      {"train: {schedule: {warmup_step: 5}}\n",
       "4:20: unknown key \"warmup_step\" in schedule; did you mean \"warmup_steps\"?"},
      {"train:\n  schedule:\n    gamma: 0.5\n",
       "6:5: \"gamma\" belongs to a kind of schedule: give \"kind\" too, one of inverse, step"},
      {"train: {schedule: {kind: cosine, power: 2}}\n",
       "4:34: \"power\" means nothing with `kind: cosine`, only with inverse"},
      {"train: {schedule: {kind: step}}\n", "4:26: the schedule step needs \"step_size\""},
      {"train: {schedule: {kind: step, step_size: 1, gamma: 2}}\n",
       "4:53: expected a number from 1e-30 to 1, found \"2\""},
      {"train: {schedule: {kind: cosine, final_fraction: 1.5}}\n",
       "4:50: expected a number from 0 to 1, found \"1.5\""},
      {"train: {steps: 10, schedule: {kind: cosine, warmup_steps: 10}}\n",
       "4:59: \"warmup_steps\" leaves the cosine nothing of 10 steps"},
      {"train: {schedule: {kind: cosine, warmup_steps: 10}}\n",
       "4:48: a cosine behind \"warmup_steps\" ends with the training: give \"steps\" in train, or "
       "\"decay_steps\" here"},
      {"train: {optimizer: ftrl, schedule: {warmup_steps: 10}}\n",
       "4:26: the optimizer ftrl takes a constant learning rate only, without warm-up"},
      {"train: {seed: -1}\n", "4:15: expected a whole number from 0 to 9223372036854775807, found \"-1\""},
      {"train: {device: gpu}\n",
       "4:17: expected auto, cpu, cuda:N with the number of a GPU from 0, or wait:N with milliseconds, found "
       "\"gpu\""},
      {"train: {device: \"cuda:\"}\n",
       "4:17: expected auto, cpu, cuda:N with the number of a GPU from 0, or wait:N with milliseconds, found "
       "the text "
       "\"cuda:\""},
      {"train: {threads: 0}\n", "4:18: expected a whole number from 1 to 1024, found \"0\""},
      {"train: {augment: shfit}\n", "4:18: unknown augmentation \"shfit\"; did you mean \"shift\"?"},
      {"train: {augment: true}\n", "4:18: unknown augmentation \"true\"; it is one of: shift"},
      {"train: {augment: [shift]}\n", "4:18: expected one of shift, found a list"},
      {"train: {save_onnx: model.onnx}\n", "4:20: expected true or false, found \"model.onnx\""},
      {"train:\n  batch_size: 10\n  global_batch_size: 30\n",
       "6:3: \"batch_size\" (of each worker) and \"global_batch_size\" (of all together) exclude each other"},
      {"train: {global_batch_size: 2}\n",
       "4:28: \"global_batch_size\" is 2, but each of the 3 workers needs at least one sample"},
      {"checkpoint: {every_steps: 0}\n",
       "4:27: expected a whole number from 1 to 1000000000000, found \"0\""},
      {"checkpoint: {keep: 0}\n", "4:20: expected a whole number from 1 to 1000000, found \"0\""},
      {"checkpoint: {every: 5}\n",
       "4:14: unknown key \"every\" in checkpoint; keys there are: every_steps, keep, buddy"},
      {"durability: replicated\ncheckpoint: {keep: 1}\n",
       "5:1: servers that are `durability: replicated` write no checkpoints"},
      {"program: [x]\n",
       "4:1: \"model\" and \"program\" exclude each other; the model is at jobs/job.yaml:2:1"},
      {"files: [x]\n", "4:1: \"files\" means nothing with \"model\""},
      {"flags: tensorflow\n", "4:1: \"flags\" means nothing with \"model\""},
      {"env: [A]\n", "4:6: expected a mapping from names of variables to values, found a list"},
      {"env: {1A: x}\n", "4:7: \"1A\" is not the name of an environment variable"},
      {"env: {A=B: x}\n", "4:7: \"A=B\" is not the name of an environment variable"},
      {"env: {TF_CONFIG: x}\n", "4:7: \"TF_CONFIG\" is set by muster itself"},
      {"env: {MUSTER_JOB: x}\n", "4:7: \"MUSTER_JOB\" is set by muster itself"},
      {"env: {A: [x]}\n", "4:10: expected text, found a list"},
      {"env: {A: }\n", "4:7: expected text, found nothing"},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(ErrorOf(head + test.text), std::string("jobs/job.yaml:") + test.error) << test.text;
  }
}

TEST(Job, RefusesBadNamesModelsAndReplicasWithTheirPlace) {
  const std::string replicas = "replicas: {ps: {count: 1}, worker: {count: 1}}\n";
  const std::string model = "name: j\nmodel: mnist_mlp\n";
  const struct {
    std::string text;
    const char* error;  // after "jobs/job.yaml:"
  } kCases[] = {
      {"", "1:1: the file is empty"},
      {"- a\n", "1:1: expected a mapping (`key: value`) in the job, found a list"},
      {"name: j\n", "1:1: \"replicas\" is missing in the job"},
      {"model: mnist_mlp\n" + replicas, "1:1: \"name\" is missing in the job"},
      {"name: j\n" + replicas, "1:1: what to run is missing: \"model\", or \"program\" for your own"},
      {"name: a/b\nmodel: mnist_mlp\n" + replicas,
       "1:7: \"a/b\" is not a job name: letters, digits, '-', '_' and '.', the first a letter or digit, at "
       "most 63 bytes"},
      {"name: " + std::string(64, 'x') + "\nmodel: mnist_mlp\n" + replicas,
       "1:7: \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" is not a job name: letters, "
       "digits, '-', "
       "'_' and '.', the first a letter or digit, at most 63 bytes"},
      {"name: ..\nmodel: mnist_mlp\n" + replicas,
       "1:7: \"..\" is not a job name: letters, digits, '-', '_' and '.', the first a letter or digit, at "
       "most 63 bytes"},
      {"name: j\nmodel: mnist_mpl\n" + replicas,
       "2:8: unknown model \"mnist_mpl\"; did you mean \"mnist_mlp\"?"},
      {"name: j\nmodel: resnet\n" + replicas,
       "2:8: unknown model \"resnet\"; it is one of: mnist_softmax, mnist_mlp, mnist_cnn, wide_deep"},
      {"name: j\nmodel: mnist_cnn\nvariant: dep\n" + replicas,
       "3:10: unknown variant \"dep\" of mnist_cnn; did you mean \"deep\"?"},
      {model + "checkpoint: {buddy: true}\n" + replicas,
       "3:21: another server's copies need two ps at least"},
      {"name: j\nmodel: mnist_mlp\nhidden: []\n" + replicas,
       "3:1: no sizes: give at least one, or leave it out for those of the model"},
      {"name: j\nmodel: mnist_mlp\nhidden: [" + absl::StrJoin(std::vector<int>(1001, 1), ",") + "]\n" +
           replicas,
       "3:1: 1001 hidden layers; at most 1000"},
      {"name: j\nmodel: mnist_cnn\nhidden: [3]\n" + replicas, "3:1: \"mnist_cnn\" has no hidden layers"},
      {"name: j\nmodel: wide_deep\nvariant: wide_olny\n" + replicas,
       "3:10: unknown variant \"wide_olny\" of wide_deep; did you mean \"wide_only\"?"},
      {"name: j\nmodel: wide_deep\nvariant: wide_only\ntrain: {schedule: {kind: inverse}}\n" + replicas,
       "4:9: wide columns are trained by ftrl, which takes a constant learning rate only"},
      {"name: j\nmodel: wide_deep\ntrain: {wide: {schedule: {kind: inverse}}}\n" + replicas,
       "3:16: wide columns are trained by ftrl, which takes a constant learning rate only"},
      {"name: j\nmodel: wide_deep\ntrain: {wide: {l1: 1}}\n" + replicas,
       "3:16: \"l1\" belongs to an optimizer: give \"optimizer\" too, one of ftrl"},
      {"name: j\nmodel: wide_deep\ntrain: {wide: {steps: 1}}\n" + replicas,
       "3:16: unknown key \"steps\" in wide; keys there are: optimizer, learning_rate, weight_decay, "
       "momentum, nesterov, beta1, beta2, epsilon, initial_accumulator, l1, l2, schedule"},
      {"name: j\nmodel: wide_deep\nvariant: wide_only\ntrain: {wide: {learning_rate: 1}}\n" + replicas,
       "4:9: \"wide_only\" has one optimizer, whose keys stand in \"train\" itself, without \"wide\""},
      {"name: j\nmodel: mnist_mlp\ntrain: {wide: {learning_rate: 1}}\n" + replicas,
       "3:9: \"wide\" is for the wide part of a model, which mnist_mlp does not have"},
      {"name: j\nmodel: wide_deep\ntrain: {augment: shift}\n" + replicas,
       "3:9: \"augment\" is for images, which wide_deep does not take"},
      {"name: j\nmodel: wide_deep\nvariant: wide_only\nhidden: [3]\n" + replicas,
       "4:1: \"wide_only\" of wide_deep has no hidden layers"},
      {"name: j\nmodel: mnist_softmax\nhidden: [3]\n" + replicas,
       "3:1: \"mnist_softmax\" has no hidden layers"},
      {"name: j\nmodel: wide_deep\nstrategy: allreduce\nreplicas: {worker: {count: 1}}\n",
       "3:11: the tables of wide_deep are on parameter servers, which allreduce does not have: hybrid has "
       "both"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\nreplicas: {worker: {count: 1}}\n",
       "4:11: strategy hybrid needs at least one ps"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\nupdate: {mode: async}\n" + replicas,
       "4:16: hybrid is always `sync`"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\nupdate: {wire_type: float16}\n" + replicas,
       "4:10: \"wire_type\" is for parameter servers that have all parameters"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\ncheckpoint: {}\n" + replicas,
       "4:1: with hybrid nobody can go back to a checkpoint, which has only the tables: with "
       "`durability: journal` or `replicated` nobody has to"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\ndurability: checkpoint\n" + replicas,
       "4:1: with hybrid nobody can go back to a checkpoint, which has only the tables: with "
       "`durability: journal` or `replicated` nobody has to"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2, min: 3}}\n",
       "4:36: \"min\" is 3 of 2 workers"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2, min: 0}}\n",
       "4:36: expected a whole number from 1 to 4096, found \"0\""},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2}, chief: {count: 1, min: 1}}\n",
       "4:50: \"min\" is for workers"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2}, chief: {count: 1, max: 1}}\n",
       "4:50: \"max\" is for workers"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 3, max: 2}}\n",
       "4:36: \"max\" is 2, less than the 3 of \"count\""},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2, max: 9}}\ntrain: {batch_size: 4}\n",
       "4:36: 9 workers cannot share a batch of 8 samples"},
      {model +
           "replicas: {ps: {count: 1}, worker: {count: 2, max: 3}}\nupdate: {mode: bounded, staleness: 1}\n",
       "3:47: \"max\": nobody can join such a job while it runs: with `update: {mode: bounded}` each step is "
       "made by all that there were at first"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 2, max: 9}}\nupdate: {mode: sync}\n"
               "train: {global_batch_size: 8}\n",
       "3:52: 9 workers cannot share a batch of 8 samples"},
      {"name: j\nmodel: wide_deep\nstrategy: hybrid\nreplicas: {ps: {count: 1}, worker: {count: 2, min: "
       "1}}\n",
       "4:47: \"min\": with `strategy: hybrid` no worker can be missing"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 2, hung_after: 2s}}\n",
       "3:59: \"hung_after\" is 5s at least: progress is reported once a second"},
      {model + "replicas: {ps: {count: 1, gpus: 1}, worker: {count: 2}}\n",
       "3:27: \"gpus\": servers compute on their processors"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 2, gpus: 2}}\n",
       "3:53: each worker of muster's trainer computes on one GPU: give the job more workers"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 2, max_log_bytes: 10000}}\n",
       "3:62: expected a whole number from 100000 to 1125899906842624, found \"10000\""},
      {model + "replicas: {ps: {count: 1, min: 1}, worker: {count: 2}}\n", "3:27: \"min\" is for workers"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 2, min: 3}}\n", "3:52: \"min\" is 3 of 2 workers"},
      {model + "strategy: allreduce\nupdate: {mode: async}\nreplicas: {worker: {count: 2}}\n",
       "4:16: allreduce is always `sync`"},
      {model + "strategy: allreduce\nupdate: {mode: sync, top_k: 0.1}\nreplicas: {worker: {count: 2}}\n",
       "4:22: \"top_k\" is for parameter servers"},
      {model + "strategy: allreduce\nupdate: {bucket_bytes: 4M}\nreplicas: {worker: {count: 2}}\n",
       "4:24: expected auto, or bytes from 1024 to 1099511627776, found \"4M\""},
      {model + "update: {bucket_bytes: auto}\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n",
       "3:10: \"bucket_bytes\" is for `strategy: allreduce` or `hybrid`"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2}}\ncheckpoint: {buddy: true}\n",
       "5:14: \"buddy\" is for parameter servers"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2}}\ndurability: replicated\n",
       "5:13: with allreduce each worker has all parameters already; what is left to keep is a `checkpoint`"},
      {model + "strategy: allreduce\nreplicas: {worker: {count: 2}}\ndurability: journal\n",
       "5:13: with allreduce each worker has all parameters already; what is left to keep is a `checkpoint`"},
      {model + "collective: nccl\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n",
       "3:1: \"collective\" is for `strategy: allreduce` or `hybrid`"},
      {model + "trusted_network: true\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n",
       "3:1: \"trusted_network\" is for `strategy: allreduce` or `hybrid`"},
      {model + "strategy: allreduce\ncollective: ncl\nreplicas: {worker: {count: 2}}\n",
       "4:13: unknown collective \"ncl\"; did you mean \"nccl\"?"},
      {model +
           "strategy: allreduce\ncollective: nccl\ntrain: {device: cpu}\nreplicas: {worker: {count: 2}}\n",
       "4:13: `nccl` is for GPUs: it does not go with \"cpu\", the device of \"train\""},
      {model + "strategy: allreduce\ntrusted_network: maybe\nreplicas: {worker: {count: 2}}\n",
       "4:18: expected true or false, found \"maybe\""},
      {model + "replicas: {}\n", "3:11: \"worker\" is missing in replicas"},
      {model + "replicas: {workers: {count: 1}}\n",
       "3:12: unknown key \"workers\" in replicas; did you mean \"worker\"?"},
      {model + "replicas: {worker: {count: 1}}\n", "3:11: strategy parameter_server needs at least one ps"},
      {model + "replicas: {ps: {count: 0}, worker: {count: 1}}\n",
       "3:24: strategy parameter_server needs at least one ps"},
      {model + "replicas: {ps: {count: -1}, worker: {count: 1}}\n",
       "3:24: expected a whole number from 0 to 4096, found \"-1\""},
      {model + "replicas: {ps: {count: 1}, worker: {count: 0}}\n", "3:44: a job needs at least one worker"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 1}, chief: {count: 2}}\n",
       "3:63: a job has at most one chief"},
      {model + "replicas: {ps: {count: 1}, worker: 3}\n",
       "3:36: expected a mapping (`key: value`) in worker, found \"3\""},
      {model + "replicas:\n  ps: {count: 1}\n  worker:\n", "5:3: \"count\" is missing in worker"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 1, restart: on-failure}}\n",
       "3:56: unknown restart policy \"on-failure\"; did you mean \"on_failure\"?"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 1, restart: never, max_restarts: 2}}\n",
       "3:63: \"max_restarts\" means nothing with `restart: never`"},
      {model + "replicas: {ps: {count: 1}, worker: {count: 1, max_restarts: -2}}\n",
       "3:61: expected a whole number from 0 to 1000000, found \"-2\""},
      {"name: j\nprogram: python3 train.py\n" + replicas,
       "2:10: expected a list of a program and its arguments, like [python3, train.py], found \"python3 "
       "train.py\""},
      {"name: j\nprogram: []\n" + replicas, "2:10: the program's name is missing"},
      {"name: j\nprogram: [x]\ntrain: {steps: 1}\n" + replicas,
       "3:1: \"train\" means nothing with \"program\""},
      {"name: j\nprogram: [x]\ndata: auto\n" + replicas,
       "3:7: \"auto\" is the data of a model; a program names its folder"},
      {"name: j\nprogram: [x]\nfiles: [../x]\n" + replicas,
       "3:9: \"../x\" must be the path of a file below the folder of the job file"},
      {"name: j\nprogram: [x]\nfiles: [/etc/passwd]\n" + replicas,
       "3:9: \"/etc/passwd\" must be the path of a file below the folder of the job file"},
      {"name: j\nprogram: [x]\nfiles: [a/../../x]\n" + replicas,
       "3:9: \"a/../../x\" must be the path of a file below the folder of the job file"},
      {"name: j\nprogram: [x]\nfiles: [x, log]\n" + replicas,
       "3:12: \"log\" is where the task's folder holds muster's own; give the file another name"},
      {"name: j\nprogram: [x]\nfiles: .muster/task\n" + replicas,
       "3:8: \".muster/task\" is where the task's folder holds muster's own; give the file another name"},
      {"name: j\nprogram: [x]\nfiles: [./a/../log/x]\n" + replicas,
       "3:9: \"./a/../log/x\" is where the task's folder holds muster's own; give the file another name"},
      {"name: j\nprogram: [x]\nfiles: [.]\n" + replicas,
       "3:9: \".\" must be the path of a file below the folder of the job file"},
      {"name: j\nprogram: [x]\nfiles: [lib/]\n" + replicas,
       "3:9: \"lib/\" must be the path of a file below the folder of the job file"},
      {"name: j\nprogram: [x]\nflags: tensorfow\n" + replicas,
       "3:8: unknown kind of flags \"tensorfow\"; did you mean \"tensorflow\"?"},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(ErrorOf(test.text), std::string("jobs/job.yaml:") + test.error) << test.text;
  }
}

TEST(Job, ReadsHowUpdatesAreMade) {
  const std::string head = "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 3}}\n";
  const auto update = [&](const std::string& text) {
    const auto job = Parse(head + "update: " + text + "\n");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->update : UpdateSpec();
  };
  EXPECT_EQ(update("{mode: sync, aggregate: 2}").aggregate, 2);
  EXPECT_EQ(update("{mode: sync, aggregate: 7}\ntrain: {batch_size: 10}").aggregate, 7);
  EXPECT_EQ(update("{mode: bounded, staleness: 3}").mode, UpdateSpec::Mode::kBounded);
  EXPECT_EQ(update("{mode: bounded, staleness: 3}").staleness, 3);
  const UpdateSpec async = update("{max_staleness: 5, scale_rate: true}");
  EXPECT_EQ(async.max_staleness, 5);
  EXPECT_EQ(async.scale_rate, true);
  EXPECT_EQ(async.wire_type, std::nullopt);
  EXPECT_EQ(update("{wire_type: bfloat16, top_k: 0.01}").wire_type, "bfloat16");
  EXPECT_EQ(update("{wire_type: bfloat16, top_k: 0.01}").top_k, 0.01);
  EXPECT_EQ(update("{evict_rows_after: 5}").evict_rows_after, 5);
}

TEST(Job, ServersAreStartedAgainOnlyWhereTheyHaveCheckpointsOrTheFileSaysSo) {
  const auto parse = [](const std::string& ps, const std::string& rest) {
    return *ParseJob(
        "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1" + ps + "}, worker: {count: 1}}\n" + rest,
        "job.yaml", "/home/me");
  };
  EXPECT_EQ(parse("", "").ps.restart, Restart::kNever);
  EXPECT_EQ(parse("", "durability: checkpoint\n").ps.restart, Restart::kOnFailure);
  EXPECT_EQ(parse(", restart: never", "durability: checkpoint\n").ps.restart, Restart::kNever);
  EXPECT_EQ(parse(", max_restarts: 7", "checkpoint: {keep: 1}\n").ps.max_restarts, 7);
  EXPECT_FALSE(parse("", "").checkpoint);
  EXPECT_FALSE(parse("", "durability: checkpoint\n").checkpoint->journal);
  EXPECT_TRUE(parse("", "durability: journal\n").checkpoint->journal);
}

TEST(Job, ReplicatedServersHaveNoCheckpointsAndAreStartedAgain) {
  const auto job = ParseJob(
      "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 2}, worker: {count: 1}}\ndurability: replicated\n",
      "job.yaml", "/home/me");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->replicated);
  EXPECT_FALSE(job->checkpoint);
  EXPECT_EQ(ErrorOf("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\ndurability: "
                    "replicated\n"),
            "jobs/job.yaml:4:13: `replicated` needs two ps at least");
  EXPECT_EQ(job->ps.restart, Restart::kOnFailure);
}

TEST(Job, TransportIsAutoOrTcp) {
  const auto parse = [](const std::string& transport) {
    return ParseJob("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n" + transport,
                    "job.yaml", "/home/me");
  };
  EXPECT_FALSE(parse("")->tcp_only);
  EXPECT_FALSE(parse("transport: auto\n")->tcp_only);
  EXPECT_TRUE(parse("transport: tcp\n")->tcp_only);
  EXPECT_EQ(parse("transport: rdma\n").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Job, FtrlTakesOneRate) {
  const auto ok = [](const std::string& model, const std::string& train) {
    return ErrorOf("name: j\nmodel: " + model +
                   "\nreplicas: {ps: {count: 1}, worker: {count: 3}}\nupdate: {scale_rate: true}\n" +
                   train) == "OK";
  };
  EXPECT_TRUE(ok("mnist_mlp", ""));
  EXPECT_FALSE(ok("mnist_mlp", "train: {optimizer: ftrl}\n"));
  EXPECT_FALSE(ok("wide_deep", ""));
  EXPECT_TRUE(ok("wide_deep", "train: {wide: {optimizer: sgd}}\n"));
  EXPECT_FALSE(ok("wide_deep\nvariant: wide_only", ""));
  EXPECT_TRUE(ok("wide_deep\nvariant: wide_only", "train: {optimizer: sgd}\n"));
}

TEST(Job, AChiefCountsAsAWorkerWhereBatchesAreSplit) {
  const std::string head =
      "name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, chief: {count: 1}, worker: {count: 2}}\n";
  EXPECT_EQ(ErrorOf(head + "update: {mode: sync, aggregate: 3}\ntrain: {global_batch_size: 3}\n"), "OK");
  EXPECT_NE(ErrorOf(head + "update: {mode: sync, aggregate: 4}\ntrain: {global_batch_size: 3}\n"), "OK");
  EXPECT_NE(ErrorOf(head + "train: {global_batch_size: 2}\n"), "OK");
}

TEST(StandingServers, AreServersAloneThatAreAlwaysStartedAgain) {
  const auto pool = ParseStandingServers(
      "name: pool\nreplicas: {ps: {count: 2, on: cpu}}\ndurability: journal\ntransport: tcp\n", "pool.yaml");
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_TRUE(pool->is_standing);
  EXPECT_EQ(pool->ps.count, 2);
  EXPECT_EQ(pool->worker.count, 0);
  EXPECT_TRUE(pool->checkpoint && pool->checkpoint->journal);
  EXPECT_TRUE(pool->tcp_only);

  using Restart = ReplicaSpec::Restart;
  const auto restarts_of = [](const std::string& keys) {
    const auto given = ParseStandingServers("name: p\nreplicas: {ps: {count: 1" + keys + "}}\n", "pool.yaml");
    EXPECT_TRUE(given.ok()) << given.status();
    return std::pair(given->ps.restart, given->ps.max_restarts);
  };
  constexpr int kAsOftenAsItTakes = 1'000'000;
  EXPECT_EQ(restarts_of(""), std::pair(Restart::kAlways, kAsOftenAsItTakes));
  EXPECT_EQ(restarts_of(", restart: always"), std::pair(Restart::kAlways, kAsOftenAsItTakes));
  EXPECT_EQ(restarts_of(", restart: on_failure"), std::pair(Restart::kOnFailure, kAsOftenAsItTakes));
  EXPECT_EQ(restarts_of(", max_restarts: 5"), std::pair(Restart::kAlways, 5));
  EXPECT_EQ(restarts_of(", restart: exit_code, max_restarts: 5"), std::pair(Restart::kExitCode, 5));
  EXPECT_EQ(restarts_of(", restart: never"), std::pair(Restart::kNever, 0));

  const auto error_of = [](const std::string& text) {
    return std::string(ParseStandingServers(text, "pool.yaml").status().message());
  };
  const std::string head = "name: p\nreplicas: {ps: {count: 2}}\n";
  EXPECT_EQ(error_of("name: p\nreplicas: {ps: {count: 0}}\n"),
            "pool.yaml:2:24: at least one server has to stand");
  EXPECT_THAT(error_of("name: p\nreplicas: {worker: {count: 1}}\n"),
              testing::HasSubstr("unknown key \"worker\""));
  EXPECT_THAT(error_of(head + "model: mnist_mlp\n"),
              testing::HasSubstr("pool.yaml:3:1: \"model\" is of a job"));
  EXPECT_THAT(error_of(head + "train: {steps: 3}\n"), testing::HasSubstr("unknown key \"train\""));
  EXPECT_THAT(error_of(head + "durability: replicated\n"), testing::HasSubstr("make no replicas yet"));
  EXPECT_THAT(error_of(head + "checkpoint: {buddy: true}\n"), testing::HasSubstr("no copies"));
}

TEST(StandingServers, TrainAJobWhateverItSaysOfItsOwn) {
  const auto parse = [](const std::string& rest) {
    return ParseJob("name: j\n" + rest, "job.yaml", "/home/me", {.servers_stand = true});
  };
  for (const std::string ps : {"", "ps: {count: 4}, "}) {
    const auto job = parse("model: mnist_mlp\nreplicas: {" + ps + "worker: {count: 1}}\n");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->ps.count, 0);
  }
  const auto error_of = [&](const std::string& rest) { return std::string(parse(rest).status().message()); };
  EXPECT_THAT(error_of("model: mnist_mlp\nreplicas: {worker: {count: 1}}\ncheckpoint: {every_steps: 5}\n"),
              testing::HasSubstr("job.yaml:4:1: \"checkpoint\" of standing servers"));
  EXPECT_THAT(error_of("model: mnist_mlp\nstrategy: allreduce\nreplicas: {worker: {count: 1}}\n"),
              testing::HasSubstr("standing servers are for `strategy: parameter_server` or `hybrid`"));
  EXPECT_THAT(error_of("program: [x]\nreplicas: {worker: {count: 1}}\n"),
              testing::HasSubstr("built-in trainer"));
  EXPECT_THAT(
      error_of("model: mnist_mlp\nreplicas: {worker: {count: 1}}\nupdate: {begin_together: true}\n"),
      testing::HasSubstr("job.yaml:4:10: \"begin_together\" is for servers that start with their workers"));
}

TEST(Job, ReadsAFileAndNamesItInErrors) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "job.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "nam: x\n").ok());
  EXPECT_EQ(ReadJob(path, "").status().message(),
            path.string() + ":1:1: unknown key \"nam\" in the job; did you mean \"name\"?");
  EXPECT_EQ(ExitCodeFor(ReadJob(folder.path() / "none", "").status()), 2);
}

}  // namespace
}  // namespace muster
