#include "launcher/running_job.h"

#include <map>
#include <utility>
#include <vector>

#include "base/certificates.h"
#include "base/clock.h"
#include "base/random.h"
#include "cluster/cluster_spec.h"
#include "launcher/job_store.h"

namespace muster {
namespace {

bool IsWorker(const std::string& task) { return task.starts_with(RoleName(Role::kWorker) + ":"); }
bool IsServer(const record::Task& task) { return task.id().starts_with(RoleName(Role::kPs) + ":"); }

// Of those that both have.
bool HasChangedTasks(const record::JobRecord& running, const record::JobRecord& plan) {
  return std::ranges::any_of(plan.tasks(), [&](const record::Task& task) {
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    return before != nullptr && before->spec_hash() != task.spec_hash();
  });
}

// Its agent takes another one for another task to be run in the same place.
std::string SpecHashOf(const record::Task& task) {
  if (task.restarts_asked() == 0) return task.spec_hash();
  return absl::StrFormat("%s+%d", task.spec_hash(), task.restarts_asked());
}

}  // namespace

const record::Host* FindHost(const record::JobRecord& record, const std::string& name) {
  const record::Host* const used = Named(record.hosts(), name, &record::Host::name);
  return used != nullptr ? used : Named(record.spare_hosts(), name, &record::Host::name);
}

absl::Status BeginJob(record::JobRecord* record) {
  record->set_id(record->name() + "-" + RandomName(6));
  record->set_created_micros(WallTimeMicros());
  if (record->has_servers()) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const Certificate authority, MakeAuthority("muster job " + record->id()));
  record->set_authority_certificate_pem(authority.certificate_pem);
  record->set_authority_key_pem(authority.key_pem);
  return absl::OkStatus();
}

void UseServers(const record::JobRecord& servers, record::JobRecord* record) {
  record::StandingServers* const used = record->mutable_servers();
  used->set_job(servers.id());
  *used->mutable_members() = servers.cluster().members();
  record->set_authority_certificate_pem(servers.authority_certificate_pem());
  record->set_authority_key_pem(servers.authority_key_pem());
}

std::string AddressOfMember(const record::ClusterRecord::Member& member) {
  return reconcile::Address({member.task(), member.host(), member.data_address(), member.port()});
}

bool HasSameTasks(const record::JobRecord& running, const record::JobRecord& plan) {
  if (running.servers().job() != plan.servers().job() || running.tasks_size() != plan.tasks_size()) {
    return false;
  }
  return std::ranges::all_of(plan.tasks(), [&](const record::Task& task) {
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    return before != nullptr && before->spec_hash() == task.spec_hash() && before->host() == task.host();
  });
}

bool AreThere(const record::JobRecord& servers) {
  return servers.ended_micros() == 0 && servers.cluster().fixed() && !servers.cluster().has_ending();
}

std::map<std::string, std::string> PlacesOf(const record::JobRecord& running) {
  std::map<std::string, std::string> places;
  if (running.cluster().generation() == 0) return places;
  for (const record::Task& task : running.tasks()) places[task.id()] = task.host();
  // Also of those that are to leave it, and have not yet.
  for (const auto& member : running.cluster().members()) places[member.task()] = member.host();
  return places;
}

bool HasArgument(const record::Task& task, const std::string& begin) {
  return std::ranges::any_of(task.start().argv(),
                             [&](const std::string& argument) { return argument.starts_with(begin); });
}

std::string NamesOfTasks(const record::JobRecord& record) {
  constexpr int kMostNames = 16;
  std::string names;
  for (int i = 0; i < std::min(record.tasks_size(), kMostNames); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", record.tasks(i).id());
  }
  const int more = record.tasks_size() - kMostNames;
  if (more > 0) absl::StrAppend(&names, " and ", more, " more");
  return names;
}

bool HasSucceeded(const record::JobRecord& running, const std::string& task) {
  return Named(running.cluster().successes(), task, &record::ClusterRecord::Success::task) != nullptr;
}

