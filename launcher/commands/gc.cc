// gc: removes from the hosts what jobs that have ended left there.
#include <absl/strings/ascii.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/fleet.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(30);
constexpr Duration kRemoveTimeout = std::chrono::minutes(30);  // there may be many checkpoints
// A job that begins may have heard of a host that it has the contents, and wait for another one.
constexpr std::chrono::seconds kBeginningTakes = std::chrono::hours(1);

// Where jobs have folders, or programs and data were left: a home on a host. It is reached as the newest of
// the jobs says that is known to have reached it, or the newest of all.
struct Home {
  record::Host host;
  size_t record_index = 0;  // of the one that says so
  bool was_reached = false;
  std::set<std::string> jobs;  // with folders
};
using HomeKey = std::tuple<std::string, std::string, std::string>;
using Homes = std::map<HomeKey, Home>;

HomeKey KeyOf(const record::Host& host) { return {host.name(), host.user(), host.dir()}; }

bool HasContents(const record::Host& host) { return !host.contents().empty(); }

// "1 job", "2 jobs"
std::string Count(size_t count, const char* one, const char* several) {
  return absl::StrFormat("%d %s", count, count == 1 ? one : several);
}

std::string CountContents(size_t count, uint64_t bytes) {
  return Count(count, "program or data set", "programs and data sets") + ", " + FormatBytes(bytes);
}

absl::StatusOr<std::vector<record::JobRecord>> ChosenJobs(const CommandContext& context,
                                                          std::vector<absl::Status>* problems) {
  std::vector<record::JobRecord> records;
  for (const std::string& job : context.flags().jobs) {
    MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, FindJob(context, job));
    if (record.ended_micros() == 0) {
      return InvalidArgument("job %s has not ended: `muster stop %s` ends it", record.id(), record.id());
    }
    records.push_back(std::move(record));
  }
  if (!context.flags().jobs.empty()) return records;
  records = FindJobs(context, problems);
  std::erase_if(records, [](const record::JobRecord& record) {
    return record.ended_micros() == 0 ||
           (record.folders_removed() && std::ranges::none_of(record.hosts(), HasContents) &&
            std::ranges::none_of(record.drivers(), HasContents));
  });
  return records;
}

// The home of the host. How a job reached it counts before how one that never began meant to: that may be a
// slip in an inventory.
Home& AddTo(Homes& homes, const record::Host& host, const std::vector<record::JobRecord>& records,
            size_t record_index) {
  const bool was_reached =
      records[record_index].cluster().generation() > 0 || host.reached() || !host.machine_id().empty();
  const Home as_new{.host = host, .record_index = record_index, .was_reached = was_reached};
  Home& home = homes.try_emplace(KeyOf(host), as_new).first->second;
  if (was_reached && !home.was_reached) {
    home.host = host;
    home.record_index = record_index;
    home.was_reached = true;
  }
  return home;
}

// Of the records, the newest first.
Homes HomesOf(const std::vector<record::JobRecord>& records, bool are_named) {
  Homes homes;
  for (size_t i = 0; i < records.size(); ++i) {
    const bool may_have_folders = are_named || !records[i].folders_removed();
    for (const record::Host& host : HostsThatHad(records[i])) {
      if (!may_have_folders && !HasContents(host)) continue;
      Home& home = AddTo(homes, host, records, i);
      if (may_have_folders) home.jobs.insert(records[i].id());
    }
    for (const record::Host& host : records[i].drivers()) {
      if (HasContents(host)) AddTo(homes, host, records, i);
    }
  }
  return homes;
}

// What one of the homes was rid of.
struct Removed {
  bool is_gone = false;            // and so is all that it had
  std::chrono::seconds unused{0};  // for which contents had to be unused
  std::set<std::string> jobs;
  bool is_collected = false;       // nothing is left there that has been unused for as long as was said
  std::set<std::string> contents;  // SHA-256
  uint64_t content_bytes = 0;
};

// Takes from the record what is left of its programs and data nowhere: what was removed, and, where that was
// long enough after the job's end, all else. What others have used since is in their records.
void ForgetContents(const Removed& removed, int64_t micros_since_end, record::Host* host) {
  if (removed.is_gone) host->clear_contents();
  if (!removed.is_collected) return;
  const bool is_long_ago = std::chrono::microseconds(micros_since_end) >= removed.unused;
  auto* const contents = host->mutable_contents();
  const auto is_gone = [&](const std::string& sha256) {
    return is_long_ago || removed.contents.contains(sha256);
  };
  contents->erase(std::remove_if(contents->begin(), contents->end(), is_gone), contents->end());
}

