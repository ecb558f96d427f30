// controller: what a machine asks of this one that had it drive a job (launcher/controller.h). Not for
// people.
#include <absl/cleanup/cleanup.h>
#include <absl/strings/escaping.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>

#include "base/archive.h"
#include "base/random.h"
#include "base/stdout.h"
#include "launcher/commands/driving.h"
#include "launcher/commands/replanning.h"
#include "launcher/controller.h"
#include "launcher/fleet.h"
#include "launcher/job_history.h"
#include "launcher/transport/ssh_auth.h"

namespace muster {
namespace {

constexpr size_t kMostInput = size_t{256} << 20;
constexpr char kKnownHostsFile[] = "known_hosts";
constexpr char kNeededFile[] = "needed";
constexpr char kInventoryFolder[] = "inventory";  // whatever the inventory's own name is
constexpr char kCheckFolder[] = "check-";
constexpr Duration kCheckTimeout = std::chrono::hours(1);  // none takes so long
// Who asked may have gone away meanwhile.
constexpr Duration kAwaitTimeout = std::chrono::seconds(10);

// Of the files in a job's folder.
bool IsForOthers(std::string_view path) {
  const std::string_view first = path.substr(0, path.find('/'));
  return first == kRecordFile || std::ranges::find(kJobFiles, first) != std::end(kJobFiles);
}

absl::StatusOr<record::HandOver> ReadHandOver() {
  std::string bytes;
  char buffer[65536];
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, "stdin");
    if (n == 0) break;
    if (bytes.size() + n > kMostInput) return InvalidArgument("stdin: no job is that large");
    bytes.append(buffer, n);
  }
  record::HandOver job;
  if (!job.ParseFromString(bytes)) return DataLoss("stdin: this is no job");
  if (job.record().version() != kJobRecordVersion) {
    return FailedPrecondition("the job has version %d, this muster knows version %d", job.record().version(),
                              kJobRecordVersion);
  }
  for (const std::string& name : {job.record().id(), job.inventory_name()}) {
    if (name.find('/') != std::string::npos || name == "." || name == "..") {
      return InvalidArgument("stdin: '%s' is no name of a file", absl::Utf8SafeCEscape(name));
    }
  }
  return job;
}

// The keys that this machine has at the same places.
void KeepOwnKeys(const std::string& home, google::protobuf::RepeatedPtrField<std::string>* identities) {
  const auto is_missing = [&](const std::string& identity) {
    std::error_code error;
    return identity != kNoIdentity && !std::filesystem::exists(ExpandHome(identity, home), error);
  };
  identities->erase(std::remove_if(identities->begin(), identities->end(), is_missing), identities->end());
}

void KeepOwnKeys(const CommandContext& context, record::Host* host) {
  KeepOwnKeys(context.home(), host->mutable_identities());
  for (record::JumpHost& jump : *host->mutable_jumps()) {
    KeepOwnKeys(context.home(), jump.mutable_identities());
  }
}

// Of the hosts another one is this machine.
void MakeOwn(const CommandContext& context, const std::string& own, record::Host* host) {
  KeepOwnKeys(context, host);
  host->set_local(host->name() == own);
  if (host->local()) host->set_data_is_ssh(false);
}

// The files of the other machine, in the job's folder.
absl::Status WriteFiles(const std::filesystem::path& folder, const record::HandOver& job) {
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder / kInventoryFolder, 0700));
  for (const agent::FileContent& file : job.inventory_files()) {
    MUSTER_RETURN_IF_ERROR(Annotate(ValidateRelativePath(file.path()), "stdin"));
    const std::filesystem::path path = folder / kInventoryFolder / file.path();
    MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path(), 0700));
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(path, file.content(), file.mode() & 0700));
  }
  const std::pair<std::filesystem::path, const std::string*> files[] = {
      {folder / kInventoryFolder / job.inventory_name(), &job.inventory()},
      {folder / kKnownHostsFile, &job.known_hosts()},
      {folder / kHistoryFile, &job.history()}};
  for (const auto& [path, bytes] : files) {
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(path, *bytes, 0600));
  }
  return absl::OkStatus();
}

// The job as it is from this machine, in its folder.
absl::Status TakeOnJob(const CommandContext& context, const std::filesystem::path& folder,
                       record::HandOver* job) {
  record::JobRecord& record = *job->mutable_record();
  MUSTER_RETURN_IF_ERROR(WriteFiles(folder, *job));
  record.set_inventory_file((folder / kInventoryFolder / job->inventory_name()).string());
  record.set_known_hosts((folder / kKnownHostsFile).string());
  record.clear_controller();
  for (auto* const hosts : {record.mutable_hosts(), record.mutable_spare_hosts()}) {
    for (record::Host& host : *hosts) MakeOwn(context, job->host(), &host);
  }
  return context.jobs().Save(record);
}

