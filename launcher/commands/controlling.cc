#include "launcher/commands/controlling.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/escaping.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "launcher/commands/driving.h"
#include "launcher/fleet.h"
#include "launcher/host_records.h"
#include "launcher/job_history.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;  // of a file that is handed over

absl::StatusOr<std::unique_ptr<Controller>> Connect(const CommandContext& context, const record::Host& host,
                                                    std::optional<TimePoint> deadline = std::nullopt) {
  MUSTER_ASSIGN_OR_RETURN(const Content program, PackBundle("muster", context.installation().launcher));
  const Duration timeout =
      deadline ? std::min(context.connect_timeout(), *deadline - Now()) : context.connect_timeout();
  return Controller::Connect(host, program, context.connect_options({&host, 1}), timeout);
}

// That which drives the job: where the job's inventory says that it is now, or else where it was.
absl::StatusOr<std::unique_ptr<Controller>> ConnectToDriver(
    const CommandContext& context, const record::JobRecord& record,
    std::optional<TimePoint> deadline = std::nullopt) {
  const record::Host& known = record.controller();
  std::vector<record::Host> hosts;
  if (const auto inventory = context.ReadInventoryOf(record.inventory_file()); inventory.ok()) {
    hosts = AllHosts(*inventory);
  }
  if (const auto now = std::ranges::find(hosts, known.name(), &record::Host::name);
      now != hosts.end() &&
      (now->ssh_address() != known.ssh_address() || now->ssh_port() != known.ssh_port())) {
    now->set_agent_id(known.agent_id());
    if (auto there = Connect(context, *now, deadline); there.ok()) return there;
  }
  return Connect(context, known, deadline);
}

// What the inventory's discovery command needs there, as far as that says so.
absl::Status AddInventoryFiles(const CommandContext& context, const std::string& inventory,
                               record::HandOver* job) {
  const auto read = ReadInventory(inventory, context.home());
  // One that has come to be unreadable tells nothing there either, which is said there.
  if (!read.ok() || !read->discover) return absl::OkStatus();
  const std::filesystem::path folder = std::filesystem::absolute(inventory).parent_path();
  for (const std::string& path : FilesOf(*read->discover, inventory)) {
    agent::FileContent& file = *job->add_inventory_files();
    file.set_path(path);
    MUSTER_ASSIGN_OR_RETURN(*file.mutable_content(), ReadRegularFile(folder / path, kMostBytes));
    std::error_code error;
    const auto permissions = std::filesystem::status(folder / path, error).permissions();
    const bool runs = (permissions & std::filesystem::perms::owner_exec) != std::filesystem::perms::none;
    file.set_mode(runs ? 0700 : 0600);
  }
  return absl::OkStatus();
}

absl::StatusOr<record::HandOver> HandOverOf(const CommandContext& context, const std::string& inventory,
                                            const std::filesystem::path& known_hosts,
                                            const std::string& own) {
  record::HandOver job;
  job.set_host(own);
  job.set_inventory_name(std::filesystem::path(inventory).filename().string());
  MUSTER_ASSIGN_OR_RETURN(*job.mutable_inventory(), ReadFile(inventory, kMostBytes));
  MUSTER_ASSIGN_OR_RETURN(*job.mutable_known_hosts(), ReadFile(known_hosts, kMostBytes));
  MUSTER_RETURN_IF_ERROR(AddInventoryFiles(context, inventory, &job));
  return job;
}

// Hosts that the job has got there, and this machine's record of it does not know: as the inventory would
// have them here, where its discovery command may find none of them.
std::vector<record::Host> NewHosts(const CommandContext& context, const record::JobRecord& here,
                                   const record::JobRecord& there) {
  std::map<std::string, Endpoint> found;
  for (const record::Host& host : AllHosts(there)) {
    if (FindHost(here, host.name()) != nullptr) continue;
    found[host.name()] =
        Endpoint{.user = "", .address = host.ssh_address(), .port = static_cast<int>(host.ssh_port())};
  }
  if (found.empty()) return {};
  const auto inventory = ReadInventory(here.inventory_file(), context.home(), found);
  return inventory.ok() ? AllHosts(*inventory) : std::vector<record::Host>();
}

