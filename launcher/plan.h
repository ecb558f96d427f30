// From a job file and an inventory to what each host has to run: the record of the job, before anything was
// contacted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/inventory.h"
#include "inventory/job.h"
#include "launcher/contents.h"
#include "launcher/reconciler/messages.h"
#include "proto/agent.pb.h"
#include "proto/job_record.pb.h"

namespace muster {

struct PlanInputs {
  Installation installation;
  // What `data: auto` means: this folder (MUSTER_DATA), else this one if it holds the set, else the synthetic
  // set. Empty: none.
  std::string data_folder;
  std::filesystem::path data_cache;
};

struct JobPlan {
  record::JobRecord record;  // without id, times and authority
  Contents contents;
  std::string data;  // for people: where the data comes from
};

/// Places the tasks, packs programs and data, and spells out what each task is started with. InvalidArgument:
/// as PlaceTasks does, NCCL between hosts whose network is not said to be trusted, files that are missing, a
/// data folder without the model's set, addresses that cannot be resolved.
absl::StatusOr<JobPlan> MakePlan(const Job& job, const Inventory& inventory, const PlanInputs& inputs);

/// Gives the plan a new identity: an id and a certificate authority.
absl::Status BeginJob(record::JobRecord* record);

/// Gives the plan the identity and the cluster of a job that may be running, so that only what differs is
/// started again. If it was being ended, what is left of it is stopped first, and all is started again. Keeps
/// the hosts on which tasks may still run.
void ContinueJob(const record::JobRecord& running, record::JobRecord* record);

/// The job uses it from now on, if it was a spare one.
void UseSpareHost(const std::string& name, record::JobRecord* record);

/// Leaves the tasks of the plan that run on a spare host, because their own was lost, where they are.
void KeepPlacement(const record::JobRecord& running, record::JobRecord* plan);

/// The hosts of the inventory as the record keeps them, without anything to run: for `check`.
std::vector<record::Host> AllHosts(const Inventory& inventory);

/// What the reconciler is asked for.
reconcile::Desired DesiredOf(const record::JobRecord& record);

/// The request that starts a task, now that the cluster is known: with its flags, environment and a fresh
/// certificate.
absl::StatusOr<agent::StartTaskRequest> MakeStartRequest(const record::JobRecord& record,
                                                         const reconcile::StartTask& start);

}  // namespace muster
