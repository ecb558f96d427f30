// What a task is started with: files that its start request brings, and contents of the store that it names.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// The SHA-256 of each content that the spec names: its program, and "{store:...}" in arguments and
/// environment.
std::set<std::string> ContentsOf(const agent::StartTaskRequest& spec);

/// NotFound: one of them is not in the store. Those that are count as used now.
absl::Status CheckContents(const std::filesystem::path& root, const agent::StartTaskRequest& spec);

/// Puts the spec's files into the task's folder, each in the place of whatever has its name there but a
/// folder.
absl::Status WriteFiles(const std::filesystem::path& task_folder, const agent::StartTaskRequest& spec);

}  // namespace muster
