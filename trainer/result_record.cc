#include "trainer/result_record.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file.h"
#include "base/logging.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json NameOrNull(const std::string& name) { return name.empty() ? Json(nullptr) : Json(name); }

Json ToJson(const PushCounts& counts) {
  return {{"received", counts.received},
          {"applied", counts.applied},
          {"stale", counts.stale},
          {"duplicate", counts.duplicate},
          {"rejected", counts.rejected}};
}

// Of whoever wrote it before and could not go on.
void RemoveHalfLine(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return;
  const auto text = ReadFile(file);
  if (!text.ok() || text->ends_with('\n')) return;
  std::filesystem::resize_file(file, text->rfind('\n') + 1, error);  // npos + 1: all of it
}

}  // namespace

std::string ToJson(const ResultRecord& record) {
  const Json json = {{"schema_version", kResultSchemaVersion},
                     {"model", record.model},
                     {"variant", NameOrNull(record.variant)},
                     {"strategy", record.strategy},
                     {"update_mode", NameOrNull(record.update_mode)},
                     {"workers", OrNull(record.workers)},
                     {"ps", OrNull(record.ps)},
                     {"seed", OrNull(record.seed)},
                     {"steps", OrNull(record.steps)},
                     {"samples", OrNull(record.samples)},
                     {"batch_size", OrNull(record.batch_size)},
                     {"seconds_to_first_step", OrNull(record.seconds_to_first_step)},
                     {"seconds_training", OrNull(record.seconds_training)},
                     {"samples_per_second", OrNull(record.samples_per_second)},
                     {"steps_per_second", OrNull(record.steps_per_second)},
                     {"seconds_after_first_step", OrNull(record.seconds_after_first_step)},
                     {"steps_after_first_step", OrNull(record.steps_after_first_step)},
                     {"train_loss", OrNull(record.train_loss)},
                     {"test_loss", OrNull(record.test_loss)},
                     {"test_accuracy", OrNull(record.test_accuracy)},
                     {"test_auc", OrNull(record.test_auc)},
                     {"parameter_bytes", OrNull(record.parameter_bytes)},
                     {"bytes_pushed", OrNull(record.bytes_pushed)},
                     {"bytes_pulled", OrNull(record.bytes_pulled)},
                     {"chief_steps", OrNull(record.chief_steps)},
                     {"pushes", record.pushes ? ToJson(*record.pushes) : Json(nullptr)},
                     {"parameters_crc32c", absl::StrFormat("%08x", record.parameters_crc32c)},
                     {"device", record.device},
                     {"instruction_set", record.instruction_set},
                     {"threads", record.threads},
                     {"program_sha256", OrNull(record.program_sha256)},
                     {"hosts", record.hosts},
                     {"platform", record.platform}};
  return json.dump(2) + "\n";
}

absl::StatusOr<MetricsWriter> MetricsWriter::Open(const MetricsOptions& options) {
  MetricsWriter writer;
  if (!options.jsonl.empty()) {
    if (options.append) RemoveHalfLine(options.jsonl);
    writer.path_ = options.jsonl;
    writer.file_.reset(std::fopen(options.jsonl.c_str(), options.append ? "ae" : "we"));
    if (writer.file_ == nullptr) return ErrnoError(errno, "--metrics_jsonl=" + options.jsonl.string());
  }
  if (!options.log_dir.empty()) {
    auto events = EventFile::Create(options.log_dir);
    if (!events.ok()) return Annotate(events.status(), "--log_dir");
    writer.events_ = *std::move(events);
  }
  return writer;
}

void MetricsWriter::Write(const MetricsLine& line) {
  if (file_ != nullptr) {
    const absl::Status written = WriteJson(line);
    if (!written.ok()) file_ = nullptr;
    Note("--metrics_jsonl", written);
  }
  if (events_) {
    const absl::Status written = WriteEvent(line);
    if (!written.ok()) events_.reset();
    Note("--log_dir", written);
  }
}

void MetricsWriter::Note(const std::string& flag, const absl::Status& written) {
  if (written.ok()) return;
  const absl::Status why = Annotate(written, flag);
  spdlog::warn("{}; training goes on without", std::string(why.message()));
  status_.Update(why);
}

absl::Status MetricsWriter::WriteEvent(const MetricsLine& line) {
  std::vector<Scalar> scalars = {{"samples_per_second", line.samples_per_second},
                                 {"learning_rate", line.learning_rate}};
  if (line.loss) scalars.push_back({"loss", *line.loss});
  if (line.staleness) scalars.push_back({"staleness", static_cast<double>(*line.staleness)});
  if (line.test_accuracy) scalars.push_back({"accuracy", *line.test_accuracy});
  if (line.test_loss) scalars.push_back({"test_loss", *line.test_loss});
  return events_->Write(line.step, scalars);
}

absl::Status MetricsWriter::WriteJson(const MetricsLine& line) {
  Json json = {{"step", line.step},
               {"seconds", line.seconds},
               {"loss", OrNull(line.loss)},
               {"samples_per_second", line.samples_per_second},
               {"staleness", OrNull(line.staleness)},
               {"learning_rate", line.learning_rate}};
  if (line.test_accuracy) json["test_accuracy"] = *line.test_accuracy;
  if (line.test_loss) json["test_loss"] = *line.test_loss;
  if (line.begun_at) json["begun_at"] = *line.begun_at;
  if (line.reached) json["reached"] = *line.reached;
  const std::string text = json.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
    return ErrnoError(errno, path_.string());
  }
  return absl::OkStatus();
}

}  // namespace muster