int WorkersOf(const record::JobRecord& running) {
  return static_cast<int>(
      std::ranges::count_if(running.tasks(), [](const record::Task& task) { return IsWorker(task.id()); }));
}

bool GoesOn(const record::JobRecord& running, const record::JobRecord& plan) {
  const bool is_in_force = running.cluster().fixed() && !running.cluster().has_ending();
  if (!is_in_force) return false;
  // Standing servers begin anew for all or for none of the tasks that stay.
  const bool has_other_servers = running.servers().job() != plan.servers().job();
  if (plan.has_servers() && (has_other_servers || HasChangedTasks(running, plan))) return false;
  // Those that the other has not, or has elsewhere.
  using Places = std::map<std::string, std::string>;
  const auto has_others = [&](const Places& those, const Places& others) {
    return std::ranges::any_of(those, [&](const auto& place) {
      const auto other = others.find(place.first);
      if (other != others.end()) return other->second != place.second;
      return !plan.elastic() || !IsWorker(place.first);
    });
  };
  Places before = PlacesOf(running), now;
  for (const record::Task& task : plan.tasks()) now[task.id()] = task.host();
  const bool has_any =
      std::ranges::any_of(now, [&](const auto& place) { return before.contains(place.first); });
  return has_any && !has_others(before, now) && !has_others(now, before);
}

int FirstWorkers(const record::JobRecord& running) {
  if (running.first_workers() > 0) return running.first_workers();
  // Of before they could become more or fewer.
  return static_cast<int>(std::ranges::count_if(
      running.tasks(), [](const record::Task& task) { return task.is_chief() || IsWorker(task.id()); }));
}

int FewestWorkers(const record::JobRecord& running) {
  return running.fewest_workers() > 0 ? running.fewest_workers() : FirstWorkers(running);
}

void ContinueJob(const record::JobRecord& running, record::JobRecord* record) {
  record->set_id(running.id());
  record->set_created_micros(running.created_micros());
  record->set_deadline_micros(running.deadline_micros());
  record->set_known_hosts(running.known_hosts());
  record->set_lost_timeout_ms(running.lost_timeout_ms());
  record->set_hand_overs(running.hand_overs());
  *record->mutable_drivers() = running.drivers();
  record->clear_controller();  // this machine drives it now
  if (!record->has_servers()) {
    record->set_authority_certificate_pem(running.authority_certificate_pem());
    record->set_authority_key_pem(running.authority_key_pem());
  }
  *record->mutable_cluster() = running.cluster().has_ending()
                                   ? ToProto(reconcile::NextRun(FromProto(running.cluster())))
                                   : running.cluster();
  for (record::Task& task : *record->mutable_tasks()) {
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    task.set_restarts_asked(before == nullptr ? 0 : before->restarts_asked());
  }
  // Before its first generation a job has started nothing anywhere. A host that only a wrong inventory gave
  // it, and that nobody can reach, must not stay with it for ever.
  if (running.cluster().generation() == 0) return;
  if (running.servers().job() == record->servers().job() && record->has_servers()) {
    record->mutable_servers()->set_number(running.servers().number());
  }
  if (!GoesOn(running, *record)) {
    record->mutable_cluster()->set_fixed(false);
  } else if (record->has_servers()) {
    // As its tasks know them. Who drives the job sees where they are now, and tells them.
    *record->mutable_servers()->mutable_members() = running.servers().members();
  }
  // Tasks may still run on hosts that are used no more: they have to be reached to be stopped.
  for (const record::Host& old : running.hosts()) {
    UseSpareHost(old.name(), record);
    if (Named(record->hosts(), old.name(), &record::Host::name) == nullptr) *record->add_hosts() = old;
  }
  for (record::Host& host : *record->mutable_hosts()) {
    const record::Host* const old = Named(running.hosts(), host.name(), &record::Host::name);
    if (old != nullptr) {
      host.set_machine_id(old->machine_id());
      host.set_reached(old->reached());
    }
    host.set_unreached(old == nullptr || old->unreached());
  }
}

