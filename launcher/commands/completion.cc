// completion: what has a shell complete muster's commands; and what it then asks.
#include <absl/strings/str_join.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/stdout.h"
#include "launcher/commands/complete.h"
#include "launcher/commands/context.h"
#include "launcher/completion.h"
#include "launcher/transport/ssh_auth.h"

namespace muster {
namespace {

// What files here say. Who has pressed Tab waits: no host is asked, and no program is run. What cannot be
// read has no candidates.
class LocalSource : public CompletionSource {
 public:
  explicit LocalSource(Places places) : places_(std::move(places)), jobs_(places_.folder) {}

  std::vector<Candidate> Jobs() const override {
    std::vector<Candidate> names, ids;
    std::set<std::string> is_named;
    for (const record::JobRecord& job : Records()) {
      ids.push_back({job.id(), RecordedState(job)});
      if (is_named.insert(job.name()).second) names.push_back({job.name(), "the newest: " + job.id()});
    }
    names.insert(names.end(), ids.begin(), ids.end());
    return names;
  }

  std::vector<Candidate> Pools() const override {
    std::vector<Candidate> pools;
    for (const record::JobRecord& job : Records()) {
      if (job.standing() && job.ended_micros() == 0) pools.push_back({job.name(), RecordedState(job)});
    }
    return pools;
  }

  std::vector<Candidate> Tasks(const std::string& job) const override {
    std::vector<Candidate> tasks;
    const auto record = jobs_.Find(job);
    if (!record.ok()) return tasks;
    for (const record::Task& task : record->tasks()) tasks.push_back({task.id(), task.host()});
    return tasks;
  }

  std::vector<Candidate> Hosts(const std::string& inventory) const override {
    const std::filesystem::path path =
        inventory.empty() ? places_.inventory : std::filesystem::path(ExpandHome(inventory, places_.home));
    std::error_code ignored;
    std::vector<Candidate> hosts;
    if (!std::filesystem::is_regular_file(path, ignored)) return hosts;  // a pipe would be waited for
    const auto read = ReadInventory(path, places_.home);
    if (!read.ok()) return hosts;
    for (const Host& host : read->hosts) hosts.push_back({host.name, absl::StrJoin(host.labels, ", ")});
    return hosts;
  }

 private:
  std::vector<record::JobRecord> Records() const {
    std::vector<absl::Status> problems;
    return jobs_.List(&problems);
  }

  const Places places_;
  const JobStore jobs_;
};

}  // namespace

absl::Status CompletionCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const Shell shell, ParseShell(context.flags().shell));
  PrintToStdout(CompletionScript(shell));
  return absl::OkStatus();
}

int CompleteCommand(const CLI::App& app, std::span<const std::string> words) {
  const auto shell = ParseShell(words.empty() ? "" : words[0]);
  const auto places = FindPlaces();
  if (!shell.ok() || !places.ok()) return 2;
  BashWords line = {.words = {words.begin() + 1, words.end()}};
  if (*shell == Shell::kBash) line = JoinBashWords(words.subspan(1));
  PrintToStdout(CompletionAnswer(*shell, Complete(app, line.words, LocalSource(*places)), line.kept));
  return 0;
}

}  // namespace muster
