// What a shim executes: file, argv and environment of one incarnation, made from the task's record.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "agent/shim.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

struct TaskProgram {
  std::string file;                      // with a slash; "" where argv[0] is not in PATH
  std::vector<std::string> argv;         // expanded
  std::vector<std::string> environment;  // "NAME=value", each name once
};

/// Reads the environment of this process and, to find argv[0] in PATH, the file system.
TaskProgram MakeTaskProgram(const ShimOptions& options, const agent::StartTaskRequest& spec,
                            const std::filesystem::path& task_folder);

/// The part of this process's environment that tasks, shims and the daemon get: HOME LANG LOGNAME PATH SHELL
/// TMPDIR TZ USER, as far as they are set, with a default for PATH and LANG. What else a login leaves there
/// differs from host to host.
std::vector<std::string> BaseEnvironment();

}  // namespace muster
