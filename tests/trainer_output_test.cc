// What the trainer leaves behind, as other programs read it: readers in tests/support that know the formats
// and nothing of this code. On the real data sets where MUSTER_DATA names their folder, else on synthetic
// ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/checkout.h"
#include "tests/support/free_port.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class TrainerOutput : public testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> argv, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> all = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
    auto result = RunCommand({.argv = std::move(argv), .environment = all}, Now() + std::chrono::minutes(2));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }

  CommandResult Trainer(std::vector<std::string> flags, const std::vector<std::string>& environment = {}) {
    flags.insert(flags.begin(), BuildPath("bin/muster-trainer"));
    return Run(std::move(flags), environment);
  }

  void Train(std::vector<std::string> flags, const std::vector<std::string>& environment = {}) {
    flags.insert(flags.begin(), "--job_name=local");
    const CommandResult result = Trainer(std::move(flags), environment);
    ASSERT_EQ(result.exit_code, 0) << result.stderr_text;
  }

  std::string Path(const std::string& name) { return (folder_.path() / name).string(); }

  /// The first Python that has the modules, or nothing.
  std::string PythonWith(const std::string& modules) {
    for (const std::string python : {"python3", "/usr/bin/python3"}) {
      if (Run({python, "-c", "import " + modules}).exit_code == 0) return python;
    }
    return "";
  }

  static std::string Script(const std::string& name) { return SourcePath("tests/support/" + name); }

  std::vector<Json> JsonLines(const std::string& text) {
    std::vector<Json> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  /// [step, wall time, {tag: value}] of each event.
  std::vector<Json> Events(const std::string& path) {
    const CommandResult result = Run({"python3", Script("read_events.py"), path});
    EXPECT_EQ(result.exit_code, 0) << path << ": " << result.stderr_text;
    return JsonLines(result.stdout_text);
  }

  /// What `command`, another program that evaluates a saved model, prints: as many right answers as the
  /// training says in `result`, give or take those that it calls too close.
  Json ExpectSameAnswers(const std::vector<std::string>& command, const Json& result) {
    const CommandResult run = Run(command);
    EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
    const Json found = Json::parse(run.stdout_text);
    const double correct = result["test_accuracy"].get<double>() * found["samples"].get<double>();
    EXPECT_NEAR(found["correct"].get<double>(), correct, found["close"].get<double>() + 1e-6)
        << run.stdout_text;
    EXPECT_LE(found["close"], found["samples"].get<int>() / 100) << "too many to tell anything";
    return found;
  }

  const TemporaryDirectory folder_;
};

TEST_F(TrainerOutput, EventFilesHoldTheCurvesOfTheMetrics) {
  Train({"--model=mnist_mlp", "--train_steps=30", "--log_every=10", "--eval_every=20", "--learning_rate=0.25",
         "--optimizer=sgd", "--log_dir=" + Path("new/logs"), "--metrics_jsonl=" + Path("metrics.jsonl")});
  const std::vector<std::string> names = *ListDirectory(Path("new/logs"));
  ASSERT_THAT(names, SizeIs(1));
  EXPECT_THAT(names[0], testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+"));

  const std::vector<Json> metrics = JsonLines(ReadFile(Path("metrics.jsonl")).value_or(""));
  const std::vector<Json> events = Events(Path("new/logs/" + names[0]));
  ASSERT_EQ(events.size(), metrics.size());
  EXPECT_GE(events.size(), 3u);  // 10, 20 and 30; more where a step takes a second
  std::set<int> steps;
  EXPECT_EQ(metrics[0]["begun_at"], 0);
  EXPECT_FALSE(metrics[1].contains("begun_at"));
  for (const Json& line : metrics)
    EXPECT_TRUE(steps.insert(line["step"].get<int>()).second) << "twice: " << line;
  const std::pair<const char*, const char*> names_of_scalars[] = {
      {"loss", "loss"},           {"accuracy", "test_accuracy"},
      {"test_loss", "test_loss"}, {"samples_per_second", "samples_per_second"},
      {"staleness", "staleness"}, {"learning_rate", "learning_rate"}};
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i][0], metrics[i]["step"]);
    EXPECT_GT(events[i][1], 1.6e9);  // seconds since 1970, not since the machine started
    size_t expected_count = 0;
    for (const auto& [tag, key] : names_of_scalars) {
      if (!metrics[i].contains(key) || metrics[i][key].is_null()) continue;
      ++expected_count;
      ASSERT_TRUE(events[i][2].contains(tag)) << tag << " at " << events[i][0];
      EXPECT_EQ(events[i][2][tag].get<double>(), static_cast<float>(metrics[i][key].get<double>())) << tag;
    }
    EXPECT_EQ(events[i][2].size(), expected_count) << events[i];
    EXPECT_EQ(events[i][2].contains("accuracy"), events[i][0] == 20 || i + 1 == events.size()) << events[i];
  }
  EXPECT_EQ(events[0][2]["learning_rate"], 0.25);
  EXPECT_EQ(events[0][2]["staleness"], 0);
}

