#include "trainer/models/model.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/nearest.h"
#include "trainer/models/mnist.h"
#include "trainer/models/wide_deep.h"

namespace muster {
namespace {

struct ModelEntry {
  const char* name;
  absl::StatusOr<ModelRecipe> (*make)(const ModelConfig& config);
  std::vector<std::string> variants;  // the first is the default
};

const std::vector<ModelEntry>& Models() {
  static const std::vector<ModelEntry> kModels = {
      {.name = "mnist_softmax", .make = MnistSoftmax},
      {.name = "mnist_mlp", .make = MnistMlp},
      {.name = "mnist_cnn", .make = MnistCnn, .variants = {"lenet", "deep"}},
      {.name = "wide_deep",
       .make = WideDeep,
       .variants = {"tutorial", "dist_test", "minibatch", "wide_only"}},
  };
  return kModels;
}

absl::StatusOr<std::string> ChooseVariant(const ModelEntry& entry, const std::string& variant) {
  if (variant.empty()) return entry.variants.empty() ? "" : entry.variants.front();
  if (entry.variants.empty()) {
    return InvalidArgument("%s has no variants, so none called '%s'", entry.name, variant);
  }
  if (std::find(entry.variants.begin(), entry.variants.end(), variant) != entry.variants.end())
    return variant;
  const std::string nearest = NearestWord(variant, entry.variants);
  return InvalidArgument("%s has no variant '%s'%s; there are: %s", entry.name, variant,
                         nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest),
                         absl::StrJoin(entry.variants, ", "));
}

// Wherever they come from: a flag, or the metadata of a file.
absl::Status CheckHidden(const std::vector<int64_t>& hidden) {
  constexpr size_t kMostLayers = 1000;
  constexpr int64_t kLargestLayer = 65536;
  if (hidden.size() > kMostLayers) {
    return InvalidArgument("hidden: %d layers; at most %d", hidden.size(), kMostLayers);
  }
  for (const int64_t size : hidden) {
    if (size >= 1 && size <= kLargestLayer) continue;
    return InvalidArgument("hidden: a layer of size %d; from 1 to %d", size, kLargestLayer);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelRecipe> FindModel(const ModelConfig& config) {
  for (const ModelEntry& entry : Models()) {
    if (config.model != entry.name) continue;
    ModelConfig chosen = config;
    MUSTER_ASSIGN_OR_RETURN(chosen.variant, ChooseVariant(entry, config.variant));
    MUSTER_RETURN_IF_ERROR(CheckHidden(config.hidden));
    MUSTER_ASSIGN_OR_RETURN(ModelRecipe recipe, entry.make(chosen));
    recipe.variant = chosen.variant;
    return recipe;
  }
  const std::vector<std::string> names = ModelNames();
  const std::string nearest = NearestWord(config.model, names);
  return InvalidArgument("no model '%s'%s; there are: %s", config.model,
                         nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest),
                         absl::StrJoin(names, ", "));
}

std::string Describe(const ModelConfig& config) {
  std::string text = config.model;
  if (!config.variant.empty()) text += " " + config.variant;
  if (!config.hidden.empty()) text += " with hidden layers " + absl::StrJoin(config.hidden, ",");
  return text;
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelEntry& entry : Models()) names.push_back(entry.name);
  return names;
}

std::vector<std::string> ModelVariants(const std::string& model) {
  for (const ModelEntry& entry : Models()) {
    if (model == entry.name) return entry.variants;
  }
  MUSTER_CHECK(false, "no such model");
}

}  // namespace muster
