#include "agent/evidence.h"

#include <filesystem>
#include <map>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

constexpr size_t kMostProcesses = 16;
constexpr size_t kMostThreads = 32;  // of each
constexpr int kMostStackLines = 12;

// Files of /proc say what they may; "": nothing. Of those that can be read at any time: cmdline and environ
// take a lock on the memory of the process, which one that hangs may hold for ever.
std::string ProcText(const std::filesystem::path& path) {
  std::string text = ReadFile(path, 1 << 16).value_or("");
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

// Of the line "State:\tS (sleeping)".
std::string StateOf(const std::filesystem::path& folder) {
  std::istringstream status(ProcText(folder / "status"));
  const std::string key = "State:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "gone";
}

std::vector<pid_t> Descendants(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : AllProcesses()) {
    if (const auto stat = ReadProcessStat(pid); stat.ok()) children.emplace(stat->parent, pid);
  }
  std::vector<pid_t> found = {ancestor};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

void DescribeThread(const std::filesystem::path& folder, std::string& text) {
  text += absl::StrFormat("  thread %s (%s): %s", folder.filename().string(), ProcText(folder / "comm"),
                          StateOf(folder));
  const std::string where = ProcText(folder / "wchan");
  if (!where.empty() && where != "0") text += ", waits in " + where;
  // "202 0x7f... ..." with the number first; "running"; or nothing.
  const std::string call = ProcText(folder / "syscall");
  if (!call.empty()) text += ", system call " + call.substr(0, call.find(' '));
  text += "\n";
  std::istringstream stack(ProcText(folder / "stack"));
  std::string line;
  for (int i = 0; i < kMostStackLines && std::getline(stack, line); ++i) text += "    " + line + "\n";
}

}  // namespace

std::string DescribeDescendants(pid_t ancestor) {
  std::string text;
  std::vector<pid_t> processes = Descendants(ancestor);
  if (processes.size() > kMostProcesses) processes.resize(kMostProcesses);
  for (const pid_t pid : processes) {
    const std::filesystem::path folder = absl::StrFormat("/proc/%d", pid);
    text += absl::StrFormat("process %d (%s)\n", pid, ProcText(folder / "comm"));
    std::vector<std::string> threads = ListDirectory(folder / "task").value_or(std::vector<std::string>{});
    if (threads.size() > kMostThreads) threads.resize(kMostThreads);
    for (const std::string& thread : threads) DescribeThread(folder / "task" / thread, text);
  }
  return text;
}

}  // namespace muster
