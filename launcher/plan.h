// From a job file and an inventory to what each host has to run: the record of the job, before anything was
// contacted.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "inventory/job.h"
#include "inventory/placement.h"
#include "launcher/contents.h"
#include "proto/job_record.pb.h"

namespace muster {

struct PlanInputs {
  Installation installation;
  // What `data: auto` means: this folder (MUSTER_DATA), else this one if it holds the set, else the synthetic
  // set. Empty: none.
  std::string data_folder;
  std::filesystem::path data_cache;
  // The job of this name that has started something and not ended: its tasks stay where they are. Null: there
  // is none.
  const record::JobRecord* running = nullptr;
  // The standing servers that train it. Null: it has its own, or none.
  const record::JobRecord* servers = nullptr;
  // Its programs and data stay those of `running`, whatever there is here now: the plan has no `contents`.
  bool keeps_contents = false;
};

struct JobPlan {
  record::JobRecord record;  // without id, times and authority
  Contents contents;
  std::string data;  // for people: where the data comes from; empty where the contents are kept
};

/// Places the tasks, packs programs and data, and spells out what each task is started with. InvalidArgument:
/// as PlaceTasks does, NCCL between hosts whose network is not said to be trusted, files that are missing, a
/// data folder without the model's set, addresses that cannot be resolved, more workers than the batch of the
/// running ones has samples.
absl::StatusOr<JobPlan> MakePlan(const Job& job, const Inventory& inventory, const PlanInputs& inputs);

/// As that of the job alone; `servers`: the standing ones that train it, or null.
std::string WhyNotElastic(const Job& job, const record::JobRecord* servers);

/// The job that a record was planned from. FailedPrecondition: the record does not say which.
absl::StatusOr<Job> JobOf(const record::JobRecord& record);

/// Where the tasks of a job that runs are; nowhere before its first generation.
std::map<std::string, TaskPlace> TaskPlacesOf(const record::JobRecord& running);

}  // namespace muster
