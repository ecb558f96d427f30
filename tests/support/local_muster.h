// For tests of commands that contact no host: the real muster command with a home of its own, and records of
// jobs that never ran.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "launcher/job_store.h"
#include "tests/support/checkout.h"

namespace muster {

class LocalMuster {
 public:
  /// In the folder of Path(); `arguments` as typed after `muster`.
  CommandResult Muster(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), BuildPath("bin/muster"));
    return Run(std::move(arguments));
  }
  CommandResult Run(const std::vector<std::string>& argv) {
    const auto result =
        RunCommand({.argv = argv, .environment = Environment(), .working_directory = Path("")},
                   Now() + std::chrono::seconds(90));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }

  std::vector<std::string> Environment() const {
    const char* const path = std::getenv("PATH");
    std::vector<std::string> environment = {"HOME=" + Path("home"), "MUSTER_HOME=" + Path("muster"),
                                            "PATH=" + BuildPath("bin") + ":" + (path == nullptr ? "" : path)};
    for (const char* name : {"MUSTER_DATA", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
    }
    return environment;
  }

  /// One that has succeeded, with a chief that wrote results, of this name; a test may change it.
  static record::JobRecord SucceededJob(const std::string& id, const std::string& name) {
    record::JobRecord job;
    job.set_version(kJobRecordVersion);
    job.set_id(id);
    job.set_name(name);
    job.set_created_micros(1);
    job.set_ended_micros(2);
    job.mutable_cluster()->set_fixed(true);
    job.mutable_cluster()->mutable_ending()->set_result(static_cast<int>(reconcile::Result::kSucceeded));
    record::Task& chief = *job.add_tasks();
    chief.set_id("worker:0");
    chief.set_host("host-1");
    chief.set_writes_results(true);
    return job;
  }
  void AddJob(const record::JobRecord& job) {
    ASSERT_TRUE(MakeDirectories(JobFolder(job.id())).ok());
    ASSERT_TRUE(WriteFileAtomically(JobFolder(job.id()) / kRecordFile, job.SerializeAsString()).ok());
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(Path(name)).parent_path()).ok());
    ASSERT_TRUE(WriteFileAtomically(Path(name), text).ok());
  }
  std::string Text(const std::string& name) const { return ReadFile(Path(name)).value_or(""); }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::filesystem::path JobFolder(const std::string& id) const { return folder_.path() / "muster/jobs" / id; }

 private:
  const TemporaryDirectory folder_;
};

}  // namespace muster