// What garbage collection leaves in the agent's store as long as the job's folder is there (agent/garbage.h).
absl::Status WriteNeeded(const CommandContext& context, const record::JobRecord& record) {
  // This program's bundle is in the store itself, as <SHA-256>/bin/.
  const std::filesystem::path bundle = context.installation().agent.parent_path().parent_path();
  std::string needed = bundle.filename().string() + "\n";
  for (const record::Content& content : record.contents()) needed += content.sha256() + "\n";
  return WriteFileAtomically(context.jobs().JobFolder(record.id()) / kNeededFile, needed, 0600);
}

// What the job's hosts may need, from the store of this one's agent: the same files are the same archive.
Contents StoredContents(const CommandContext& context, const record::JobRecord& record) {
  Contents contents;
  for (const record::Content& content : record.contents()) {
    const std::filesystem::path folder = context.jobs().folder().parent_path() / "store" / content.sha256();
    auto packed = PackContent(content.name(), folder);
    // A host that lacks it says so.
    if (packed.ok() && packed->sha256 == content.sha256()) contents[content.sha256()] = *std::move(packed);
  }
  return contents;
}

// Of hosts that the inventory gains, too, the keys are those of this machine.
absl::StatusOr<std::optional<NewPlan>> ReplanHere(const CommandContext& context, Replanner& replanner,
                                                  const std::set<std::string>& hosts,
                                                  const record::JobRecord& running, int cancel_fd) {
  auto plan = replanner.Replan(hosts, running, cancel_fd);
  if (!plan.ok() || !*plan) return plan;
  record::JobRecord& record = (*plan)->record;
  for (auto* const planned : {record.mutable_hosts(), record.mutable_spare_hosts()}) {
    for (record::Host& host : *planned) KeepOwnKeys(context, &host);
  }
  return plan;
}

// Whether the job has ended, as an exit code.
absl::StatusOr<int> AwaitEnd(const JobStore& jobs, const std::string& job) {
  const TimePoint deadline = Now() + kAwaitTimeout;
  while (true) {
    const auto record = jobs.Load(job);
    if (absl::IsNotFound(record.status())) return kNoSuchJobExitCode;  // it has been taken back meanwhile
    MUSTER_RETURN_IF_ERROR(record.status());
    if (record->ended_micros() != 0) return 0;
    const auto lock = InTurn(jobs, job, &JobStore::Lock);
    if (lock.ok()) return kUndrivenExitCode;
    if (Now() >= deadline) return kDrivenExitCode;
    ::usleep(100'000);
  }
}

// Of checks that were killed.
void RemoveOldChecks(const std::filesystem::path& jobs) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(jobs, error)) {
    if (!entry.path().filename().string().starts_with(kCheckFolder)) continue;
    const auto written = entry.last_write_time(error);
    if (!error && std::filesystem::file_time_type::clock::now() - written > kCheckTimeout)
      (void)RemoveTree(entry.path());
  }
}

}  // namespace

// Logs in as the controller will, and asks what it will ask, which leaves nothing anywhere.
absl::Status CheckControllerCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const record::HandOver job, ReadHandOver());
  RemoveOldChecks(context.jobs().folder());
  // Not where nothing may be run, as in some hosts' /tmp.
  const std::filesystem::path folder = context.jobs().folder() / (kCheckFolder + RandomName(12));
  const absl::Cleanup remove = [&folder] { (void)RemoveTree(folder); };
  MUSTER_RETURN_IF_ERROR(WriteFiles(folder, job));
  const std::string inventory_file = (folder / kInventoryFolder / job.inventory_name()).string();
  if (const auto inventory = ReadInventory(inventory_file, context.home());
      inventory.ok() && inventory->discover) {
    if (const auto found = Discover(*inventory->discover, inventory_file); !found.ok()) {
      return FailedPrecondition(
          "%s, and it is to be asked here: let it need nothing but the files beside the inventory that it "
          "names, or take an inventory without `discover:`",
          std::string(found.status().message()));
    }
  }
  std::vector<record::Host> hosts(job.hosts().begin(), job.hosts().end());
  for (record::Host& host : hosts) MakeOwn(context, job.host(), &host);
  ConnectOptions connect = context.connect_options(hosts);
  connect.ssh.known_hosts = folder / kKnownHostsFile;
  const std::vector<absl::Status> statuses = OnEachHost(
      hosts.size(), context.flags().parallel,
      [&](size_t i) { return OpenTransport(hosts[i], connect, Now() + context.connect_timeout()).status(); });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  // Of a job that runs, one may be down that has nothing to do any more, or that the job waits for.
  const bool runs = !job.record().id().empty();
  const auto failed = std::ranges::count_if(statuses, [runs](const absl::Status& status) {
    return !status.ok() && !(runs && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)));
  });
  if (failed == 0) return absl::OkStatus();
  return FailedPrecondition("it cannot log in to %d of %d hosts with the keys of its account", failed,
                            hosts.size());
}

