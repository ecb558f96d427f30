// `muster compare` through the real command, with results of the real trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/local_muster.h"

namespace muster {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CompareCommand : public ::testing::Test {
 protected:
  /// A training by hand, with its result in the file `name`.
  void Train(const std::string& name, int steps) {
    const CommandResult run =
        muster_.Run({BuildPath("bin/muster-trainer"), "--job_name=local", "--model=mnist_softmax",
                     "--data_dir=synthetic", "--train_steps=" + std::to_string(steps), "--threads=1",
                     "--seed=1", "--result_json=" + muster_.Path(name)});
    ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  }
  CommandResult Compare(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "compare");
    return muster_.Muster(std::move(arguments));
  }
  void ExpectRefused(const std::vector<std::string>& arguments, int exit_code, const std::string& message) {
    const CommandResult result = Compare(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << message;
    EXPECT_EQ(result.stdout_text, "");
    EXPECT_EQ(result.stderr_text, "muster: " + message + "\n");
  }

  LocalMuster muster_;
};

TEST_F(CompareCommand, PutsJobsAndFilesSideBySide) {
  Train("by-hand.json", 20);
  ASSERT_TRUE(MakeDirectories(muster_.Path("k8s")).ok());
  Train("k8s/result.json", 5);
  muster_.AddJob(LocalMuster::SucceededJob("mnist-aaaaaa", "mnist"));
  muster_.Write("muster/jobs/mnist-aaaaaa/result.json", muster_.Text("by-hand.json"));

  const CommandResult text = Compare({"mnist", "by-hand.json", "k8s/result.json"});
  ASSERT_EQ(text.exit_code, 0) << text.stderr_text;
  EXPECT_THAT(
      text.stdout_text,
      AllOf(StartsWith("DIFFERENT  mnist-aaaaaa  by-hand.json  k8s/result.json\n"
                       "steps      20            20            5\n"
                       "\nthe same: model mnist_softmax, "),
            HasSubstr("\nsamples            2000          2000          1.000  500              0.250\n"),
            HasSubstr("  same   ")));

  const CommandResult piped =
      muster_.Run({"bash", "-c", "muster compare by-hand.json <(cat k8s/result.json)"});
  EXPECT_EQ(piped.exit_code, 0) << piped.stderr_text;

  const CommandResult json = Compare({"-o", "json", "mnist-aaaaaa", "k8s/result.json"});
  ASSERT_EQ(json.exit_code, 0) << json.stderr_text;
  const Json compared = Json::parse(json.stdout_text);
  EXPECT_EQ(compared["runs"][1]["name"], "k8s/result.json");
  EXPECT_EQ(compared["runs"][1]["result"], Json::parse(muster_.Text("k8s/result.json")));
  EXPECT_EQ(compared["different"], Json({{"steps", {20, 5}}}));
  EXPECT_EQ(compared["measures"]["samples"]["ratios"], Json({1, 0.25}));
}

TEST_F(CompareCommand, ANameIsThatOfTheNewestJob) {
  Train("result.json", 1);
  record::JobRecord newest = LocalMuster::SucceededJob("mnist-bbbbbb", "mnist");
  newest.set_created_micros(2);
  for (const record::JobRecord& job : {LocalMuster::SucceededJob("mnist-aaaaaa", "mnist"), newest}) {
    muster_.AddJob(job);
    muster_.Write("muster/jobs/" + job.id() + "/result.json", muster_.Text("result.json"));
  }
  const CommandResult result = Compare({"mnist", "mnist-aaaaaa"});
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  EXPECT_THAT(result.stdout_text, HasSubstr("mnist-bbbbbb  mnist-aaaaaa  RATIO\n"));
  ASSERT_TRUE(MakeDirectories(muster_.Path("mnist")).ok());
  EXPECT_EQ(Compare({"mnist", "mnist-aaaaaa"}).exit_code, 0) << "a folder of that name is no file";
}

TEST_F(CompareCommand, SaysWhyAJobHasNothingToCompare) {
  record::JobRecord running = LocalMuster::SucceededJob("running-aaaaaa", "running");
  running.set_ended_micros(0);
  running.mutable_cluster()->clear_ending();
  record::JobRecord failed = LocalMuster::SucceededJob("failed-aaaaaa", "failed");
  failed.mutable_cluster()->mutable_ending()->set_result(static_cast<int>(reconcile::Result::kFailed));
  failed.mutable_cluster()->mutable_ending()->set_message("worker:0 on host-1 failed: exit code 3");
  record::JobRecord script = LocalMuster::SucceededJob("script-aaaaaa", "script");
  script.mutable_tasks(0)->set_writes_results(false);
  for (const auto& job : {running, failed, script, LocalMuster::SucceededJob("gone-aaaaaa", "gone")})
    muster_.AddJob(job);

  ExpectRefused({"running", "failed"}, 1,
                "job running-aaaaaa has not ended (Running): `muster wait running-aaaaaa`, then compare it");
  ExpectRefused(
      {"failed", "running"}, 1,
      "job failed-aaaaaa has no result, since it has not succeeded: worker:0 on host-1 failed: exit "
      "code 3 (muster events failed-aaaaaa)");
  ExpectRefused({"script", "running"}, 1,
                "job script-aaaaaa has no result record: its program is another one than muster's trainer, "
                "which writes it");
  ExpectRefused({"gone", "running"}, 1,
                "job gone-aaaaaa: its result record is not there any more: " +
                    muster_.Path("muster/jobs/gone-aaaaaa/result.json") + ": No such file or directory");
}

TEST_F(CompareCommand, BadInputIsExitStatusTwo) {
  muster_.Write("text.json", "accuracy: 0.9\n");
  muster_.Write("newer.json", R"({"schema_version": 7, "parameters_crc32c": "00000000"})");
  EXPECT_EQ(Compare({}).exit_code, 2);
  EXPECT_EQ(Compare({"mnist"}).exit_code, 2) << "with what?";
  ExpectRefused({"mnist", "text.json"}, 2, "there is no job 'mnist': no job has been run yet");
  ExpectRefused({"text.json", "mnist"}, 2,
                "text.json: no result record, or cut off: `muster-trainer --result_json=PATH` writes one");
  ExpectRefused({"./newer.json", "mnist"}, 2,
                "./newer.json: schema_version is 7, and this muster reads 1: compare it with the muster that "
                "its trainer came with");
  ExpectRefused({"k8s/result.json", "mnist"}, 2, "k8s/result.json: No such file or directory");
  ExpectRefused({"./", "mnist"}, 2, "./: Is a directory");
}

}  // namespace
}  // namespace muster