// What of a host is this machine's matter: how it is reached from here. Whoever speaks for the job there says
// nothing about that.
void KeepWays(const record::JobRecord& here, const std::vector<record::Host>& new_hosts,
              google::protobuf::RepeatedPtrField<record::Host>* hosts) {
  for (record::Host& host : *hosts) {
    const record::Host* before = FindHost(here, host.name());
    if (before == nullptr) before = Named(new_hosts, host.name(), &record::Host::name);
    const record::Host& known = before != nullptr ? *before : record::Host::default_instance();
    host.set_local(known.local());
    host.set_data_is_ssh(known.data_is_ssh());
    host.set_agent_id(known.agent_id());
    *host.mutable_identities() = known.identities();
    *host.mutable_jumps() = known.jumps();
  }
}

// Times of a job are in the clock of the machine that drives it.
void ShiftTimes(int64_t micros, record::JobRecord* job) {
  const auto shifted = [&](int64_t time) { return time == 0 ? 0 : time + micros; };
  job->set_created_micros(shifted(job->created_micros()));
  job->set_ended_micros(shifted(job->ended_micros()));
  job->set_deadline_micros(shifted(job->deadline_micros()));
}

// What the host has of the job, in a folder that was not there, with this machine's times.
absl::StatusOr<record::JobRecord> FetchInto(const std::filesystem::path& folder, const std::string& job,
                                            Controller& controller) {
  MUSTER_RETURN_IF_ERROR(RemoveTree(folder));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  MUSTER_RETURN_IF_ERROR(controller.Export(job, folder));
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, LoadJobRecord(folder / kRecordFile));
  if (record.id() != job)
    return DataLoss("asked for job %s, the host says '%s'", job, absl::Utf8SafeCEscape(record.id()));
  if (const int64_t ahead = controller.clock_offset_micros(); ahead != 0) {
    ShiftTimes(-ahead, &record);
    const std::filesystem::path path = folder / kHistoryFile;
    const auto history = ReadFile(path);
    // NotFound would say that there is no such job.
    if (!history.ok()) return Internal("%s", std::string(history.status().message()));
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(path, ShiftHistory(*history, -ahead), 0600));
  }
  return record;
}

// What a host has of a job that it was given again since, or another one was.
bool IsOld(const record::JobRecord& there, const record::JobRecord& here) {
  return there.hand_overs() < here.hand_overs();
}

