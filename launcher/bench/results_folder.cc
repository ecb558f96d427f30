#include "launcher/bench/results_folder.h"

#include <string>
#include <utility>

#include "base/file.h"
#include "launcher/bench/report.h"

namespace muster::bench {
namespace {

struct Names {
  std::filesystem::path results, report;
};

Names NamesWith(const std::filesystem::path& folder, const std::string& suffix) {
  return {folder / ("results" + suffix + ".json"), folder / ("report" + suffix + ".html")};
}

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Names FreeNames(const std::filesystem::path& folder) {
  for (int number = 1;; ++number) {
    Names names = NamesWith(folder, absl::StrFormat("-%d", number));
    if (!Exists(names.results) && !Exists(names.report)) return names;
  }
}

}  // namespace

absl::Status MakeResultsFolder(const std::filesystem::path& folder) {
  const std::filesystem::path trial = folder / ".trial";
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder));
  MUSTER_RETURN_IF_ERROR(WriteFileAtomically(trial, ""));
  return RemoveTree(trial);
}

absl::Status WriteResults(const std::filesystem::path& folder, const Results& results) {
  const Names names = NamesWith(folder, "");
  MUSTER_RETURN_IF_ERROR(WriteFileAtomically(names.results, ToJson(results)));
  return WriteFileAtomically(names.report, ReportHtml(results));
}

absl::StatusOr<std::vector<std::filesystem::path>> KeepEarlierResults(const std::filesystem::path& folder) {
  const Names there = NamesWith(folder, ""), free = FreeNames(folder);
  std::vector<std::filesystem::path> kept;
  for (const auto& [from, to] :
       {std::pair(there.results, free.results), std::pair(there.report, free.report)}) {
    if (!Exists(from)) continue;
    std::error_code error;
    std::filesystem::rename(from, to, error);
    if (error) return ErrnoError(error.value(), "rename " + from.string());
    kept.push_back(to);
  }
  return kept;
}

}  // namespace muster::bench
