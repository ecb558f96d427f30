#include "trainer/evaluation.h"

#include <absl/strings/str_join.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/stdout.h"
#include "kernels/dense.h"
#include "kernels/threads.h"
#include "trainer/device_choice.h"
#include "trainer/load_data.h"
#include "trainer/models/evaluate.h"
#include "trainer/output_files.h"
#include "trainer/result_record.h"
#include "trainer/saved_model.h"

namespace muster {
namespace {

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
  const bool same = plan->layout.Hash() == saved.plan.layout.Hash() && plan->tables == saved.plan.tables;
  return same ? absl::OkStatus() : contradicted;
}

// Of a data set that the file was not trained with, the accuracy would be a surprise: that has to be asked
// for.
absl::StatusOr<std::string> ChooseData(const EvaluationOptions& options, const ModelRecipe& recipe,
                                       const SavedModelInfo& info) {
  if (options.data_dir) return *options.data_dir;
  if (info.data_set == DataSetName(recipe, "")) return std::string();
  if (info.data_set != RealDataSetName(recipe)) {
    return InvalidArgument("%s: trained with the data set '%s', which is not known here", options.file,
                           info.data_set);
  }
  if (options.known_data_dir.empty()) {
    return InvalidArgument("%s was trained with %s: name a folder with %s/ in --data_dir or MUSTER_DATA",
                           options.file, info.data_set, info.data_set);
  }
  return options.known_data_dir;
}

// The names of data sets say only what kind they are.
absl::Status CheckTestSet(const EvaluationOptions& options, const SavedModelInfo& info, const Dataset& test,
                          const std::string& place) {
  const uint32_t crc32c = DatasetCrc32c(test);
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

std::string AccuracyLine(const std::string& data_set, const Evaluation& test) {
  std::string line = absl::StrFormat("%s accuracy: %.4f", data_set, test.result.accuracy());
  if (test.auc) line += absl::StrFormat(", AUC %.4f", *test.auc);
  return line + "\n";
}

uint32_t ParametersCrc32c(std::span<const float> parameters, const TableValues& tables) {
  uint32_t crc = Crc32c(parameters.data(), parameters.size_bytes());
  for (const std::vector<float>& table : tables)
    crc = Crc32c(table.data(), table.size() * sizeof(float), crc);
  return crc;
}

absl::Status Evaluate(const EvaluationOptions& options) {
  MUSTER_RETURN_IF_ERROR(
      CheckOutputFiles({{"--result_json", options.result_json}}, {{"--evaluate", options.file}}));
  if (options.deterministic) MUSTER_RETURN_IF_ERROR(Annotate(PinInstructionSet("avx2"), "--deterministic"));
  SetKernelThreads(options.threads);
  const auto saved = LoadModel(options.file);
  if (!saved.ok()) return InvalidArgument("--evaluate: %s", std::string(saved.status().message()));
  MUSTER_RETURN_IF_ERROR(CheckModelFlags(options, *saved));
  MUSTER_ASSIGN_OR_RETURN(const std::string data_dir, ChooseData(options, saved->recipe, saved->info));
  MUSTER_ASSIGN_OR_RETURN(const Dataset test_set, LoadTestSet(saved->recipe, data_dir, saved->info.features));
  const std::string place = data_dir.empty() ? "the synthetic set" : data_dir;
  MUSTER_RETURN_IF_ERROR(CheckTestSet(options, saved->info, test_set, place));
  spdlog::info("{}: {}, trained for {} steps with {}; test set: {} of {}", options.file,
               Describe(saved->info.config), saved->info.steps, saved->info.data_set, test_set.size(), place);

  MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(options.device));
  MUSTER_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      MakeModel(saved->plan, options.device, {.largest_batch = kEvaluationBatch, .math = options.device.math},
                &device));
  BatchBuffer buffer(kEvaluationBatch, test_set.feature_count, test_set.id_count);
  const std::span<const float> parameters = saved->parameters.values();
  TableValuesSource rows(saved->plan.tables, saved->tables);
  MUSTER_ASSIGN_OR_RETURN(const Evaluation test,
                          EvaluateDataset(*model, parameters, test_set, buffer, &rows));
  MUSTER_RETURN_IF_ERROR(CheckFinite(test));
  if (!options.result_json.empty()) {
    const ResultRecord record{.model = saved->info.config.model,
                              .variant = saved->info.config.variant,
                              .strategy = "evaluation",
                              .test_loss = test.result.mean_loss(),
                              .test_accuracy = test.result.accuracy(),
                              .test_auc = test.auc,
                              .parameters_crc32c = ParametersCrc32c(parameters, saved->tables),
                              .device = DeviceName(options.device, device.get()),
                              .instruction_set = InstructionSetName(),
                              .threads = options.threads,
                              .program_sha256 = options.program_sha256,
                              .platform = options.platform};
    MUSTER_RETURN_IF_ERROR(
        Annotate(WriteFileAtomically(options.result_json, ToJson(record)), "--result_json"));
  }
  PrintToStdout(AccuracyLine(DataSetTitle(saved->recipe), test));
  return absl::OkStatus();
}

}  // namespace muster