// The host's files come to be this machine's, and its record that of the host, with this machine's paths.
// `is_back`: it is driven there no more. Another muster may have done the same, or more, meanwhile: then its
// record counts. NotFound: the host has none of the job, or only what is old.
absl::StatusOr<record::JobRecord> Follow(const CommandContext& context, const record::JobRecord& before,
                                         Controller& controller, bool is_back = false) {
  const std::filesystem::path folder = context.jobs().JobFolder(before.id());
  const std::filesystem::path incoming = folder / absl::StrFormat("incoming-%d", ::getpid());
  const absl::Cleanup remove = [&] { (void)RemoveTree(incoming); };
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord there, FetchInto(incoming, before.id(), controller));
  if (there.ended_micros() != 0) {
    // It may have ended while the files were read, some of them before they were all there.
    MUSTER_ASSIGN_OR_RETURN(there, FetchInto(incoming, before.id(), controller));
  }
  const std::vector<record::Host> new_hosts = NewHosts(context, before, there);
  std::optional<JobLock> deciding;
  MUSTER_ASSIGN_OR_RETURN(deciding, context.jobs().LockDecision());
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord here, context.jobs().Load(before.id()));
  if (!IsDrivenElsewhere(here)) return here;
  if (IsOld(there, here)) {
    return absl::NotFoundError(
        absl::StrFormat("%s has only an old record of job %s", here.controller().name(), here.id()));
  }
  there.set_inventory_file(here.inventory_file());
  there.set_known_hosts(here.known_hosts());
  *there.mutable_drivers() = here.drivers();
  KeepWays(here, new_hosts, there.mutable_hosts());
  KeepWays(here, new_hosts, there.mutable_spare_hosts());
  if (there.ended_micros() == 0 && !is_back) *there.mutable_controller() = here.controller();
  // The record comes last: what it says of the job's end is there then.
  for (const std::string name : kJobFiles) {
    std::error_code error;
    if (!std::filesystem::exists(incoming / name, error)) continue;
    // This machine may have driven the job before, and has said something, too.
    const std::filesystem::path path =
        folder / (name == kControllerLog ? "controller-" + here.controller().name() + ".log" : name);
    if (std::filesystem::is_directory(path, error)) MUSTER_RETURN_IF_ERROR(RemoveTree(path));
    std::filesystem::rename(incoming / name, path, error);
    if (error) return ErrnoError(error.value(), path.string());
  }
  MUSTER_RETURN_IF_ERROR(context.jobs().Save(there));
  deciding.reset();  // nobody is to wait for a host
  // What stays there takes room, and no more: it is old once the job is given away again.
  if (!there.has_controller()) (void)controller.Forget(here.id());
  return there;
}

// The job is this machine's again where the host has none of it, or only what is old, which it removes:
// whoever was to give it to the host has died before. FailedPrecondition: somebody is about to.
absl::StatusOr<record::JobRecord> KeepIfNotThere(const CommandContext& context,
                                                 const record::JobRecord& before, Controller& controller) {
  const std::string& id = before.id();
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, InTurn(context.jobs(), id, &JobStore::Lock));
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Load(id));
  if (!IsDrivenElsewhere(record)) return record;
  // Nobody gives it to a host now, but somebody may have done so a moment ago.
  const TemporaryDirectory folder;
  const absl::Status exported = controller.Export(id, folder.path());
  bool is_there = !absl::IsNotFound(exported);
  if (exported.ok()) {
    const auto there = LoadJobRecord(folder.path() / kRecordFile);
    is_there = !there.ok() || !IsOld(*there, record);
  }
  if (is_there || IsOld(before, record)) {
    return FailedPrecondition("job %s has just been given to %s", id, record.controller().name());
  }
  if (exported.ok()) (void)controller.Forget(id);
  record.clear_controller();
  // Which it may have reached.
  for (record::Host& host : *record.mutable_hosts()) host.set_unreached(false);
  MUSTER_RETURN_IF_ERROR(context.jobs().Save(record));
  return record;
}

absl::Status AskInto(const CommandContext& context, record::JobRecord* record,
                     ChosenController* kept = nullptr) {
  MUSTER_ASSIGN_OR_RETURN(*record, AskController(context, *record, kept));
  return absl::OkStatus();
}

void ComplainOf(const record::JobRecord& record, const absl::Status& asked) {
  if (asked.ok()) return;
  std::fprintf(stderr, "%s drives job %s, and what it knows could not be had: %s\n",
               record.controller().name().c_str(), record.id().c_str(), std::string(asked.message()).c_str());
}

// `muster gc` looks there, too, once the job has ended.
void NoteDriver(const record::Host& host, const Contents& contents, record::JobRecord* record) {
  auto* const drivers = record->mutable_drivers();
  auto driver = std::ranges::find(*drivers, host.name(), &record::Host::name);
  std::set<std::string> sent;
  if (driver == drivers->end()) {
    *drivers->Add() = host;
    driver = drivers->end() - 1;
  } else {
    sent.insert(driver->contents().begin(), driver->contents().end());
    *driver = host;
  }
  for (const auto& [sha256, content] : contents) sent.insert(sha256);
  driver->mutable_contents()->Assign(sent.begin(), sent.end());
}

}  // namespace

