// What the keys of a job file ask of each other. For the .cc files of this folder.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/job.h"
#include "inventory/yaml_tree.h"

namespace muster {

inline constexpr char kServersUseNoGpus[] = "\"gpus\": servers compute on their processors";

/// What the built-in trainer can train.
struct TrainerModel {
  std::string name;
  bool has_hidden_layers;
  std::vector<std::string> variants;
  std::string without_hidden;  // a variant of a model that has hidden layers otherwise
  bool takes_images = true;
};

const std::vector<TrainerModel>& TrainerModels();

/// `job`: what stands in `root`, with `model`, null where it names none. Fills in what follows from the rest.
/// `servers_stand`: it uses servers of `muster up`.
absl::Status CompleteJob(const YamlNode& root, const TrainerModel* model, bool servers_stand, Job* job);

}  // namespace muster