TEST_F(TrainerOutput, WhatCannotBeWrittenAtTheEndIsSaidBeforeTheTraining) {
  for (const std::string flag : {"--result_json", "--save_model", "--save_onnx"}) {
    const CommandResult nowhere =
        Trainer({"--job_name=local", "--train_steps=1", flag + "=" + Path("nowhere/file")});
    EXPECT_EQ(nowhere.exit_code, 2);
    EXPECT_EQ(nowhere.stdout_text, "");
    EXPECT_THAT(nowhere.stderr_text, HasSubstr(flag + "=" + Path("nowhere/file") + ": cannot write into " +
                                               Path("nowhere") + ": No such file or directory"));
    const CommandResult folder = Trainer({"--job_name=local", "--train_steps=1", flag + "=" + Path("")});
    EXPECT_EQ(folder.exit_code, 2);
    EXPECT_THAT(folder.stderr_text, HasSubstr("this is a folder, a file is expected"));
  }
}

// A training is not to be lost for what is told about it.
TEST_F(TrainerOutput, WhatCannotBeWrittenKeepsNothingElseBack) {
  const auto train = [&](const std::string& full) {
    return Trainer({"--job_name=local", "--train_steps=20", "--log_every=5", full,
                    "--save_model=" + Path("model"), "--result_json=" + Path("result.json")});
  };
  const CommandResult curve = train("--metrics_jsonl=/dev/full");
  EXPECT_EQ(curve.exit_code, 1);
  EXPECT_THAT(curve.stdout_text, HasSubstr("accuracy"));
  EXPECT_THAT(curve.stderr_text, HasSubstr("--metrics_jsonl: /dev/full: No space left on device"));
  const Json result = Json::parse(ReadFile(Path("result.json")).value_or("{}"));
  EXPECT_EQ(result["steps"], 20);
  EXPECT_TRUE(result["update_mode"].is_null()) << "of one process";
  EXPECT_EQ(Trainer({"--evaluate=" + Path("model")}).exit_code, 0);

  ASSERT_TRUE(RemoveTree(Path("result.json")).ok());
  const CommandResult model = train("--save_onnx=/dev/full");
  EXPECT_EQ(model.exit_code, 1);
  EXPECT_THAT(model.stdout_text, HasSubstr("accuracy"));
  EXPECT_THAT(model.stderr_text, HasSubstr("--save_onnx: /dev/full: write: No space left on device"));
  EXPECT_EQ(Json::parse(ReadFile(Path("result.json")).value_or("{}"))["steps"], 20);

  const CommandResult all = Trainer({"--job_name=local", "--train_steps=1", "--save_model=/dev/full",
                                     "--save_onnx=/dev/full", "--result_json=/dev/full"});
  EXPECT_EQ(all.exit_code, 1);
  for (const std::string flag : {"--save_model", "--save_onnx", "--result_json"}) {
    EXPECT_THAT(all.stderr_text, HasSubstr(flag + ": /dev/full: write: No space left on device"));
  }
}

