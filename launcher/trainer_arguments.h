// From a job file to the command line of muster's trainer.
#pragma once

#include <string>
#include <vector>

#include "inventory/job.h"

namespace muster {

/// What the parameters are and how they are updated.
std::vector<std::string> ParameterArguments(const Job& job);

/// What the tasks of a role do, wherever they are: how updates are made and, of those that train, what is
/// trained. `data`: a folder there, or "synthetic"; empty: the trainer's own choice. Checkpoints are below
/// `folder`.
std::vector<std::string> TrainingArguments(const Job& job, ReplicaRole role, const std::string& data,
                                           const std::string& folder);

/// All that the tasks of a role are started with by an agent, but for the cluster and who they are in it.
/// `data`: as in JobContents.
std::vector<std::string> TrainerArguments(const Job& job, ReplicaRole role, const std::string& data);

}  // namespace muster
