// The files of examples/ are right, and no damage to them does more than give an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/random.h"
#include "inventory/placement.h"
#include "tests/support/checkout.h"

namespace muster {
namespace {

const std::filesystem::path kExamples = SourcePath("examples");

std::vector<std::filesystem::path> ExampleFiles() {
  std::vector<std::filesystem::path> files;
  const auto names = ListDirectory(kExamples);
  for (const std::string& name : names.value()) {
    if (name.ends_with(".yaml")) files.push_back(kExamples / name);
  }
  return files;
}

bool IsInventory(const std::filesystem::path& path) { return path.filename() == "inventory.yaml"; }
bool IsOfServersAlone(const std::filesystem::path& path) { return path.filename() == "pool.yaml"; }

TEST(Examples, AllAreValidAndEveryJobFitsTheInventory) {
  const auto inventory = ReadInventory(kExamples / "inventory.yaml", "/home/me");
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  int job_count = 0;
  for (const auto& path : ExampleFiles()) {
    if (IsInventory(path)) continue;
    const auto job = IsOfServersAlone(path) ? ReadStandingServers(path) : ReadJob(path, "/home/me");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(PlaceTasks(*job, *inventory).ok()) << path;
    ++job_count;
  }
  EXPECT_GE(job_count, 3);
}

TEST(Examples, MnistIsTheJobOfTheReadme) {
  const auto job = ReadJob(kExamples / "mnist.yaml", "/home/me");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model, "mnist_softmax");
  EXPECT_EQ(job->ps.count, 2);
  EXPECT_EQ(job->worker.count, 3);
  EXPECT_EQ(job->update.mode, UpdateSpec::Mode::kSync);
  EXPECT_EQ(job->train.steps, 1000);
  EXPECT_EQ(job->train.batch_size, 100);
  EXPECT_EQ(job->train.optimizer.kind, "sgd");
  EXPECT_EQ(job->train.optimizer.learning_rate, 0.5);
}

// Parses `text` as what `path` holds. Whatever is wrong with it, the answer is a job or an error that starts
// with the path.
void ExpectOrderlyEnd(std::string_view text, const std::filesystem::path& path) {
  absl::Status status;
  if (IsInventory(path)) {
    status = ParseInventory(text, "f.yaml", "/home/me").status();
  } else if (IsOfServersAlone(path)) {
    status = ParseStandingServers(text, "f.yaml").status();
  } else {
    status = ParseJob(text, "f.yaml", "/home/me").status();
  }
  if (status.ok()) return;
  EXPECT_EQ(ExitCodeFor(status), 2);
  EXPECT_THAT(std::string(status.message()), ::testing::MatchesRegex("f\\.yaml:[0-9]+:[0-9]+: (.|\n)+"))
      << text;
}

TEST(Examples, EveryPrefixEndsInAnOrderlyWay) {
  for (const auto& path : ExampleFiles()) {
    const std::string text = *ReadFile(path);
    for (size_t size = 0; size <= text.size(); ++size) ExpectOrderlyEnd(text.substr(0, size), path);
  }
}

TEST(Examples, EveryMissingOrRepeatedLineEndsInAnOrderlyWay) {
  for (const auto& path : ExampleFiles()) {
    const std::string text = *ReadFile(path);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
      ExpectOrderlyEnd(text.substr(0, begin) + text.substr(end), path);
      ExpectOrderlyEnd(text.substr(0, end) + text.substr(begin), path);
      begin = end;
    }
  }
}

TEST(Examples, RandomDamageEndsInAnOrderlyWay) {
  constexpr std::string_view kBytes = "\t\n :-[]{},&*!|>'\"%@`#?~0a\\\xc3";
  constexpr int kRounds = 2000;
  RandomStream random(20260131);
  for (const auto& path : ExampleFiles()) {
    const std::string text = *ReadFile(path);
    for (int round = 0; round < kRounds; ++round) {
      std::string damaged = text;
      for (uint64_t edits = 1 + random.NextBelow(4); edits > 0; --edits) {
        const size_t at = random.NextBelow(damaged.size());
        const char byte = kBytes[random.NextBelow(kBytes.size())];
        switch (random.NextBelow(3)) {
          case 0:
            damaged[at] = byte;
            break;
          case 1:
            damaged.insert(at, 1, byte);
            break;
          default:
            damaged.erase(at, 1 + random.NextBelow(8));
        }
      }
      ExpectOrderlyEnd(damaged, path);
    }
  }
}

}  // namespace
}  // namespace muster
