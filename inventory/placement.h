// Which task runs on which host.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/inventory.h"
#include "inventory/job.h"

namespace muster {

struct PlacedTask {
  ReplicaRole role = ReplicaRole::kWorker;
  int index = 0;          // within its role
  int host_index = 0;     // in Inventory::hosts
  std::vector<int> gpus;  // of the host, ascending, as many as its role wants

  /// "ps:0"
  std::string Name() const;
  friend bool operator==(const PlacedTask&, const PlacedTask&) = default;
};

/// Where a task is already.
struct TaskPlace {
  std::string host;       // its name
  std::vector<int> gpus;  // of the host, ascending
};

/// Gives each task of the job a host that has the label its role asks for (`on`; any host without one), in
/// the order ps, chief, worker, each by index. Those of `running`, by the task's name, stay on their hosts,
/// and keep their GPUs, if these may be theirs. Any other task goes to the host with the fewest tasks of this
/// job so far for each of its slots, of several to the first in the inventory. One that wants GPUs goes to
/// the host where it takes least of the room that roles after it have, of those to the one with the largest
/// part of its GPUs free, and gets the first of them; where some do, the others go to hosts without GPUs, if
/// such hosts suit them. Roles that fewer hosts suit choose first, so that a task which could run anywhere
/// leaves them room; of several, those with more GPUs; before all of them a chief with GPUs. `servers`: hosts
/// by name, once for each task that is there already, and counts.
///
/// A pure function: the same files give the same placement. Where one role has GPUs, or a chief and another
/// role, tasks for which there are enough are placed; where more do, they are refused in rare cases all the
/// same. Of hosts whose `gpus` are unset nobody knows what they have: tasks stay there, and others that want
/// GPUs do not go there. InvalidArgument, with the place of `on`, where no host has the label; with that of
/// `gpus`, where there are fewer than are wanted, or Unavailable, if a host that suits might have them.
/// Cost: tasks times hosts.
absl::StatusOr<std::vector<PlacedTask>> PlaceTasks(const Job& job, const Inventory& inventory,
                                                   const std::map<std::string, TaskPlace>& running = {},
                                                   const std::vector<std::string>& servers = {});

/// For how many more workers hosts that suit them have room: slots, or as many GPUs as each wants, that no
/// task of `running` has.
int RoomForWorkers(const Job& job, const Inventory& inventory,
                   const std::map<std::string, TaskPlace>& running);

/// The hosts, as indices in Inventory::hosts, on which tasks of a role may run, in the order of the
/// inventory.
std::vector<int> SuitableHosts(const ReplicaSpec& replica, const Inventory& inventory);

/// Likewise, of any role that the job has.
std::vector<int> SuitableHosts(const Job& job, const Inventory& inventory);

}  // namespace muster
