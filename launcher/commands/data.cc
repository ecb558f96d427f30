// data: sets for training, fetched or made.
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/process.h"
#include "base/stdout.h"
#include "launcher/commands/context.h"
#include "launcher/fetch.h"
#include "launcher/terminal.h"

namespace muster {
namespace {

constexpr Duration kMakeTimeout = std::chrono::minutes(10);  // takes about a second

absl::StatusOr<std::filesystem::path> Absolute(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  if (error || folder.empty()) return InvalidArgument("DIR \"%s\" is no folder", folder.string());
  return absolute;
}

}  // namespace

absl::Status FetchDataCommand(const CommandContext& context) {
  const CommandFlags& flags = context.flags();
  const DataSet* const set = FindDataSet(flags.data_set);
  MUSTER_CHECK(set != nullptr, flags.data_set);
  MUSTER_ASSIGN_OR_RETURN(
      const std::filesystem::path folder,
      Absolute(flags.data_folder ? std::filesystem::path(*flags.data_folder) : context.data_cache()));
  LiveBlock progress;
  const absl::Status status = FetchDataSet(*set, folder,
                                           {.mirrors = flags.mirrors,
                                            .say =
                                                [&](const std::string& line) {
                                                  progress.Clear();
                                                  std::fprintf(stderr, "%s\n", line.c_str());
                                                },
                                            .progress =
                                                [&](const std::string& file, uint64_t bytes, uint64_t total) {
                                                  const std::string of =
                                                      total == 0 ? "" : " of " + FormatBytes(total);
                                                  progress.Show({file + "  " + FormatBytes(bytes) + of});
                                                }});
  progress.Clear();
  if (status.ok()) PrintToStdout(folder.string() + "\n");
  return status;
}

// The trainer makes them, because it also trains on them where it finds no files.
absl::StatusOr<int> MakeDataCommand(const CommandContext& context) {
  const CommandFlags& flags = context.flags();
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path folder, Absolute(*flags.data_folder));
  const std::filesystem::path trainer = context.installation().trainer / "bin/muster-trainer";
  MUSTER_ASSIGN_OR_RETURN(const CommandResult made,
                          RunCommand({.argv = {trainer.string(), "--make_data=" + flags.data_set,
                                               "--data_dir=" + folder.string()}},
                                     Now() + kMakeTimeout));
  PrintToStdout(made.stdout_text);
  // Whoever called muster need not know whose words these are.
  std::string_view said = made.stderr_text;
  constexpr std::string_view kTrainersName = "muster-trainer: ";
  const bool named = said.starts_with(kTrainersName);
  if (named) said.remove_prefix(kTrainersName.size());
  std::fprintf(stderr, "%s%.*s", named ? "muster: " : "", static_cast<int>(said.size()), said.data());
  return made.exit_code;
}

}  // namespace muster
