// The trainer's flags as they are typed; options.cc says what they mean together.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cluster/cluster_spec.h"
#include "trainer/optimizer_flags.h"
#include "trainer/options.h"

namespace muster {

inline constexpr char kWidePrefix[] = "wide_";  // of the flags of the wide part's optimizer
inline constexpr const char* kDefaultModel = "mnist_softmax";
inline constexpr uint64_t kMinBucketBytes = 1024;
inline constexpr uint64_t kMaxBucketBytes = uint64_t{1} << 40;

/// As typed; what was not given is unset, or zero where zero cannot be asked for.
struct Flags {
  ClusterFlags cluster;
  std::optional<std::string> model;
  std::string variant;
  std::string hidden;
  std::optional<int64_t> batch_size;
  std::optional<int64_t> global_batch_size;
  std::optional<uint64_t> train_steps;
  OptimizerFlags optimizer;
  OptimizerFlags wide_optimizer;
  std::string augment;
  bool sync_replicas = false;
  std::optional<int> replicas_to_aggregate;
  std::optional<uint64_t> bounded_staleness;
  std::optional<uint64_t> max_staleness;
  bool scale_rate_by_staleness = false;
  std::string strategy = "parameter_server";
  std::optional<int> first_workers;
  std::optional<uint64_t> job_number;
  std::optional<int> min_workers;
  std::string bucket_bytes = "auto";
  std::string collective = "auto";
  std::string wire_type = "float32";
  std::optional<double> top_k;
  uint64_t evict_rows_after = 0;
  std::string data_dir = "auto";
  std::optional<std::string> evaluate;
  std::optional<std::string> make_data;
  std::string device = "auto";
  std::string cuda_math = "fp32";
  std::string durability = "checkpoint";
  std::string transport = "auto";
  std::optional<std::string> inspect_checkpoint;
  int connect_timeout_s = 300;
  int server_timeout_s = 60;
  int worker_timeout_s = 600;
  int worker_lease_s = 60;
  TrainerOptions options;
};

/// Declares those of `flags` with their help, groups and bounds.
void DeclareFlags(CLI::App& app, Flags& flags);

/// All of an optimizer under their own names behind `prefix`.
void DeclareOptimizerFlags(CLI::App& app, const std::string& prefix, const std::string& group,
                           OptimizerFlags& flags);

/// Decimal digits only: a sign, a fraction or another base is no whole number. InvalidArgument: that, or out
/// of bounds.
absl::StatusOr<uint64_t> ParseWholeNumber(const std::string& text, uint64_t minimum, uint64_t maximum);

}  // namespace muster
