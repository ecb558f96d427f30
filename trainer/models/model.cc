#include "trainer/models/model.h"

#include "base/nearest.h"
#include "trainer/models/mnist.h"

namespace muster {
namespace {

struct ModelEntry {
  const char* name;
  absl::StatusOr<std::unique_ptr<Model>> (*make)(const ModelConfig& config, int64_t largest_batch);
  TrainDefaults defaults;
};

constexpr ModelEntry kModels[] = {
    {.name = "mnist_softmax",
     .make = MakeMnistSoftmax,
     .defaults = {.optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.5f},
                  .batch_size = 100,
                  .train_steps = 1000}},
    {.name = "mnist_mlp",
     .make = MakeMnistMlp,
     .defaults = {.optimizer = {.kind = OptimizerKind::kAdam, .learning_rate = 0.001f},
                  .batch_size = 100,
                  .train_steps = 5000}},
};

absl::StatusOr<const ModelEntry*> Find(const ModelConfig& config) {
  for (const ModelEntry& entry : kModels) {
    if (config.model != entry.name) continue;
    if (!config.variant.empty()) {
      return InvalidArgument("%s has no variants, so none called '%s'", config.model, config.variant);
    }
    return &entry;
  }
  const std::vector<std::string> names = ModelNames();
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const std::string nearest = NearestWord(config.model, names);
  return InvalidArgument("no model '%s'%s; there are: %s", config.model,
                         nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest), list);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config, int64_t largest_batch) {
  MUSTER_ASSIGN_OR_RETURN(const ModelEntry* entry, Find(config));
  return entry->make(config, largest_batch);
}

absl::StatusOr<TrainDefaults> DefaultsFor(const ModelConfig& config) {
  MUSTER_ASSIGN_OR_RETURN(const ModelEntry* entry, Find(config));
  return entry->defaults;
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelEntry& entry : kModels) names.push_back(entry.name);
  return names;
}

}  // namespace muster
