#include "agent/task_program.h"

#include <unistd.h>

#include <cstdlib>
#include <map>

#include "agent/names.h"
#include "agent/records.h"

namespace muster {
namespace {

using Variables = std::map<std::string, std::string>;

void Set(Variables& variables, const std::string& entry) {
  const size_t equals = entry.find('=');
  variables[entry.substr(0, equals)] = entry.substr(equals + 1);
}

std::string FindInPath(const std::string& name, const std::string& path) {
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find(':', start), path.size());
    const std::string folder = path.substr(start, end - start);
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code error;
    if (::access(file.c_str(), X_OK) == 0 && !std::filesystem::is_directory(file, error)) return file;
    start = end + 1;
  }
  return "";
}

}  // namespace

std::vector<std::string> BaseEnvironment() {
  Variables variables = {{"LANG", "C.UTF-8"}, {"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  for (const char* name : {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"}) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

TaskProgram MakeTaskProgram(const ShimOptions& options, const agent::StartTaskRequest& spec,
                            const std::filesystem::path& task_folder) {
  const std::filesystem::path store = options.root / "store";
  TaskProgram program;
  for (const std::string& argument : spec.argv())
    program.argv.push_back(Expand(argument, task_folder, store));

  Variables variables;
  for (const std::string& entry : BaseEnvironment()) Set(variables, entry);
  for (const std::string& entry : spec.environment()) Set(variables, Expand(entry, task_folder, store));
  variables["MUSTER_TOKEN"] = TaskToken(options.job, RootId(options.root), options.task);
  variables["MUSTER_JOB"] = options.job;
  variables["MUSTER_TASK"] = options.task;
  variables["MUSTER_INCARNATION"] = std::to_string(options.incarnation);
  variables["MUSTER_GENERATION"] =
      std::to_string(spec.base_generation() > 0 ? spec.base_generation() : spec.generation());
  variables["MUSTER_TASK_DIR"] = task_folder.string();
  variables["MUSTER_PROGRESS_FILE"] = ProgressPath(task_folder).string();
  variables["MUSTER_DONE_FILE"] = DoneFilePath(task_folder).string();
  for (const auto& [name, value] : variables) program.environment.push_back(name + "=" + value);

  if (!spec.program_sha256().empty()) {
    program.file = (store / spec.program_sha256() / program.argv[0]).string();
  } else if (program.argv[0].find('/') != std::string::npos) {
    program.file = program.argv[0];
  } else {
    program.file = FindInPath(program.argv[0], variables["PATH"]);
  }
  return program;
}

}  // namespace muster
