#include "ps/inspect_checkpoints.h"

#include "ps/checkpoint_store.h"

namespace muster {
namespace {

std::string DescribeJob(const ps::JobConfig& config) {
  const char* const mode = config.mode() == ps::ASYNC  ? "async"
                           : config.mode() == ps::SYNC ? "sync"
                                                       : "bounded";
  return absl::StrFormat("%s, %s, workers: %d, seed %d", config.model(), mode, config.worker_count(),
                         config.seed());
}

std::string DescribePushes(const ps::PushCounts& pushes) {
  return absl::StrFormat("received %d = applied %d + stale %d + duplicate %d + rejected %d",
                         pushes.received(), pushes.applied(), pushes.stale(), pushes.duplicate(),
                         pushes.rejected());
}

// What is wrong with a file stands in its line too.
absl::Status Describe(const CheckpointStore& store, const checkpoint::Manifest& manifest, std::string* text) {
  std::string job;
  absl::Status first;
  std::string lines;
  for (int i = 0; i < manifest.files_size(); ++i) {
    const checkpoint::Manifest::File& file = manifest.files(i);
    absl::StrAppendFormat(&lines, "  %s  %12d bytes  after %d updates  %08x  ", file.name(), file.bytes(),
                          file.step(), file.digest());
    const auto opened = store.OpenShard(manifest, i);
    if (absl::IsNotFound(opened.status())) {
      lines += "not in this folder\n";
      continue;
    }
    const absl::Status status = opened.ok() ? store.VerifyShard(manifest, i) : opened.status();
    lines += status.ok() ? "whole\n" : std::string(status.message()) + "\n";
    first.Update(status);
    if (!status.ok()) continue;
    const checkpoint::ShardHeader& header = opened->header();
    if (job.empty()) job = DescribeJob(header.config());
    absl::StrAppendFormat(&lines, "    pushes: %s\n", DescribePushes(header.pushes()));
  }
  absl::StrAppendFormat(text, "step %d%s\n%s", manifest.step(), job.empty() ? "" : ": " + job, lines);
  return first;
}

}  // namespace

absl::Status InspectCheckpoints(const std::filesystem::path& folder, std::string* text) {
  const CheckpointStore store(folder);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, store.List());
  if (steps.empty()) return NotFound("%s has no checkpoints", folder.string());
  absl::Status first;
  for (const uint64_t step : steps) {
    const auto manifest = store.ReadManifest(step);
    if (manifest.ok()) {
      first.Update(Describe(store, *manifest, text));
    } else {
      absl::StrAppendFormat(text, "step %d: %s\n", step, manifest.status().message());
      first.Update(manifest.status());
    }
  }
  return first;
}

}  // namespace muster