TEST_F(TrainerOutput, WhatCannotBeReadIsWrongInput) {
  for (const std::string part : {"train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    ASSERT_TRUE(MakeDirectories(Path(part)).ok());
    ASSERT_EQ(Trainer({"--make_data=mnist", "--data_dir=" + Path(part)}).exit_code, 0);
    ASSERT_TRUE(RemoveTree(Path(part + "/mnist/" + part)).ok());
    ASSERT_TRUE(MakeDirectories(Path(part + "/mnist/" + part)).ok());
    const CommandResult data = Trainer({"--job_name=local", "--train_steps=1", "--data_dir=" + Path(part)});
    EXPECT_EQ(data.exit_code, 2);
    EXPECT_THAT(data.stderr_text,
                HasSubstr("--data_dir: " + Path(part + "/mnist/" + part) + ": Is a directory"));
  }
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  for (const std::string name : {"nowhere", "file"}) {
    const CommandResult checkpoints = Trainer({"--inspect_checkpoint=" + Path(name)});
    EXPECT_EQ(checkpoints.exit_code, 2);
    EXPECT_THAT(checkpoints.stderr_text,
                HasSubstr("--inspect_checkpoint: it has no checkpoints: " + Path(name)));
  }
}

TEST_F(TrainerOutput, ALineThatWasNotWrittenToItsEndGoesWhereTheCurveGoesOn) {
  const auto write = [&](const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(Path("metrics.jsonl"), text).ok());
    Train({"--train_steps=1", "--metrics_jsonl=" + Path("metrics.jsonl")}, {"MUSTER_INCARNATION=2"});
  };
  write("{\"step\":7}\n{\"step\":8,\"samples_per");
  std::vector<Json> lines = JsonLines(ReadFile(Path("metrics.jsonl")).value_or(""));
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[1]["begun_at"], 0);
  write("{\"step\":8,\"samples_per");
  EXPECT_THAT(JsonLines(ReadFile(Path("metrics.jsonl")).value_or("")), SizeIs(1));
}

// The kernel ignores for it what it does not handle itself.
TEST_F(TrainerOutput, TheFirstProcessOfAContainerEndsWhenItIsToldTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes PID namespaces";
  for (const int signal_number : {SIGTERM, SIGINT}) {
    // One for each: what waits in bash would find the lines of the one before.
    const std::string log = Path(absl::StrFormat("container-%d.log", signal_number));
    const CommandResult result =
        Run({"unshare", "--pid", "--fork", "--kill-child", "bash", "-c",
             // In the namespace bash is the first process, and then the trainer.
             absl::StrFormat("(for _ in {1..600}; do grep -q '^step' '%1$s' && kill -%2$d 1 && exit; sleep "
                             "0.1; done) & exec '%3$s' --job_name=local --train_steps=1000000 --log_every=1 "
                             ">'%1$s' 2>&1",
                             log, signal_number, BuildPath("bin/muster-trainer"))});
    EXPECT_EQ(result.exit_code, 128 + signal_number) << ReadFile(log).value_or("");
  }
  // Nor does it hear what whoever started it has ignored: it goes on.
  const std::string log = Path("container-nohup.log");
  const CommandResult result =
      Run({"unshare", "--pid", "--fork", "--kill-child", "bash", "-c",
           absl::StrFormat("steps() { grep -c '^step' '%1$s'; }; wait_beyond() { for _ in {1..600}; do "
                           "[ \"$(steps)\" -gt $1 ] && return; sleep 0.1; done; }; "
                           "(wait_beyond 0; kill -HUP 1; wait_beyond $(($(steps) + 1)); kill -TERM 1) & "
                           "trap '' HUP; exec '%2$s' --job_name=local --train_steps=1000000 --log_every=1 "
                           ">'%1$s' 2>&1",
                           log, BuildPath("bin/muster-trainer"))});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << ReadFile(log).value_or("");
}

