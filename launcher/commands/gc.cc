// gc: removes from the hosts what jobs that have ended left there.
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

// Where jobs have folders: a home on a host. It is reached as the newest of the jobs says.
struct Home {
  record::Host host;
  size_t newest = 0;  // of the records
  std::set<std::string> jobs;
};

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
    return record.ended_micros() == 0 || record.folders_removed();
  });
  return records;
}

// Of the records, the newest first.
std::vector<Home> HomesOf(const std::vector<record::JobRecord>& records) {
  std::map<std::tuple<std::string, std::string, std::string>, Home> homes;
  for (size_t i = 0; i < records.size(); ++i) {
    for (const record::Host& host : HostsThatHad(records[i])) {
      Home& home = homes.try_emplace({host.name(), host.user(), host.dir()}, Home{.host = host, .newest = i})
                       .first->second;
      home.jobs.insert(records[i].id());
    }
  }
  std::vector<Home> list;
  for (auto& [key, home] : homes) list.push_back(std::move(home));
  return list;
}

// What one of the homes was rid of.
struct Removed {
  std::set<std::string> jobs;
  int contents = 0;
  uint64_t content_bytes = 0;
};

// By a process of its own: the daemon has tasks to look after.
absl::Status EmptyTrash(const record::Host& host, AgentConnection& connection) {
  const TimePoint deadline = Now() + kRemoveTimeout;
  MUSTER_ASSIGN_OR_RETURN(
      const auto command,
      connection.StartAgentCommand("empty-trash --root " + QuoteWord(connection.facts().root()), deadline));
  MUSTER_ASSIGN_OR_RETURN(const int exit_code, connection.transport().Wait(*command, deadline));
  if (exit_code == 0) return absl::OkStatus();
  return Internal("%s: what was thrown away could not be removed: %s", host.name(), command->StderrTail());
}

absl::Status CollectAt(const Home& home, double unused_s, AgentConnection& connection, Removed& removed) {
  std::vector<absl::Status> statuses;
  for (const std::string& job : home.jobs) {
    agent::Request forget;
    forget.mutable_forget_job()->set_job(job);
    statuses.push_back(connection.Call(forget, Now() + kCallTimeout).status());
    if (absl::IsUnavailable(statuses.back())) return statuses.back();  // the connection is gone
    if (statuses.back().ok()) removed.jobs.insert(job);
  }
  agent::Request collect;
  collect.mutable_collect_garbage()->set_unused_seconds(static_cast<uint32_t>(unused_s));
  const auto collected = connection.Call(collect, Now() + kCallTimeout);
  if (collected.ok()) {
    removed.contents = collected->collect_garbage().removed_sha256_size();
    removed.content_bytes = collected->collect_garbage().removed_bytes();
  }
  statuses.push_back(collected.status());
  statuses.push_back(EmptyTrash(home.host, connection));
  return FirstFailure(statuses);
}

}  // namespace

absl::Status GcCommand(const CommandContext& context) {
  std::vector<absl::Status> problems;
  MUSTER_ASSIGN_OR_RETURN(std::vector<record::JobRecord> records, ChosenJobs(context, &problems));
  std::ranges::stable_sort(records, std::ranges::greater(), &record::JobRecord::created_micros);
  const std::vector<Home> homes = HomesOf(records);
  std::map<size_t, ConnectOptions> options;  // by record
  for (const Home& home : homes) {
    if (options.contains(home.newest)) continue;
    options.emplace(home.newest, context.connect_options(records[home.newest]));
  }
  std::vector<Removed> removed(homes.size());
  const std::vector<absl::Status> statuses = OnEachHost(homes.size(), homes.size(), [&](size_t i) {
    const auto connection = AgentConnection::Connect(homes[i].host, options.at(homes[i].newest),
                                                     Now() + context.connect_timeout());
    if (!connection.ok()) return connection.status();
    return CollectAt(homes[i], context.flags().unused_s, **connection, removed[i]);
  });
  Removed total;
  for (const Removed& each : removed) {
    total.contents += each.contents;
    total.content_bytes += each.content_bytes;
  }
  int left = 0;
  for (record::JobRecord& record : records) {
    bool everywhere = true;
    for (size_t i = 0; i < homes.size(); ++i) {
      if (!homes[i].jobs.contains(record.id()) || removed[i].jobs.contains(record.id())) continue;
      everywhere = false;
      ++left;
    }
    if (!everywhere) continue;
    record.set_folders_removed(true);
    problems.push_back(context.jobs().Save(record));
  }
  problems.insert(problems.end(), statuses.begin(), statuses.end());
  for (const absl::Status& status : problems) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  std::fprintf(stderr, "%d jobs: %d folders on %d hosts are left; removed %d programs and data sets, %s\n",
               static_cast<int>(records.size()), left, static_cast<int>(homes.size()), total.contents,
               FormatBytes(total.content_bytes).c_str());
  const absl::Status failure = FirstFailure(problems);
  if (failure.ok()) return failure;
  return absl::Status(failure.code(), "not everything was removed; `muster gc` again goes on");
}

}  // namespace muster
