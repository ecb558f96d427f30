// GradientExchange: the one interface in which the strategies differ. A worker computes a gradient; the
// exchange turns it, with those of the other workers, into updated parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "kernels/parameter_table.h"
#include "kernels/row_index.h"
#include "ps/client.h"
#include "trainer/flat_buffer.h"
#include "trainer/models/row_source.h"

namespace muster {

/// Which part of each batch is this worker's: that of `place` among `count`.
struct BatchShare {
  int place = 0;
  int count = 1;
};

struct ExchangeStart {
  uint64_t step = 0;                    // updates that the parameters have had
  uint64_t local_steps = 0;             // of them, those that this rank took part in
  std::optional<BatchShare> share;      // unset: by rank, among all workers
  std::optional<uint64_t> all_samples;  // that made these updates; unset: each is of a whole batch
};

struct ExchangeResult {
  uint64_t step = 0;                    // of the parameters after the update
  double mean_loss = 0;                 // over `samples`
  uint64_t samples = 0;                 // of all contributions to the update
  std::optional<uint64_t> all_samples;  // that made the parameters; unset: these more than before
  uint64_t staleness = 0;  // updates between the parameters the gradient was computed from and this one
  ExchangeTimes times;     // zero without servers
};

struct ExchangeSummary {
  uint64_t step = 0;
  std::optional<uint64_t> all_samples;  // that made the parameters; unset: as this worker has counted them
  PushCounts pushes;                    // as one shard counts them; zero where nothing is pushed
};

PushCounts CountsOf(const ps::PushCounts& counts);

/// One thread at a time. `parameters` is [layout.size()]. Rows that are read are those of the same step as
/// the parameters that were written last; over asynchronous servers, as near to it as they come.
class GradientExchange : public RowSource {
 public:
  /// Writes the parameters to begin with, which stay in this place and which nobody else changes. Again after
  /// another method has failed with IsGoneBack.
  virtual absl::StatusOr<ExchangeStart> Start(std::span<float> parameters) = 0;

  /// Where the gradients are computed that Exchange is given: [size], on a 64-byte boundary, until the next
  /// call.
  virtual std::span<float> MakeGradientBuffer(int64_t size) { return gradient_.emplace(size).values(); }

  /// Of the step's gradient there, the part from float `begin` to the end of the layout is final, while the
  /// rest is still computed: it may be on its way already. Each `begin` is below the one before.
  virtual void GradientReady(int64_t begin) { (void)begin; }

  /// Contributes, and writes the updated parameters and, to save a round trip, the rows of the next batch
  /// ([next_rows.size()]).
  virtual absl::StatusOr<ExchangeResult> Exchange(const Contribution& contribution,
                                                  std::span<float> parameters, const RowIndex& next_rows,
                                                  std::span<float> next_row_values) = 0;

  /// Waits until no other worker changes them any more, and writes the final parameters.
  virtual absl::StatusOr<ExchangeSummary> AwaitOthers(std::span<float> parameters) = 0;

  /// This worker has succeeded and contributes no more.
  virtual absl::Status Finish() = 0;

  /// This worker cannot go on, and would not be able to if it were started again; why. Those who would wait
  /// for it end with that.
  virtual void Fail(const std::string& why) { (void)why; }

  /// The same as Finish in place of all else, from a process whose task has done its part, in `steps`, before
  /// it was started again. Unavailable: nobody is there any more; IsGoneBack: not all of it is done.
  virtual absl::Status FinishAgain(std::span<float> parameters, uint64_t steps);

  /// By server, how long it has been waited for; 0: it is not. Any thread may call it.
  virtual std::vector<Duration> waiting() { return {}; }

  virtual uint64_t bytes_pushed() const = 0;
  virtual uint64_t bytes_pulled() const = 0;

 private:
  std::optional<FlatBuffer> gradient_;
};

/// One process without any server: the optimizers run here. Fails as LayoutOptimizer::Create does.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeLocalExchange(
    const ParameterLayout& layout, std::span<const TableSpec> tables,
    std::span<const OptimizerConfig> optimizers, uint64_t seed);

/// Through parameter servers.
std::unique_ptr<GradientExchange> MakeParameterServerExchange(ParameterServerClientOptions options);

}  // namespace muster
