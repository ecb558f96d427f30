#include "launcher/build_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>

#include "base/archive.h"
#include "base/file.h"
#include "launcher/job_contents.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class BuildContext : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDirectories(folder_.path() / "trainer/bin").ok());
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / "trainer/required_glibc", "2.34\n").ok());
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / "trainer/bin/muster-trainer", "trainer", 0755).ok());
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / "train.py", "print()\n", 0755).ok());
    ASSERT_TRUE(MakeDirectories(folder_.path() / "sets").ok());
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / "sets/numbers", "1 2 3").ok());
  }

  Job JobOf(const std::string& text) {
    const auto job = ParseJob(text, folder_.path() / "job.yaml", "/home/me");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.value_or(Job());
  }
  Job ModelJob() {
    return JobOf("name: j\nmodel: mnist_mlp\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n");
  }
  Job ProgramJob() {
    return JobOf(
        "name: j\nprogram: [python3, train.py]\nfiles: [train.py]\ndata: sets\nreplicas: {worker: {count: "
        "1}}\n");
  }

  absl::Status Write(const Job& job) {
    const auto contents = PackJob(job, {.trainer = folder_.path() / "trainer"}, "", "");
    EXPECT_TRUE(contents.ok()) << contents.status();
    return WriteBuildContext(context_, job, *contents);
  }
  std::string Dockerfile() { return ReadFile(context_ / "Dockerfile").value_or(""); }
  std::vector<std::string> Names() { return ListDirectory(context_).value_or(std::vector<std::string>{}); }

  TemporaryDirectory folder_;
  const std::filesystem::path context_ = folder_.path() / "context";
};

TEST_F(BuildContext, TheTrainerIsInThePathOfTheImage) {
  ASSERT_TRUE(Write(ModelJob()).ok());
  EXPECT_THAT(Names(), ElementsAre("Dockerfile", "trainer.tar"));
  EXPECT_THAT(Dockerfile(), HasSubstr("\nADD trainer.tar /opt/muster/\nENV PATH=/opt/muster/bin:${PATH} "));
  EXPECT_THAT(Dockerfile(), HasSubstr("glibc 2.34 or newer"));
  EXPECT_THAT(Dockerfile(), Not(HasSubstr("MUSTER_DATA")));
  TemporaryDirectory image;
  ASSERT_TRUE(UnpackArchive(*ReadFile(context_ / "trainer.tar"), image.path()).ok());
  EXPECT_EQ(*ReadFile(image.path() / "bin/muster-trainer"), "trainer");
}

TEST_F(BuildContext, AProgramHasItsFilesAndData) {
  ASSERT_TRUE(Write(ProgramJob()).ok());
  EXPECT_THAT(Names(), ElementsAre("Dockerfile", "data.tar", "job"));
  EXPECT_EQ(*ReadFile(context_ / "job/train.py"), "print()\n");
  struct stat info {};
  ASSERT_EQ(::stat((context_ / "job/train.py").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755u);
  EXPECT_THAT(Dockerfile(), HasSubstr("\nARG BASE=python:"));
  EXPECT_THAT(Dockerfile(), HasSubstr("\nADD data.tar /data/\nENV MUSTER_DATA=/data\n"));
  EXPECT_THAT(Dockerfile(), HasSubstr("\nCOPY job/ /job/\nWORKDIR /job\n"));
  TemporaryDirectory image;
  ASSERT_TRUE(UnpackArchive(*ReadFile(context_ / "data.tar"), image.path()).ok());
  EXPECT_EQ(*ReadFile(image.path() / "numbers"), "1 2 3");
}

TEST_F(BuildContext, WhoComputesOnGpusHasCublas) {
  Job job = ModelJob();
  job.worker.gpus = 1;
  ASSERT_TRUE(Write(job).ok());
  EXPECT_THAT(Dockerfile(), HasSubstr("\nARG BASE=nvidia/cuda:13"));
}

TEST_F(BuildContext, IsWrittenAnew) {
  ASSERT_TRUE(Write(ProgramJob()).ok());
  ASSERT_TRUE(Write(ModelJob()).ok());
  EXPECT_THAT(Names(), ElementsAre("Dockerfile", "trainer.tar"));
}

TEST_F(BuildContext, WhatIsNotOfABuildContextIsLeftAlone) {
  ASSERT_TRUE(MakeDirectories(context_).ok());
  EXPECT_TRUE(CheckBuildContextFolder(context_).ok());  // empty
  ASSERT_TRUE(WriteFileAtomically(context_ / "thesis.tex", "years of work").ok());
  const absl::Status other = Write(ModelJob());
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("thesis.tex"));
  EXPECT_THAT(Names(), ElementsAre("thesis.tex"));
}

TEST_F(BuildContext, ADockerfileOfOthersIsLeftAlone) {
  ASSERT_TRUE(MakeDirectories(context_).ok());
  ASSERT_TRUE(WriteFileAtomically(context_ / "Dockerfile", "FROM scratch\n").ok());
  const absl::Status other = Write(ModelJob());
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("Dockerfile"));
  EXPECT_EQ(Dockerfile(), "FROM scratch\n");
  std::filesystem::rename(context_ / "Dockerfile", context_ / "data.tar");
  EXPECT_EQ(Write(ModelJob()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BuildContext, HasANameThatCanBeTyped) {
  for (const char* name : {"", "a\nb"}) {
    EXPECT_EQ(CheckBuildContextFolder(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST_F(BuildContext, AFileIsNoFolder) {
  ASSERT_TRUE(WriteFileAtomically(context_, "").ok());
  const absl::Status status = CheckBuildContextFolder(context_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("--context "));
}

}  // namespace
}  // namespace muster