absl::StatusOr<ChosenController> ChooseController(const CommandContext& context, const Inventory& inventory,
                                                  const std::string& name) {
  const std::vector<record::Host> hosts = AllHosts(inventory);
  const auto found = std::ranges::find(hosts, name, &record::Host::name);
  if (found == hosts.end()) return InvalidArgument("--on %s: the inventory has no host '%s'", name, name);
  if (const auto local = std::ranges::find_if(hosts, &record::Host::local); local != hosts.end()) {
    return InvalidArgument(
        "--on %s: %s is this machine (`local: true`), which it has to be able to log in to: "
        "give it `ssh:`",
        name, local->name());
  }
  ChosenController chosen{.host = *found};
  MUSTER_ASSIGN_OR_RETURN(chosen.connection, Connect(context, *found));
  return chosen;
}

absl::Status CheckLogins(const CommandContext& context, const record::JobRecord& plan,
                         const std::string& running, ChosenController& controller) {
  const std::string& name = controller.host.name();
  MUSTER_ASSIGN_OR_RETURN(record::HandOver job,
                          HandOverOf(context, context.flags().inventory, context.known_hosts(), name));
  job.mutable_record()->set_version(kJobRecordVersion);
  job.mutable_record()->set_id(running);
  *job.mutable_hosts() = plan.hosts();
  const auto said = controller.connection->CheckLogins(job);
  if (said.ok() && !said->empty()) std::fprintf(stderr, "--on %s: %s\n", name.c_str(), said->c_str());
  return Annotate(said.status(), "--on " + name);
}

absl::StatusOr<ChosenController> ControllerOf(const CommandContext& context, const record::JobRecord& record,
                                              std::optional<TimePoint> deadline) {
  ChosenController controller{.host = record.controller()};
  MUSTER_ASSIGN_OR_RETURN(controller.connection, ConnectToDriver(context, record, deadline));
  return controller;
}

absl::Status HandOverJob(const CommandContext& context, const std::string& id, const Contents& contents,
                         ChosenController& controller, const GivingUp& giving_up) {
  const std::string& name = controller.host.name();
  const auto undriven = [&](const absl::Status& status) { return Undriven(status, id); };
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Load(id));
  record.set_hand_overs(record.hand_overs() + 1);
  auto job = HandOverOf(context, record.inventory_file(), record.known_hosts(), name);
  if (!job.ok()) return undriven(job.status());
  if (const absl::Status sent = controller.connection->Upload(contents, giving_up); !sent.ok()) {
    return absl::IsCancelled(sent) ? sent : undriven(sent);
  }
  *job->mutable_record() = record;
  NoteDriver(controller.host, contents, &record);
  const std::filesystem::path history = context.jobs().JobFolder(id) / kHistoryFile;
  AddToHistory(history, name + " drives it from now on");
  for (auto* const hosts :
       {job->mutable_record()->mutable_hosts(), job->mutable_record()->mutable_spare_hosts()}) {
    for (record::Host& host : *hosts) {
      if (host.name() == name) host.set_agent_id(controller.connection->agent_id());
    }
  }
  const int64_t ahead = controller.connection->clock_offset_micros();
  ShiftTimes(ahead, job->mutable_record());
  const std::string told = ReadFile(history).value_or("");
  job->set_history(ahead == 0 ? told : ShiftHistory(told, ahead));
  // Before it begins: whoever finds it so asks there.
  *record.mutable_controller() = controller.host;
  if (const absl::Status saved = context.jobs().Save(record); !saved.ok()) return undriven(saved);
  const absl::Status driven = controller.connection->Drive(*job);
  if (driven.ok()) return driven;
  if (absl::IsUnavailable(driven) || absl::IsDeadlineExceeded(driven)) {
    return Annotate(
        driven, absl::StrFormat("job %s goes on, and %s may drive it: `muster wait %s` asks", id, name, id));
  }
  record.clear_controller();
  if (const absl::Status saved = context.jobs().Save(record); !saved.ok()) return undriven(saved);
  return undriven(driven);
}

