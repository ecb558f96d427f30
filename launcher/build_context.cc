#include "launcher/build_context.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "launcher/kubernetes_pods.h"

namespace muster {
namespace {

constexpr char kFirstLine[] = "# Made by `muster export --context`, which writes it anew.\n";
constexpr char kDockerfile[] = "Dockerfile", kJobFolder[] = "job";
constexpr std::array kNames = {"Dockerfile", "trainer.tar", "data.tar", "job"};

std::string ArchiveName(const std::string& content) { return content + ".tar"; }

bool Has(const JobContents& contents, const char* name) {
  return std::ranges::any_of(contents.contents, [&](const Content& content) { return content.name == name; });
}

// A usual image to begin with, which is all that is known of what a program needs.
std::string BaseOf(const Job& job) {
  const bool wants_gpus = GpusOf(job, ReplicaRole::kChief) + GpusOf(job, ReplicaRole::kWorker) > 0;
  if (job.program.empty()) {
    return wants_gpus ? "nvidia/cuda:13.0.1-runtime-ubuntu24.04" : "debian:bookworm-slim";
  }
  const bool is_python =
      absl::StartsWith(std::filesystem::path(job.program[0]).filename().string(), "python");
  return is_python ? "python:3.12-slim" : "debian:bookworm-slim";
}

}  // namespace

std::string DockerfileOf(const Job& job, const JobContents& contents) {
  std::string text = kFirstLine;
  if (job.program.empty()) {
    text += "# The trainer needs glibc " + contents.required_glibc +
            " or newer, and for GPUs CUDA 13's cuBLAS; all else it brings along.\n";
  } else {
    text += "# What else the program needs is for an image of yours: --build-arg BASE=...\n";
  }
  text += "ARG BASE=" + BaseOf(job) + "\nFROM ${BASE}\n";
  if (Has(contents, kTrainerContent)) {
    text += absl::StrFormat("ADD %s %s/\n", ArchiveName(kTrainerContent), kImageTrainerFolder);
    text += absl::StrFormat("ENV PATH=%s/bin:${PATH} MUSTER_PROGRAM_SHA256=%s\n", kImageTrainerFolder,
                            contents.program_sha256);
  }
  if (Has(contents, kDataContent)) {
    text += absl::StrFormat("ADD %s %s/\nENV MUSTER_DATA=%s\n", ArchiveName(kDataContent), kImageDataFolder,
                            kImageDataFolder);
  }
  if (!contents.program_files.empty()) {
    text += absl::StrFormat("COPY %s/ %s/\n", kJobFolder, kImageJobFolder);
  }
  if (!job.program.empty()) text += absl::StrFormat("WORKDIR %s\n", kImageJobFolder);
  return text;
}

absl::Status CheckBuildContextFolder(const std::filesystem::path& folder) {
  // It stands in a command that is told.
  const std::string& path = folder.native();
  if (path.empty() || std::ranges::any_of(path, absl::ascii_iscntrl)) {
    return InvalidArgument("--context \"%s\": name a folder, without control characters",
                           absl::Utf8SafeCEscape(path));
  }
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(folder, error))) return absl::OkStatus();
  const auto names = ListDirectory(folder);
  if (!names.ok()) {
    return InvalidArgument("--context %s: this is no folder that can be written into: %s", folder.string(),
                           std::string(names.status().message()));
  }
  if (names->empty()) return absl::OkStatus();
  for (const std::string& name : *names) {
    if (std::ranges::find(kNames, name) != kNames.end()) continue;
    return InvalidArgument("--context %s: it holds %s, which is not of a build context: name another folder",
                           folder.string(), name);
  }
  const auto dockerfile = ReadRegularFile(folder / kDockerfile);
  if (dockerfile.ok() && absl::StartsWith(*dockerfile, kFirstLine)) return absl::OkStatus();
  return InvalidArgument(
      "--context %s: its Dockerfile is not one that muster made, and would be overwritten: name another "
      "folder",
      folder.string());
}

absl::Status WriteBuildContext(const std::filesystem::path& folder, const Job& job,
                               const JobContents& contents) {
  MUSTER_RETURN_IF_ERROR(CheckBuildContextFolder(folder));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder));
  // First: what is there without it is nobody's.
  MUSTER_RETURN_IF_ERROR(WriteFileAtomically(folder / kDockerfile, DockerfileOf(job, contents)));
  for (const char* name : kNames) {
    if (std::string(name) != kDockerfile) MUSTER_RETURN_IF_ERROR(RemoveTree(folder / name));
  }
  for (const Content& content : contents.contents) {
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(folder / ArchiveName(content.name), *content.bytes));
  }
  for (const agent::FileContent& file : contents.program_files) {
    const std::filesystem::path path = folder / kJobFolder / file.path();
    MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(path, file.content(), static_cast<mode_t>(file.mode())));
  }
  return absl::OkStatus();
}

}  // namespace muster
