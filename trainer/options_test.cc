#include "trainer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "--job_name=local");
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
};

NumberFlag Whole(const std::string& name, const std::string& minimum, const std::string& maximum) {
  return {name, "a whole number from " + minimum + " to " + maximum, minimum, maximum};
}

// All flags of the trainer that take a number.
const std::vector<NumberFlag>& NumberFlags() {
  static const std::vector<NumberFlag> flags = {
      Whole("task_index", "0", "999999"),
      Whole("connect_timeout", "1", "1000000000"),
      Whole("server_timeout", "1", "1000000000"),
      Whole("worker_timeout", "1", "1000000000"),
      Whole("batch_size", "1", "1000000"),
      Whole("global_batch_size", "1", "1000000"),
      Whole("train_steps", "1", "1000000000000"),
      Whole("seed", "0", "18446744073709551615"),
      Whole("threads", "1", "1024"),
      Whole("log_every", "1", "1000000000000"),
      Whole("eval_every", "0", "1000000000000"),
      {"learning_rate", "a number from 1e-30 to 1e+30", "1e-30", "1e+30"},
  };
  return flags;
}

TEST(Options, NumbersOutsideTheirBoundsAreRefusedInOneSentence) {
  for (const NumberFlag& flag : NumberFlags()) {
    std::vector<std::string> bad = {"-5", "-1", std::string(40, '9'), "nan", "inf", "x", "1x", "0x", "1,"};
    if (flag.minimum != "0") bad.push_back("0");
    if (flag.name != "learning_rate") bad.insert(bad.end(), {"+1", "1.0", "1e2", "0x10", " 1"});
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

TEST(Options, BothBoundsAreWithin) {
  for (const NumberFlag& flag : NumberFlags()) {
    EXPECT_TRUE(Parse({"--" + flag.name + "=" + flag.minimum}).ok()) << flag.name;
    EXPECT_TRUE(Parse({"--" + flag.name + "=" + flag.maximum}).ok()) << flag.name;
  }
  EXPECT_EQ(Options({"--seed=18446744073709551615"}).seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Options({"--learning_rate=1e-30"}).optimizer.learning_rate, 1e-30f);
  EXPECT_EQ(Options({"--batch_size", "0100"}).global_batch_size, 100);  // decimal, not octal
}

TEST(Options, SizesOfHiddenLayers) {
  EXPECT_THAT(Options({"--model=mnist_mlp", "--hidden=512, 65536"}).model.hidden, ElementsAre(512, 65536));
  for (const std::string text : {"0", "-1", "65537", "4294967297", "x", "1.5"}) {
    EXPECT_EQ(
        Error({"--hidden=512," + text}),
        "--hidden (sizes like 512,512): expected a whole number from 1 to 65536, found \"" + text + "\"");
  }
  EXPECT_THAT(Error({"--hidden=512,,512"}), HasSubstr("found \"\""));
}

TEST(Options, MakingDataNeedsAFolderAndNoCluster) {
  const auto parse = [](const std::vector<std::string>& flags) {
    return ParseCommandLine(flags, [](const std::string&) { return std::nullopt; });
  };
  const auto line = parse({"--make_data=census", "--data_dir=/tmp/d"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->make_data, "census");
  EXPECT_EQ(line->options.data_dir, "/tmp/d");
  for (const std::string folder : {"auto", "synthetic", ""}) {
    EXPECT_THAT(Error({"--make_data=mnist", "--data_dir", folder}), HasSubstr("needs --data_dir=FOLDER"));
  }
  EXPECT_THAT(Error({"--make_data=mnist"}), HasSubstr("needs --data_dir=FOLDER"));
  EXPECT_THAT(Error({"--make_data=cifar", "--data_dir=/tmp/d"}), HasSubstr("cifar"));
  const auto training = Parse({});
  ASSERT_TRUE(training.ok());
  EXPECT_FALSE(training->make_data.has_value());
}

}  // namespace
}  // namespace muster
