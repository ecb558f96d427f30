// What the chief's metrics (kMetricsFile, job_store.h) tell of the training while they come in. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// From the step that training had reached, as far as its chief knew, to the one from which it went on: what
/// is between them is done again.
struct StepsLost {
  uint64_t reached = 0;
  uint64_t went_on_from = 0;
};

/// One line of them. What is not in it is 0.
struct TrainingPoint {
  double seconds = 0;  // since the chief's process began to train
  uint64_t step = 0;
  double loss = 0;
  double samples_per_second = 0;
  std::optional<StepsLost> lost;  // since the line before, if any were
};

class TrainingProgress {
 public:
  /// What comes after what was fed before, in pieces of any size. A line that is none of them is left out.
  std::vector<TrainingPoint> Feed(std::string_view bytes);

  /// What comes next is another file, of the same training, or the same one cut, since the chief begins anew.
  void BeginFile() { line_.clear(); }

 private:
  std::string line_;      // not yet a whole one
  uint64_t reached_ = 0;  // the last step that was told
};

}  // namespace muster