void RestartTasks(const std::set<std::string>& tasks, record::JobRecord* record) {
  for (record::Task& task : *record->mutable_tasks()) {
    if (tasks.contains(task.id())) task.set_restarts_asked(task.restarts_asked() + 1);
  }
}

void RestartAllTasks(record::JobRecord* record) {
  record->mutable_cluster()->set_fixed(false);
  record->clear_first_workers();
  const int workers = FirstWorkers(*record);
  record->set_first_workers(workers);
  record->set_fewest_workers(workers);
}

void GrowJob(const record::JobRecord& plan, record::JobRecord* record) {
  for (const auto& hosts : {plan.hosts(), plan.spare_hosts()}) {
    for (const record::Host& host : hosts) {
      if (FindHost(*record, host.name()) == nullptr) *record->add_spare_hosts() = host;
    }
  }
  for (const record::Task& planned : plan.tasks()) {
    const auto known = std::ranges::find(*record->mutable_tasks(), planned.id(), &record::Task::id);
    if (known == record->mutable_tasks()->end()) {
      *record->add_tasks() = planned;
      UseSpareHost(planned.host(), record);
      continue;
    }
    for (const std::string& spare : planned.spares()) {
      if (std::ranges::find(known->spares(), spare) == known->spares().end()) known->add_spares(spare);
    }
  }
}

void UseSpareHost(const std::string& name, record::JobRecord* record) {
  auto* spares = record->mutable_spare_hosts();
  const record::Host* const spare = Named(*spares, name, &record::Host::name);
  if (spare == nullptr) return;
  *record->add_hosts() = *spare;
  record->mutable_hosts()->rbegin()->set_unreached(true);
  spares->erase(std::remove_if(spares->begin(), spares->end(),
                               [&](const record::Host& host) { return host.name() == name; }),
                spares->end());
}

reconcile::Desired DesiredOf(const record::JobRecord& record) {
  reconcile::Desired desired;
  for (const auto& hosts : {record.hosts(), record.spare_hosts()}) {
    for (const record::Host& host : hosts) {
      desired.hosts.push_back({.id = host.name(),
                               .data_address = host.data_address(),
                               .contents = {host.contents().begin(), host.contents().end()},
                               .unreached = host.unreached()});
    }
  }
  // Servers end once all workers have told them that they are done, workers without servers once the chief
  // has said that all is.
  const bool has_servers = record.has_servers() || std::ranges::any_of(record.tasks(), IsServer);
  for (const record::Task& task : record.tasks()) {
    const bool ends_last =
        task.follows_cluster() && task.ends_with_others() && (IsServer(task) || !has_servers);
    const bool needs_its_folder =
        IsServer(task) && task.follows_cluster() && HasArgument(task, "--checkpoint_dir=") &&
        !HasArgument(task, "--checkpoint_buddy") && !HasArgument(task, "--durability=replicated");
    const bool is_restarted = task.start().restart() != agent::RESTART_POLICY_NEVER;
    desired.tasks.push_back({.id = task.id(),
                             .host = task.host(),
                             .spec_hash = SpecHashOf(task),
                             .needs_port = true,  // every member of a ClusterSpec has an address
                             .ends_with_others = task.ends_with_others(),
                             .follows_cluster = task.follows_cluster(),
                             .can_be_missing = task.can_be_missing(),
                             .can_fail = task.can_fail(),
                             .ends_last = ends_last,
                             .needs_its_folder = needs_its_folder,
                             .spares = {task.spares().begin(), task.spares().end()},
                             .max_restarts = is_restarted ? task.start().max_restarts() : 0});
  }
  desired.max_missing = record.max_missing();
  desired.elastic = record.elastic();
  return desired;
}

