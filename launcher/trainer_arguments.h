// From a job file to the command line of muster's trainer.
#pragma once

#include <string>
#include <vector>

#include "inventory/job.h"

namespace muster {

/// What the parameters are and how they are updated.
std::vector<std::string> ParameterArguments(const Job& job);

/// All that the tasks of a role are started with, but for the cluster and who they are in it. `data`: as in
/// JobContents.
std::vector<std::string> TrainerArguments(const Job& job, ReplicaRole role, const std::string& data);

}  // namespace muster