absl::StatusOr<int> DriveCommand(const CommandContext& context) {
  int exit_code = 0;
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Detachment> detachment, Detachment::Fork(&exit_code));
  if (detachment == nullptr) return exit_code;
  const bool is_new = context.flags().job.empty();
  MUSTER_ASSIGN_OR_RETURN(record::HandOver job, ReadHandOver());
  if (is_new && job.record().id().empty()) return InvalidArgument("stdin: a job without an id");
  const uint64_t hand_overs = job.record().hand_overs();
  if (!is_new) job.mutable_record()->set_id(context.flags().job);
  const std::filesystem::path folder = context.jobs().JobFolder(job.record().id());
  BackgroundGuests guests;
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, InTurn(context.jobs(), job.record().id(), &JobStore::Lock));
  if (is_new) {
    MUSTER_RETURN_IF_ERROR(TakeOnJob(context, folder, &job));
  } else {
    MUSTER_ASSIGN_OR_RETURN(*job.mutable_record(), context.jobs().Load(job.record().id()));
    if (job.record().hand_overs() < hand_overs) {
      std::fprintf(stderr, "this host has only an old record of job %s\n", job.record().id().c_str());
      return kNoSuchJobExitCode;
    }
  }
  const record::JobRecord& record = job.record();
  if (record.ended_micros() != 0) return 0;
  MUSTER_RETURN_IF_ERROR(WriteNeeded(context, record));
  MUSTER_RETURN_IF_ERROR(detachment->OpenLog(folder / kControllerLog));
  RunOptions options = MakeRunOptions(context, record);
  options.follow_logs = false;
  std::optional<Replanner> replanner = Replanner::Of(context, record);
  if (replanner) {
    options.replan = [&](const std::set<std::string>& hosts, const record::JobRecord& running,
                         int cancel_fd) {
      return ReplanHere(context, *replanner, hosts, running, cancel_fd);
    };
  }
  RunDisplay display({.logs = false, .accuracy = false, .start = Now()}, record);
  GoOnInBackground(record, lock, *detachment, display, guests, &options);
  MUSTER_ASSIGN_OR_RETURN(const RunResult result,
                          RunJob(context.jobs(), record, StoredContents(context, record), options, display));
  if (result.is_left) {
    SayLeft(record);
    return 0;
  }
  display.Summarize(result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return 0;  // how the job has ended says its record
}

absl::StatusOr<int> ControlledJobCommand(const CommandContext& context, ControlledJobAction action) {
  const std::string& job = context.flags().job;
  const auto record = context.jobs().Load(job);
  if (absl::IsNotFound(record.status())) {
    std::fprintf(stderr, "there is no job %s\n", job.c_str());
    return kNoSuchJobExitCode;
  }
  MUSTER_RETURN_IF_ERROR(record.status());
  switch (action) {
    case ControlledJobAction::kAwait:
      return AwaitEnd(context.jobs(), job);
    case ControlledJobAction::kExport:
      PrintToStdout(kControllerOutput);
      MUSTER_RETURN_IF_ERROR(PackDirectoryTo(
          [](std::string_view bytes) {
            PrintToStdout(bytes);
            return StdoutStatus();
          },
          context.jobs().JobFolder(job), {.include = IsForOthers}));
      break;
    case ControlledJobAction::kRelease:
      MUSTER_RETURN_IF_ERROR(InTurn(context.jobs(), job, &JobStore::TakeOver).status());
      break;
    case ControlledJobAction::kForget: {
      MUSTER_ASSIGN_OR_RETURN(const JobLock lock, InTurn(context.jobs(), job, &JobStore::Lock));
      MUSTER_RETURN_IF_ERROR(RemoveTree(context.jobs().JobFolder(job)));
      break;
    }
  }
  return 0;
}

}  // namespace muster