// By a process of its own: the daemon has tasks to look after.
absl::Status EmptyTrash(const record::Host& host, AgentConnection& connection) {
  const TimePoint deadline = Now() + kRemoveTimeout;
  MUSTER_ASSIGN_OR_RETURN(
      const auto command,
      connection.StartAgentCommand("empty-trash --root " + QuoteWord(connection.facts().root()), deadline));
  MUSTER_ASSIGN_OR_RETURN(const int exit_code, connection.transport().Wait(*command, deadline));
  if (exit_code == 0) return absl::OkStatus();
  return Internal("%s: what was thrown away could not be removed: %s", host.name(),
                  absl::StripAsciiWhitespace(command->StderrTail()));
}

absl::Status CollectAt(const Home& home, AgentConnection& connection, Removed& removed) {
  std::vector<absl::Status> statuses;
  for (const std::string& job : home.jobs) {
    agent::Request forget;
    forget.mutable_forget_job()->set_job(job);
    statuses.push_back(connection.Call(forget, Now() + kCallTimeout).status());
    if (absl::IsUnavailable(statuses.back())) return statuses.back();  // the connection is gone
    if (statuses.back().ok()) removed.jobs.insert(job);
  }
  agent::Request collect;
  collect.mutable_collect_garbage()->set_unused_seconds(static_cast<uint32_t>(removed.unused.count()));
  const auto collected = connection.Call(collect, Now() + kCallTimeout);
  if (collected.ok()) {
    const agent::CollectGarbageResponse& gone = collected->collect_garbage();
    removed.is_collected = true;
    removed.contents = {gone.removed_sha256().begin(), gone.removed_sha256().end()};
    removed.content_bytes = gone.removed_bytes();
  }
  statuses.push_back(collected.status());
  statuses.push_back(EmptyTrash(home.host, connection));
  return FirstFailure(statuses);
}

// Of jobs that have not ended, and may have heard of what is there that they will want.
std::set<HomeKey> HomesInUse(const JobStore& jobs) {
  std::vector<absl::Status> unreadable;  // which ChosenJobs has told
  std::set<HomeKey> homes;
  for (const record::JobRecord& record : jobs.List(&unreadable)) {
    if (record.ended_micros() != 0) continue;
    for (const record::Host& host : record.hosts()) homes.insert(KeyOf(host));
  }
  return homes;
}

absl::Status CheckGone(const std::set<std::string>& gone, const std::vector<Home>& homes) {
  for (const std::string& name : gone) {
    const auto is_it = [&](const Home& home) { return home.host.name() == name; };
    if (std::ranges::any_of(homes, is_it)) continue;
    return InvalidArgument("--gone %s: no job that has ended has left anything on a host of this name", name);
  }
  return absl::OkStatus();
}

// Of all homes together.
struct Totals {
  size_t jobs = 0;          // whose last folder is gone now
  size_t folders_left = 0;  // of the others
  size_t removed_contents = 0;
  uint64_t removed_bytes = 0;
  std::map<std::pair<size_t, std::string>, uint64_t> contents_left;  // by home and SHA-256: bytes
};

// Brings the record of a job to what is left of it.
void Account(const std::map<HomeKey, size_t>& index, const std::vector<Home>& homes,
             const std::vector<Removed>& removed, int64_t now_micros, record::JobRecord* record,
             Totals* totals) {
  std::map<std::string, uint64_t> sizes;
  for (const record::Content& content : record->contents()) sizes[content.sha256()] = content.size_bytes();
  size_t left = 0;
  const auto account = [&](size_t i, record::Host* host) {
    ForgetContents(removed[i], now_micros - record->ended_micros(), host);
    if (!removed[i].is_collected) return;
    for (const std::string& sha256 : host->contents()) totals->contents_left[{i, sha256}] = sizes[sha256];
  };
  for (record::Host& host : *record->mutable_hosts()) {
    const auto home = index.find(KeyOf(host));
    if (home == index.end()) continue;
    const size_t i = home->second;
    if (homes[i].jobs.contains(record->id()) && !removed[i].jobs.contains(record->id())) ++left;
    account(i, &host);
  }
  for (record::Host& host : *record->mutable_drivers()) {
    if (const auto home = index.find(KeyOf(host)); home != index.end()) account(home->second, &host);
  }
  totals->folders_left += left;
  if (left > 0) return;
  if (!record->folders_removed()) ++totals->jobs;
  record->set_folders_removed(true);
}

