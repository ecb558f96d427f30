#include "trainer/training_outputs.h"

#include <string>

#include "base/logging.h"
#include "trainer/onnx.h"
#include "trainer/output_files.h"

namespace muster {

absl::Status CheckTrainingOutputs(const TrainerOptions& options, const ModelPlan& plan, bool is_chief) {
  FlaggedFiles files = {{"--metrics_file", options.metrics.file}};
  if (!is_chief) return CheckOutputFiles(files);
  files.insert(files.end(), {{"--result_json", options.result_json},
                             {"--save_model", options.save_model},
                             {"--save_onnx", options.save_onnx},
                             {"--metrics_jsonl", options.metrics_jsonl}});
  MUSTER_RETURN_IF_ERROR(CheckOutputFiles(files, {{"--log_dir", options.log_dir}}));
  if (!options.save_onnx.empty())
    MUSTER_RETURN_IF_ERROR(Annotate(CheckOnnxSize(plan), "--save_onnx=" + options.save_onnx));
  return options.log_dir.empty() ? absl::OkStatus() : CheckOutputFolder("--log_dir", options.log_dir);
}

absl::Status WriteModel(const TrainerOptions& options, const ModelPlan& plan,
                        std::span<const float> parameters, const TableValues& tables,
                        const SavedModelInfo& info) {
  absl::Status written;
  if (!options.save_model.empty()) {
    KeepFirst(Annotate(SaveModel(options.save_model, plan, parameters, tables, info), "--save_model"),
              &written);
  }
  if (!options.save_onnx.empty()) {
    KeepFirst(Annotate(SaveOnnx(options.save_onnx, plan, parameters, tables, info), "--save_onnx"), &written);
  }
  return written;
}

void KeepFirst(const absl::Status& status, absl::Status* first) {
  if (!status.ok() && !first->ok()) spdlog::error("{}", std::string(status.message()));
  first->Update(status);
}

}  // namespace muster
