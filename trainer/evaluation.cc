#include "trainer/evaluation.h"

#include <absl/strings/str_join.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/stdout.h"
#include "kernels/dense.h"
#include "trainer/device_choice.h"
#include "trainer/load_data.h"
#include "trainer/models/evaluate.h"
#include "trainer/result_record.h"
#include "trainer/saved_model.h"

namespace muster {
namespace {

std::string Describe(const ModelConfig& config) {
  std::string text = config.model;
  if (!config.variant.empty()) text += " " + config.variant;
  if (!config.hidden.empty()) text += " with hidden layers " + absl::StrJoin(config.hidden, ",");
  return text;
}

// A flag that names what the file has anyway, its defaults included, is fine.
absl::Status CheckModelFlags(const EvaluationOptions& options, const SavedModel& saved) {
  const ModelConfig& flags = options.model;
  const ModelConfig& config = saved.info.config;
  const auto contradiction = [&](const std::string& flag) {
    return InvalidArgument("%s: %s holds %s", flag, options.file, Describe(config));
  };
  if (!flags.model.empty() && flags.model != config.model) return contradiction("--model=" + flags.model);
  if (flags.variant.empty() && flags.hidden.empty()) return absl::OkStatus();
  ModelConfig merged = config;
  std::vector<std::string> given;
  if (!flags.variant.empty()) {
    merged.variant = flags.variant;
    given.push_back("--variant=" + flags.variant);
  }
  if (!flags.hidden.empty()) {
    merged.hidden = flags.hidden;
    given.push_back("--hidden=" + absl::StrJoin(flags.hidden, ","));
  }
  const absl::Status contradicted = contradiction(absl::StrJoin(given, " "));
  const auto recipe = FindModel(merged);
  if (!recipe.ok()) return Annotate(recipe.status(), std::string(contradicted.message()));
  const auto plan = PlanModel(recipe->spec);
  if (!plan.ok()) return Annotate(plan.status(), std::string(contradicted.message()));
  return plan->layout.Hash() == saved.plan.layout.Hash() ? absl::OkStatus() : contradicted;
}

// Of a data set that the file was not trained with, the accuracy would be a surprise: that has to be asked
// for.
absl::StatusOr<std::string> ChooseData(const EvaluationOptions& options, const SavedModelInfo& info) {
  if (options.data_dir) return *options.data_dir;
  if (info.data_set == kSyntheticDigitsName) return std::string();
  if (info.data_set != kMnistName) {
    return InvalidArgument("%s: trained with the data set '%s', which is not known here", options.file,
                           info.data_set);
  }
  if (options.known_data_dir.empty()) {
    return InvalidArgument(
        "%s was trained with mnist: name a folder with mnist/ in --data_dir or MUSTER_DATA", options.file);
  }
  return options.known_data_dir;
}

// The names of data sets say only what kind they are.
absl::Status CheckTestSet(const EvaluationOptions& options, const SavedModelInfo& info, const Dataset& test,
                          const std::string& place) {
  const uint32_t crc32c = TestSetCrc32c(test);
  if (crc32c == info.test_set_crc32c) return absl::OkStatus();
  if (!options.data_dir) {
    return InvalidArgument(
        "%s: trained with %s, test set %08x (CRC-32C), but %s has %08x; --data_dir names another on purpose",
        options.file, info.data_set, info.test_set_crc32c, place, crc32c);
  }
  spdlog::warn("{}: this is another test set than that of its training: {:08x} (CRC-32C), not {:08x}",
               options.file, crc32c, info.test_set_crc32c);
  return absl::OkStatus();
}

}  // namespace

std::string AccuracyLine(const BatchResult& test) {
  return absl::StrFormat("MNIST accuracy: %.4f\n", test.accuracy());
}

absl::Status Evaluate(const EvaluationOptions& options) {
  if (options.deterministic) MUSTER_RETURN_IF_ERROR(Annotate(PinInstructionSet("avx2"), "--deterministic"));
  SetKernelThreads(options.threads);
  const auto saved = LoadModel(options.file);
  if (!saved.ok()) return InvalidArgument("--evaluate: %s", std::string(saved.status().message()));
  MUSTER_RETURN_IF_ERROR(CheckModelFlags(options, *saved));
  MUSTER_ASSIGN_OR_RETURN(const std::string data_dir, ChooseData(options, saved->info));
  MUSTER_ASSIGN_OR_RETURN(const TrainTestData data, LoadData(data_dir));
  const std::string place = data_dir.empty() ? "the synthetic digits" : data_dir;
  MUSTER_RETURN_IF_ERROR(CheckTestSet(options, saved->info, data.test, place));
  spdlog::info("{}: {}, trained for {} steps with {}; test set: {} of {}", options.file,
               Describe(saved->info.config), saved->info.steps, saved->info.data_set, data.test.size(),
               place);

  MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(options.device));
  MUSTER_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      MakeModel(saved->plan, options.device, {.largest_batch = kEvaluationBatch, .math = options.device.math},
                &device));
  BatchBuffer buffer(kEvaluationBatch, data.test.feature_count, data.test.id_count);
  const std::span<const float> parameters = saved->parameters.values();
  const BatchResult test = EvaluateDataset(*model, parameters, data.test, buffer);
  MUSTER_RETURN_IF_ERROR(model->status());
  if (!options.result_json.empty()) {
    const ResultRecord record{.model = saved->info.config.model,
                              .variant = saved->info.config.variant,
                              .strategy = "evaluation",
                              .test_loss = test.mean_loss(),
                              .test_accuracy = test.accuracy(),
                              .parameters_crc32c = Crc32c(parameters.data(), parameters.size_bytes()),
                              .device = DeviceName(device.get()),
                              .instruction_set = InstructionSetName(),
                              .threads = options.threads,
                              .program_sha256 = options.program_sha256,
                              .platform = options.platform};
    MUSTER_RETURN_IF_ERROR(
        Annotate(WriteFileAtomically(options.result_json, ToJson(record)), "--result_json"));
  }
  PrintToStdout(AccuracyLine(test));
  return absl::OkStatus();
}

}  // namespace muster