std::string Describe(const Totals& totals, size_t hosts, Duration unused) {
  std::string text =
      absl::StrFormat("%s on %s %s left; removed the folders of %s",
                      Count(totals.folders_left, "folder", "folders"), Count(hosts, "host", "hosts"),
                      totals.folders_left == 1 ? "is" : "are", Count(totals.jobs, "job", "jobs"));
  if (totals.removed_contents > 0) {
    text += " and " + CountContents(totals.removed_contents, totals.removed_bytes);
  }
  if (totals.contents_left.empty()) return text;
  uint64_t bytes = 0;
  for (const auto& [content, size] : totals.contents_left) bytes += size;
  const std::string left = CountContents(totals.contents_left.size(), bytes);
  if (unused == Duration::zero()) return text + "; " + left + ", stay where a job has not ended";
  return text +
         absl::StrFormat("; %s, were used in the last %s and stay (--unused 0 removes what no job needs)",
                         left, FormatAge(unused));
}

}  // namespace

absl::Status GcCommand(const CommandContext& context) {
  const int64_t start_micros = WallTimeMicros();
  const std::chrono::seconds unused(static_cast<int64_t>(context.flags().unused_s));
  std::vector<absl::Status> problems;
  MUSTER_ASSIGN_OR_RETURN(std::vector<record::JobRecord> records, ChosenJobs(context, &problems));
  std::ranges::stable_sort(records, std::ranges::greater(), &record::JobRecord::created_micros);
  std::map<HomeKey, size_t> index;
  std::vector<Home> homes;
  for (auto& [key, home] : HomesOf(records, !context.flags().jobs.empty())) {
    index[key] = homes.size();
    homes.push_back(home);
  }
  const std::set<std::string>& gone = context.flags().gone_hosts;
  MUSTER_RETURN_IF_ERROR(CheckGone(gone, homes));
  std::map<size_t, ConnectOptions> options;  // by record
  for (const Home& home : homes) {
    if (options.contains(home.record_index)) continue;
    options.emplace(home.record_index, context.connect_options(records[home.record_index]));
  }
  const std::set<HomeKey> busy = HomesInUse(context.jobs());
  std::vector<Removed> removed(homes.size());
  for (size_t i = 0; i < homes.size(); ++i) {
    const bool is_busy = busy.contains(KeyOf(homes[i].host));
    removed[i].unused = is_busy ? std::max(unused, kBeginningTakes) : unused;
  }
  // Of several homes of one name only those are gone that are not reached.
  std::multiset<std::string> names;
  for (const Home& home : homes) names.insert(home.host.name());
  const std::vector<absl::Status> statuses = OnEachHost(homes.size(), homes.size(), [&](size_t i) {
    const std::string& name = homes[i].host.name();
    const auto give_up = [&] {
      removed[i] = {.is_gone = true, .jobs = homes[i].jobs};
      return absl::OkStatus();
    };
    if (gone.contains(name) && names.count(name) == 1) return give_up();
    const auto connection = AgentConnection::Connect(homes[i].host, options.at(homes[i].record_index),
                                                     Now() + context.connect_timeout());
    if (connection.ok()) return CollectAt(homes[i], **connection, removed[i]);
    return gone.contains(name) ? give_up() : connection.status();
  });
  Totals totals;
  for (const Removed& each : removed) {
    totals.removed_contents += each.contents.size();
    totals.removed_bytes += each.content_bytes;
  }
  for (record::JobRecord& record : records) {
    const std::string before = record.SerializeAsString();
    Account(index, homes, removed, start_micros, &record, &totals);
    if (record.SerializeAsString() != before) problems.push_back(context.jobs().Save(record));
  }
  problems.insert(problems.end(), statuses.begin(), statuses.end());
  for (const absl::Status& status : problems) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  const auto asked = std::ranges::count(removed, false, &Removed::is_gone);
  std::fprintf(stderr, "%s\n", Describe(totals, static_cast<size_t>(asked), unused).c_str());
  const absl::Status failure = FirstFailure(problems);
  if (failure.ok()) return failure;
  return absl::Status(
      failure.code(),
      "not everything was removed; `muster gc` again goes on, and with `--gone HOST` without a "
      "host that never comes back");
}

}  // namespace muster
