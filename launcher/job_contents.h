// The files that a job's tasks need on each host: their program and their data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/job.h"
#include "launcher/contents.h"
#include "proto/agent.pb.h"

namespace muster {

/// Content::name of the trainer's, and of data.
inline constexpr char kTrainerContent[] = "trainer", kDataContent[] = "data";

struct JobContents {
  std::vector<Content> contents;                  // each by itself
  std::vector<agent::FileContent> program_files;  // of a program of the job's own; with each start
  std::string program_sha256;                     // of muster's trainer; "": the job has a program of its own
  std::string required_glibc;                     // by the trainer
  std::string data;                               // a folder on the host, or "synthetic"; "": none
  std::string data_origin;                        // for people
};

/// Packs it all. `data: auto` means `data_folder` (MUSTER_DATA), or else `data_cache` if it holds the model's
/// set, or else the synthetic set; both may be empty. InvalidArgument: files that are missing or too large, a
/// folder without the model's set.
absl::StatusOr<JobContents> PackJob(const Job& job, const Installation& installation,
                                    const std::string& data_folder, const std::filesystem::path& data_cache);

/// JobContents::data of a source that was packed into content of this hash. Empty: it was not packed.
std::string FolderOfData(const DataSource& data, const std::string& sha256);

}  // namespace muster
