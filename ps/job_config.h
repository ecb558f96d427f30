// JobConfig on the wire, to and from what it stands for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "kernels/parameter_table.h"
#include "proto/parameter_server.pb.h"
#include "ps/update_rule.h"

namespace muster {

inline constexpr uint32_t kMostWorkers = 100'000;  // of a job, its chief included

/// How the floats of a job travel.
struct Compression {
  ps::WireType wire_type = ps::FLOAT32;  // of gradients and parameters
  double top_k = 0;                      // of a gradient's numbers the part that is sent; 0: all
};

/// How a job's updates are made.
struct UpdateConfig {
  UpdateRuleOptions rule;
  int aggregate = 0;  // sync: contributions that make a step; 0: those of all workers
  Compression compression;
  RowEviction eviction;
};

/// `optimizers`: by optimizer group, one for each that the layout and the tables have.
ps::JobConfig MakeJobConfig(const ParameterLayout& layout, std::span<const TableSpec> tables,
                            const UpdateConfig& update, std::span<const OptimizerConfig> optimizers,
                            uint64_t seed);

/// Nothing where all parameters are in tables. FailedPrecondition if it does not have the hash that its
/// sender computed: the builds differ; InvalidArgument: there are no tables either.
absl::StatusOr<ParameterLayout> LayoutOf(const ps::JobConfig& config);

/// InvalidArgument: an initializer that this version does not know. Sizes and groups are checked by
/// MakeTables.
absl::StatusOr<std::vector<TableSpec>> TablesOf(const ps::JobConfig& config);

/// Of all of the job's tables. InvalidArgument: numbers that make no sense together.
absl::StatusOr<RowEviction> EvictionOf(const ps::JobConfig& config);

/// By optimizer group. InvalidArgument: a kind that this version does not know. Numbers and groups are
/// checked where they are used, by LayoutOptimizer::Create.
absl::StatusOr<std::vector<OptimizerConfig>> OptimizersOf(const ps::JobConfig& config);

/// A hash of all of it.
uint64_t FingerprintOf(const ps::JobConfig& config);

/// "optimizers[0].kind: 1 -> 2, seed: 3 -> 4"; empty: there are none.
std::string DifferencesOf(const ps::JobConfig& before, const ps::JobConfig& now);

/// FailedPrecondition says in what a worker's job differs from that of the first one.
absl::Status CheckSameJob(const ps::JobConfig& first, const ps::JobConfig& other);

/// InvalidArgument: numbers that do not fit the mode, or a mode that this version does not know.
absl::StatusOr<UpdateConfig> UpdateOf(const ps::JobConfig& config);

}  // namespace muster