Duration StartTimeout(const record::JobRecord& record) {
  constexpr uint64_t kBytesPerSecond = 1'000'000 / 8;
  uint64_t bytes = 0;
  for (const agent::FileContent& file : record.program_files()) bytes += file.content().size();
  return std::chrono::seconds(10 + bytes * static_cast<uint64_t>(record.tasks_size()) / kBytesPerSecond);
}

absl::StatusOr<agent::StartTaskRequest> MakeStartRequest(const record::JobRecord& record,
                                                         const reconcile::StartTask& start) {
  ClusterTexts texts;
  return MakeStartRequest(record, start, texts);
}

absl::StatusOr<agent::StartTaskRequest> MakeStartRequest(const record::JobRecord& record,
                                                         const reconcile::StartTask& start,
                                                         ClusterTexts& texts) {
  const record::Task* const task = Named(record.tasks(), start.task, &record::Task::id);
  MUSTER_CHECK(task != nullptr, start.task);
  MUSTER_RETURN_IF_ERROR(texts.Follow(record, start));
  const ClusterSpec& cluster = texts.cluster();
  MUSTER_ASSIGN_OR_RETURN(const TaskId id, ParseTaskId(start.task));

  agent::StartTaskRequest request = task->start();
  request.set_job(record.id());
  request.set_generation(start.generation);
  request.set_base_generation(start.base_generation);
  request.set_follows_cluster(start.follows_cluster);
  request.set_spec_hash(start.spec_hash);
  request.set_minimum_incarnation(start.minimum_incarnation);
  request.set_restarts(start.restarts);
  for (const agent::FileContent& file : record.program_files()) *request.add_files() = file;
  if (task->tensorflow_flags()) {
    for (const std::string& flag : texts.FlagsOf(id)) request.add_argv(flag);
  }
  if (record.has_servers()) {
    request.add_argv(absl::StrFormat("--job_number=%d", record.servers().number() + start.base_generation));
  }
  if (record.elastic() && id.role != Role::kPs) {
    request.add_argv(absl::StrFormat("--first_workers=%d", FirstWorkers(record)));
    if (record.min_workers() > 0) request.add_argv(absl::StrFormat("--min_workers=%d", record.min_workers()));
  }
  if (task->rank_environment()) {
    request.add_environment("TF_CONFIG=" + texts.TfConfigOf(id));
    const std::string& master = cluster.chief.empty() ? cluster.workers[0] : cluster.chief[0];
    request.add_environment("MASTER_ADDR=" + HostOfAddress(master));
    request.add_environment("MASTER_PORT=" + master.substr(master.rfind(':') + 1));
    request.add_environment(absl::StrFormat("WORLD_SIZE=%d", cluster.rank_count()));
    if (id.role != Role::kPs) {
      request.add_environment(absl::StrFormat("RANK=%d", RankOf(cluster, id)));
      request.add_environment(absl::StrFormat("LOCAL_RANK=%d", texts.LocalRankOf(start.task)));
    }
  }
  if (task->tls()) {
    const Certificate authority{record.authority_certificate_pem(), record.authority_key_pem()};
    MUSTER_ASSIGN_OR_RETURN(
        const Certificate certificate,
        IssueCertificate(authority, absl::StrFormat("%s-%d", RoleName(id.role), id.index)));
    const std::pair<const char*, const std::string*> files[] = {
        {"tls/ca.pem", &record.authority_certificate_pem()},
        {"tls/cert.pem", &certificate.certificate_pem},
        {"tls/key.pem", &certificate.key_pem}};
    for (const auto& [path, content] : files) {
      agent::FileContent* file = request.add_files();
      file->set_path(path);
      file->set_content(*content);
      file->set_mode(0600);
    }
  }
  if (start.follows_cluster) {
    agent::FileContent* file = request.add_files();
    file->set_path(kClusterFile);
    file->set_content(texts.file());
  }
  return request;
}

}  // namespace muster