absl::StatusOr<record::JobRecord> AskController(const CommandContext& context,
                                                const record::JobRecord& record, ChosenController* kept) {
  if (!IsDrivenElsewhere(record)) return record;
  ChosenController own;
  ChosenController& asked = kept == nullptr ? own : *kept;
  const bool is_new = asked.connection == nullptr ||
                      asked.host.SerializeAsString() != record.controller().SerializeAsString();
  if (is_new) {
    MUSTER_ASSIGN_OR_RETURN(asked, ControllerOf(context, record));
  }
  auto newest = Follow(context, record, *asked.connection);
  if (absl::IsNotFound(newest.status())) return KeepIfNotThere(context, record, *asked.connection);
  if (is_new || !absl::IsUnavailable(newest.status())) return newest;
  asked = {};  // an old connection may be lost, and the host be there
  return AskController(context, record, kept);
}

absl::StatusOr<record::JobRecord> FindJob(const CommandContext& context, const std::string& id_or_name,
                                          ChosenController* kept) {
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Find(id_or_name));
  ComplainOf(record, AskInto(context, &record, kept));
  return record;
}

void AskAboutServers(const CommandContext& context, const std::string& id_or_name) {
  const auto servers = FindJob(context, id_or_name);
  if (!servers.ok() || !servers->standing()) return;
  if (const auto trained = FindTrainedBy(context.jobs(), servers->id())) {
    (void)FindJob(context, trained->id());  // which says what keeps it from asking
  }
}

std::vector<record::JobRecord> FindJobs(const CommandContext& context, std::vector<absl::Status>* problems) {
  std::vector<record::JobRecord> records = context.jobs().List(problems);
  std::vector<record::JobRecord*> elsewhere;
  for (record::JobRecord& record : records) {
    if (IsDrivenElsewhere(record)) elsewhere.push_back(&record);
  }
  const std::vector<absl::Status> asked = OnEachHost(
      elsewhere.size(), context.flags().parallel, [&](size_t i) { return AskInto(context, elsewhere[i]); });
  for (size_t i = 0; i < elsewhere.size(); ++i) ComplainOf(*elsewhere[i], asked[i]);
  return records;
}

absl::Status Undriven(const absl::Status& failure, const std::string& job) {
  return Annotate(failure,
                  absl::StrFormat("job %s goes on, and nobody drives it: `muster wait %s` does", job, job));
}

absl::StatusOr<JobLock> TakeBack(const CommandContext& context, record::JobRecord* record) {
  if (!IsDrivenElsewhere(*record)) return context.jobs().LockDecision();
  const auto controller = ConnectToDriver(context, *record);
  if (!controller.ok()) {
    return Annotate(
        controller.status(),
        absl::StrFormat("%s drives job %s, and goes on with it (`muster stop %s` ends it without)",
                        record->controller().name(), record->id(), record->id()));
  }
  // Who waits for the job has it driven there again where nobody does; not while this is held.
  std::optional<JobLock> lock;
  MUSTER_ASSIGN_OR_RETURN(lock, InTurn(context.jobs(), record->id(), &JobStore::Lock));
  absl::Status back = (*controller)->Release(record->id());
  if (back.ok()) {
    auto left = Follow(context, *record, **controller, /*is_back=*/true);
    back = left.status();
    if (left.ok()) *record = *std::move(left);
  }
  if (absl::IsNotFound(back)) {
    lock.reset();
    MUSTER_ASSIGN_OR_RETURN(*record, KeepIfNotThere(context, *record, **controller));
  } else if (!back.ok()) {
    return back;
  }
  return context.jobs().LockDecision();
}

}  // namespace muster
