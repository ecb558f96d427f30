// Names of jobs and tasks, and what is derived from them: folders, tokens, and the texts a start request may
// use. Pure.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace muster {

/// 1 to 100 of [A-Za-z0-9_.-], the first a letter or digit. InvalidArgument otherwise.
absl::Status ValidateJobName(std::string_view job);

/// "worker:0": 1 to 60 of [A-Za-z0-9_-], the first a letter or digit, then optionally a colon and up to 9
/// digits.
absl::Status ValidateTaskName(std::string_view task);

/// The folder of a valid task name, "worker.0": no colon, because paths with one cannot stand in PATH-like
/// variables.
std::string TaskFolder(std::string_view task);

/// The inverse; nothing if no valid task has this folder.
std::optional<std::string> TaskOfFolder(std::string_view folder);

bool IsSha256(std::string_view text);

/// Tells agents of different folders on one machine apart, in tokens: 16 hexadecimal digits of the hash of
/// the absolute path.
std::string RootId(const std::filesystem::path& root);

/// What each process of a task carries as MUSTER_TOKEN in its environment.
std::string TaskToken(std::string_view job, std::string_view root_id, std::string_view task);

/// What the tokens of all tasks of a job under a root begin with.
std::string JobTokenPrefix(std::string_view job, std::string_view root_id);

/// The contents that `text` names as "{store:<64 hexadecimal digits>}".
std::vector<std::string> StoreKeys(std::string_view text);

/// `text` with "{task_dir}" and each "{store:<64 hexadecimal digits>}" replaced, and nothing else: JSON
/// passes unharmed.
std::string Expand(std::string_view text, const std::filesystem::path& task_folder,
                   const std::filesystem::path& store);

}  // namespace muster
