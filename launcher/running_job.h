// The record of a job once it is more than a plan: its identity, what a running one hands on to the next
// plan, what the reconciler is asked for, and what a task is started with.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/status.h"
#include "launcher/cluster_texts.h"
#include "launcher/reconciler/messages.h"
#include "proto/agent.pb.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Of each task that follows its cluster, in its folder.
inline constexpr char kClusterFile[] = "cluster.json";

/// Of messages, the one with this name; null: there is none.
template <typename Messages, typename Message>
const Message* Named(const Messages& messages, const std::string& name,
                     const std::string& (Message::*name_of)() const) {
  const auto found = std::find_if(messages.begin(), messages.end(),
                                  [&](const Message& message) { return (message.*name_of)() == name; });
  return found == messages.end() ? nullptr : &*found;
}

/// Of the hosts that the job uses or may use; null: there is none of this name.
const record::Host* FindHost(const record::JobRecord& record, const std::string& name);

/// Gives the plan a new identity: an id and a certificate authority, if it has not that of its servers.
absl::Status BeginJob(record::JobRecord* record);

/// Standing servers train the job from now on, where they are now.
void UseServers(const record::JobRecord& servers, record::JobRecord* record);

/// "host:port"
std::string AddressOfMember(const record::ClusterRecord::Member& member);

/// Whether the plan starts each task as it was started, where it was.
bool HasSameTasks(const record::JobRecord& running, const record::JobRecord& plan);

/// Whether standing servers are all there.
bool AreThere(const record::JobRecord& servers);

/// Where the job's tasks are, by the host's name; nowhere before its first generation.
std::map<std::string, std::string> PlacesOf(const record::JobRecord& running);

/// Whether the task is started with an argument that begins so.
bool HasArgument(const record::Task& task, const std::string& begin);

/// "ps:0, worker:0, worker:1": as many as a message can hold.
std::string NamesOfTasks(const record::JobRecord& record);

/// Whether the task has, as far as the record says: it is written within a second.
bool HasSucceeded(const record::JobRecord& running, const std::string& task);

/// How many tasks of the role worker it is to have.
int WorkersOf(const record::JobRecord& running);

/// Whether the cluster of a job that runs goes on with the tasks of the plan: those that both have are in the
/// same place, and others are only workers that join and leave an elastic one. Else it becomes another
/// cluster, for which all tasks are started.
bool GoesOn(const record::JobRecord& running, const record::JobRecord& plan);

/// Of the training of a job that runs: how many workers it began with, and the fewest that it has had since.
int FirstWorkers(const record::JobRecord& running);
int FewestWorkers(const record::JobRecord& running);

/// Gives the plan the identity and the cluster of a job that may be running, so that only what differs is
/// started again. If it was being ended, what is left of it is stopped first, and all is started again. Keeps
/// the hosts on which tasks may still run.
void ContinueJob(const record::JobRecord& running, record::JobRecord* record);

/// These tasks are stopped and started again, each as it is, while the others go on.
void RestartTasks(const std::set<std::string>& tasks, record::JobRecord* record);

/// All of them are, also those that have succeeded, and none is started before all are stopped.
void RestartAllTasks(record::JobRecord* record);

/// The job gets what the plan has beyond it: tasks, with their hosts, and spare hosts. All else stays.
void GrowJob(const record::JobRecord& plan, record::JobRecord* record);

/// The job uses it from now on, if it was a spare one, which nothing was asked of.
void UseSpareHost(const std::string& name, record::JobRecord* record);

/// What the reconciler is asked for.
reconcile::Desired DesiredOf(const record::JobRecord& record);

/// For the start of a task to come to its host and be answered, while all the others come to theirs: what
/// they bring goes through one link of this machine, which has a megabit a second at least.
Duration StartTimeout(const record::JobRecord& record);

/// The request that starts a task, now that the cluster is known: with its flags, environment and a fresh
/// certificate. `texts`, which may be those of the last start, are those of this one then.
absl::StatusOr<agent::StartTaskRequest> MakeStartRequest(const record::JobRecord& record,
                                                         const reconcile::StartTask& start,
                                                         ClusterTexts& texts);
absl::StatusOr<agent::StartTaskRequest> MakeStartRequest(const record::JobRecord& record,
                                                         const reconcile::StartTask& start);

}  // namespace muster