TEST_F(TrainerOutput, TwoOutputsOfOneNameAreRefused) {
  const CommandResult result = Trainer({"--job_name=local", "--train_steps=1", "--save_model=" + Path("same"),
                                        "--result_json=" + Path("./same")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.stderr_text,
              HasSubstr("--result_json and --save_model name the same file, " + Path("same")));
  EXPECT_FALSE(std::filesystem::exists(Path("same")));
  // A file that is not there yet, from this folder and from the root.
  const std::string from_here = std::filesystem::relative(Path("same"));
  const CommandResult relative = Trainer(
      {"--job_name=local", "--train_steps=1", "--save_model=" + from_here, "--save_onnx=" + Path("same")});
  EXPECT_EQ(relative.exit_code, 2);
  EXPECT_THAT(relative.stderr_text, HasSubstr("--save_model and --save_onnx name the same file"));
  EXPECT_FALSE(std::filesystem::exists(Path("same")));
  Train({"--train_steps=1", "--save_model=/dev/null", "--result_json=/dev/null"});
}

TEST_F(TrainerOutput, ParametersThatTheLastUpdateSpoiledAreAFailure) {
  const CommandResult result = Trainer(
      {"--job_name=local", "--model=mnist_mlp", "--optimizer=sgd", "--learning_rate=1e30", "--train_steps=1",
       "--save_model=" + Path("model.safetensors"), "--result_json=" + Path("result.json")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.stderr_text, HasSubstr("not finite after step 1: lower the learning rate"));
  EXPECT_FALSE(std::filesystem::exists(Path("model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(Path("result.json")));
}

// On the server they are numbers like others.
TEST_F(TrainerOutput, ParametersThatFloat16HasNoRoomForAreSaid) {
  const std::string flags = absl::StrFormat(
      "--task_index=0 --ps_hosts=%s --worker_hosts=127.0.0.1:2 --sync_replicas --wire_type=float16 "
      "--optimizer=sgd --learning_rate=1e8 --data_dir=synthetic --train_steps=2",
      FreeAddress());
  const CommandResult result = Run(
      {"bash", "-c",
       absl::StrFormat("'%1$s' --job_name=ps %2$s & '%1$s' --job_name=worker %2$s; code=$?; wait; exit $code",
                       BuildPath("bin/muster-trainer"), flags)});
  EXPECT_EQ(result.exit_code, 1) << result.stderr_text;
  EXPECT_THAT(
      result.stderr_text,
      HasSubstr(
          "parameters are infinite at step 1, as float16 has those beyond 65504: take --wire_type=bfloat16"));
}

TEST_F(TrainerOutput, AChiefThatIsStartedAgainLeavesTheTornEventFileAsItIs) {
  const std::vector<std::string> flags = {"--train_steps=20", "--data_dir=synthetic",
                                          "--log_dir=" + Path("logs")};
  Train(flags);
  const std::string first = ListDirectory(Path("logs"))->at(0);
  const std::string whole = *ReadFile(Path("logs/" + first));
  const std::string torn = whole.substr(0, whole.size() - 7);
  ASSERT_TRUE(WriteFileAtomically(Path("logs/" + first), torn).ok());
  EXPECT_THAT(Run({"python3", Script("read_events.py"), Path("logs/" + first)}).stderr_text,
              StartsWith("torn at byte"));

  Train(flags, {"MUSTER_INCARNATION=2"});
  const std::vector<std::string> names = *ListDirectory(Path("logs"));
  ASSERT_THAT(names, SizeIs(2));  // whether or not a second has passed
  EXPECT_EQ(names[0], first);     // in the order in which TensorBoard reads them
  EXPECT_EQ(*ReadFile(Path("logs/" + first)), torn);
  EXPECT_EQ(Events(Path("logs/" + names[1])).back()[0], 20);
}

TEST_F(TrainerOutput, AFolderForEventsThatCannotBeMadeIsNamedBeforeTheTraining) {
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  const CommandResult result =
      Trainer({"--job_name=local", "--data_dir=synthetic", "--log_dir=" + Path("file")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.stderr_text, HasSubstr("--log_dir: " + Path("file") + " is no folder"));
  EXPECT_THAT(result.stdout_text, testing::Not(HasSubstr("step")));

  // Nor do others count on a chief that will not be there: it has not asked for the server, which is nowhere.
  for (const std::string& folder : {Path("file"), Path("file/logs"), std::string("/proc/logs")}) {
    const CommandResult chief = Trainer({"--job_name=worker", "--task_index=0", "--ps_hosts=127.0.0.1:1",
                                         "--worker_hosts=127.0.0.1:2", "--connect_timeout=1",
                                         "--data_dir=synthetic", "--log_dir=" + folder});
    EXPECT_EQ(chief.exit_code, 2) << chief.stderr_text;
    EXPECT_THAT(chief.stderr_text, HasSubstr("--log_dir: " + folder));
  }
  // One that never begins, for want of a server, leaves nothing in it.
  const CommandResult chief =
      Trainer({"--job_name=worker", "--task_index=0", "--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2",
               "--connect_timeout=1", "--data_dir=synthetic", "--log_dir=" + Path("logs")});
  EXPECT_EQ(chief.exit_code, 69) << chief.stderr_text;
  EXPECT_TRUE(std::filesystem::is_empty(Path("logs")));
}

TEST_F(TrainerOutput, AFolderForEventsIsNoPlaceForAFile) {
  const CommandResult result = Trainer({"--job_name=local", "--train_steps=1", "--data_dir=synthetic",
                                        "--log_dir=" + Path("same"), "--result_json=" + Path("same")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.stderr_text, HasSubstr("--log_dir and --result_json name the same file"));
  EXPECT_FALSE(std::filesystem::exists(Path("same")));
}

TEST_F(TrainerOutput, ASavedModelIsEvaluatedToWhatTrainingSaid) {
  const std::string model = Path("model.safetensors");
  Train({"--model=mnist_mlp", "--hidden=30,20", "--train_steps=100", "--save_model=" + model,
         "--result_json=" + Path("train.json")});
  const Json trained = Json::parse(*ReadFile(Path("train.json")));
  EXPECT_EQ(trained["steps_after_first_step"], 99);
  EXPECT_LT(trained["seconds_after_first_step"], trained["seconds_training"]);
  const std::string line = absl::StrFormat("MNIST accuracy: %.4f\n", trained["test_accuracy"].get<double>());

  const CommandResult plain = Trainer({"--evaluate", model, "--result_json=" + Path("evaluate.json")});
  EXPECT_EQ(plain.exit_code, 0) << plain.stderr_text;
  EXPECT_EQ(plain.stdout_text, line);
  const Json evaluated = Json::parse(*ReadFile(Path("evaluate.json")));
  for (const auto& [key, value] : trained.items()) EXPECT_TRUE(evaluated.contains(key)) << key;
  EXPECT_EQ(evaluated.size(), trained.size());
  for (const char* key : {"model", "variant", "test_accuracy", "test_loss", "parameters_crc32c", "threads"}) {
    EXPECT_EQ(evaluated[key], trained[key]) << key;
  }
  EXPECT_EQ(evaluated["strategy"], "evaluation");
  for (const char* key : {"steps", "update_mode", "seconds_training", "pushes", "train_loss"}) {
    EXPECT_TRUE(evaluated[key].is_null()) << key;
  }

  // Flags that say what the file says.
  const CommandResult again =
      Trainer({"--evaluate", model, "--job_name=local", "--model=mnist_mlp", "--hidden=30,20"});
  EXPECT_EQ(again.stdout_text, line) << again.stderr_text;

  const auto refused = [&](std::vector<std::string> flags) {
    const CommandResult result = Trainer(std::move(flags));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.stdout_text, "");
    return result.stderr_text;
  };
  EXPECT_THAT(refused({"--evaluate", model, "--model=mnist_softmax"}),
              HasSubstr("--model=mnist_softmax: " + model + " holds mnist_mlp with hidden layers 30,20"));
  EXPECT_THAT(refused({"--evaluate", model, "--hidden=30"}), HasSubstr("--hidden=30: " + model + " holds"));
  EXPECT_THAT(refused({"--evaluate", model, "--variant=deep"}), HasSubstr("no variants"));
  EXPECT_THAT(refused({"--evaluate", model, "--train_steps=1"}),
              HasSubstr("--train_steps means nothing with --evaluate"));
  EXPECT_THAT(refused({"--evaluate", model, "--job_name=worker"}), HasSubstr("--job_name=local, or none"));
  EXPECT_THAT(refused({"--evaluate", model, "--data_dir=" + Path("nowhere")}), HasSubstr("--data_dir: "));
  EXPECT_THAT(refused({"--evaluate", Path("missing")}), HasSubstr("--evaluate: " + Path("missing")));
  EXPECT_THAT(refused({"--evaluate="}), HasSubstr("--evaluate: "));
  EXPECT_THAT(refused({"--evaluate", ""}), HasSubstr("--evaluate: expected a value, found"));
  const std::string folder = folder_.path().string();
  EXPECT_THAT(refused({"--evaluate", folder}), HasSubstr("--evaluate: " + folder + ": Is a directory"));
  const std::string bytes = *ReadFile(model);
  ASSERT_TRUE(WriteFileAtomically(model, bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_THAT(refused({"--evaluate", model}),
              HasSubstr("--evaluate: " + model + ": tensor \"softmax/bias\": expected two data"));
}

TEST_F(TrainerOutput, HiddenLayersThatTheModelOfTheFileCannotHaveAreRefusedWithBothNames) {
  const std::string model = Path("model.safetensors");
  Train({"--train_steps=1", "--data_dir=synthetic", "--save_model=" + model});
  const CommandResult result = Trainer({"--evaluate", model, "--hidden=5"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.stderr_text, HasSubstr("--hidden=5: " + model + " holds mnist_softmax: "));
}

// A folder says nothing of what is in it.
TEST_F(TrainerOutput, ATestSetThatIsNotTheTrainingsOwnIsOnlyTakenOnPurpose) {
  const auto make_data = [&](const std::string& name) {
    EXPECT_EQ(Trainer({"--make_data=mnist", "--data_dir=" + Path(name)}).exit_code, 0);
    return Path(name);
  };
  const std::string own = make_data("own"), other = make_data("other");
  const std::string labels = other + "/mnist/t10k-labels-idx1-ubyte";
  std::string bytes = *ReadFile(labels);
  bytes.back() = bytes.back() == 0 ? 1 : 0;
  ASSERT_TRUE(WriteFileAtomically(labels, bytes).ok());

  const std::string model = Path("model.safetensors");
  Train({"--train_steps=50", "--data_dir=" + own, "--save_model=" + model});
  const CommandResult same = Trainer({"--evaluate", model}, {"MUSTER_DATA=" + own});
  EXPECT_EQ(same.exit_code, 0) << same.stderr_text;
  EXPECT_THAT(same.stderr_text, testing::Not(HasSubstr("another")));

  const CommandResult refused = Trainer({"--evaluate", model}, {"MUSTER_DATA=" + other});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.stdout_text, "");
  EXPECT_THAT(refused.stderr_text, HasSubstr(model + ": trained with mnist, test set "));
  EXPECT_THAT(refused.stderr_text, HasSubstr("but " + other + " has "));
  EXPECT_THAT(refused.stderr_text, HasSubstr("--data_dir names another on purpose"));

  const CommandResult asked = Trainer({"--evaluate", model, "--data_dir=" + other});
  EXPECT_EQ(asked.exit_code, 0) << asked.stderr_text;
  EXPECT_THAT(asked.stdout_text, StartsWith("MNIST accuracy: 0."));
  EXPECT_NE(asked.stdout_text, same.stdout_text);  // by the one label
  EXPECT_THAT(asked.stderr_text, HasSubstr("this is another test set than that of its training"));
  const CommandResult by_name = Trainer({"--evaluate", model, "--data_dir=" + own});
  EXPECT_EQ(by_name.stdout_text, same.stdout_text);
  EXPECT_THAT(by_name.stderr_text, testing::Not(HasSubstr("another")));
}

TEST_F(TrainerOutput, AModelIsEvaluatedWithTheDataSetThatItKnows) {
  const std::string model = Path("model.safetensors");
  Train({"--train_steps=50", "--data_dir=synthetic", "--save_model=" + model});
  const std::string nowhere = "MUSTER_DATA=" + Path("nowhere");
  // The variable only says where MNIST would be.
  const CommandResult synthetic = Trainer({"--evaluate", model}, {nowhere});
  EXPECT_EQ(synthetic.exit_code, 0) << synthetic.stderr_text;
  EXPECT_THAT(synthetic.stdout_text, StartsWith("MNIST accuracy: 0."));

  std::string bytes = *ReadFile(model);
  const std::string name = "\"synthetic_digits\"";
  ASSERT_NE(bytes.find(name), std::string::npos);
  bytes.replace(bytes.find(name), name.size(), "\"mnist\"           ");
  bytes.replace(bytes.find("file_crc32c"), 11, "_____crc32c");
  ASSERT_TRUE(WriteFileAtomically(model, bytes).ok());
  const CommandResult unknown = Trainer({"--evaluate", model}, {"MUSTER_DATA="});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.stderr_text, HasSubstr("name a folder with mnist/ in --data_dir or MUSTER_DATA"));
  EXPECT_EQ(Trainer({"--evaluate", model, "--data_dir=synthetic"}).stdout_text, synthetic.stdout_text);
}

TEST_F(TrainerOutput, AugmentationChangesTheTrainingAndNotTheTestSet) {
  const auto run = [&](const std::string& name, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data_dir=synthetic", "--train_steps=40",
                               "--save_model=" + Path(name + ".safetensors"), "--result_json=" + Path(name)});
    Train(flags);
    return Json::parse(*ReadFile(Path(name)));
  };
  const Json plain = run("plain", {}), augmented = run("augmented", {"--augment=shift"});
  EXPECT_NE(augmented["parameters_crc32c"], plain["parameters_crc32c"]);
  EXPECT_EQ(run("again", {"--augment", "shift"})["parameters_crc32c"], augmented["parameters_crc32c"]);
  EXPECT_EQ(run("prefetched", {"--augment=shift", "--prefetch"})["parameters_crc32c"],
            augmented["parameters_crc32c"]);
  // --evaluate knows nothing of augmentation.
  EXPECT_EQ(Trainer({"--evaluate", Path("augmented.safetensors")}).stdout_text,
            absl::StrFormat("MNIST accuracy: %.4f\n", augmented["test_accuracy"].get<double>()));
  const CommandResult refused = Trainer({"--job_name=local", "--augment=rotate"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.stderr_text, HasSubstr("--augment=rotate: there is only: shift"));
}

struct ModelFlags {
  std::string name;
  std::vector<std::string> flags;
  std::vector<std::string> files;  // to read with other programs
};

void PrintTo(const ModelFlags& model, std::ostream* out) { *out << model.name; }

class SavedModels : public TrainerOutput, public testing::WithParamInterface<ModelFlags> {
 protected:
  /// A folder with mnist/: the real one, or one of synthetic digits that this test writes.
  std::string DataFolder() {
    const char* const real = std::getenv("MUSTER_DATA");
    if (real != nullptr) return real;
    const TrainTestData data = MakeSyntheticMnist(1);
    EXPECT_TRUE(MakeDirectories(Path("data/mnist")).ok());
    WriteIdx("train", data.train);
    WriteIdx("t10k", data.test);
    return Path("data");
  }

 private:
  void WriteIdx(const std::string& part, const Dataset& dataset) {
    const auto number = [](int64_t value) {
      std::string bytes;
      for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
      return bytes;
    };
    const auto text = [](const std::vector<uint8_t>& bytes) {
      return std::string(bytes.begin(), bytes.end());
    };
    const std::string base = Path("data/mnist/" + part);
    EXPECT_TRUE(WriteFileAtomically(base + "-images-idx3-ubyte", number(0x803) + number(dataset.size()) +
                                                                     number(kMnistSide) + number(kMnistSide) +
                                                                     text(dataset.bytes))
                    .ok());
    EXPECT_TRUE(WriteFileAtomically(base + "-labels-idx1-ubyte",
                                    number(0x801) + number(dataset.size()) + text(dataset.labels))
                    .ok());
  }
};

TEST_P(SavedModels, OtherProgramsFindTheSameAccuracy) {
  const std::string python = PythonWith("cv2, numpy, onnx");
  if (python.empty())
    GTEST_SKIP() << "no Python with cv2, numpy and onnx: apt-get install python3-opencv python3-onnx";
  const std::string data = DataFolder();
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--data_dir=" + data, "--save_model=" + Path("model.safetensors"),
                             "--save_onnx=" + Path("model.onnx"), "--result_json=" + Path("result.json")});
  Train(flags);
  const Json result = Json::parse(*ReadFile(Path("result.json")));
  for (const std::string& file : GetParam().files) {
    ExpectSameAnswers({python, Script("evaluate_model.py"), Path(file), data}, result);
  }
}

const std::vector<std::string> kBothFiles = {"model.onnx", "model.safetensors"};
INSTANTIATE_TEST_SUITE_P(
    All, SavedModels,
    testing::Values(
        ModelFlags{"softmax", {"--model=mnist_softmax", "--train_steps=300"}, kBothFiles},
        ModelFlags{"mlp", {"--model=mnist_mlp", "--hidden=60,30", "--train_steps=300"}, kBothFiles},
        ModelFlags{"lenet", {"--model=mnist_cnn", "--train_steps=100"}, kBothFiles},
        // Its convolutions would take numpy minutes where it comes without a fast BLAS.
        ModelFlags{"deep", {"--model=mnist_cnn", "--variant=deep", "--train_steps=30"}, {"model.onnx"}}),
    [](const auto& info) { return info.param.name; });

class SavedWideDeep : public TrainerOutput, public testing::WithParamInterface<std::string> {};

TEST_P(SavedWideDeep, OtherProgramsFindTheSameAccuracyAndLoss) {
  const std::string python = PythonWith("numpy, onnx, xxhash");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with numpy, onnx and xxhash: apt-get install python3-numpy python3-onnx "
                    "python3-xxhash";
  }
  const char* const real = std::getenv("MUSTER_DATA");
  const std::string data = real != nullptr ? real : Path("data");
  if (real == nullptr) {
    ASSERT_EQ(Trainer({"--make_data=census", "--data_dir=" + data}).exit_code, 0);
  }
  Train({"--model=wide_deep", "--variant=" + GetParam(), "--batch_size=200", "--train_steps=300",
         "--data_dir=" + data, "--save_model=" + Path("model.safetensors"),
         "--save_onnx=" + Path("model.onnx"), "--result_json=" + Path("result.json")});
  const Json result = Json::parse(*ReadFile(Path("result.json")));
  for (const std::string file : {"model.onnx", "model.safetensors"}) {
    const Json found = ExpectSameAnswers({python, Script("evaluate_wide_deep.py"), Path(file), data}, result);
    // Which every logit has a part in.
    EXPECT_NEAR(found["loss"].get<double>(), result["test_loss"].get<double>(),
                found["loss_error"].get<double>())
        << file;
    EXPECT_LE(found["loss_error"], 1e-5) << "too much to tell anything";
  }
}

INSTANTIATE_TEST_SUITE_P(All, SavedWideDeep,
                         testing::Values("tutorial", "dist_test", "minibatch", "wide_only"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
