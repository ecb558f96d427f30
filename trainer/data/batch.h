// Batches: samples as numbers, as models take them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/row_index.h"
#include "trainer/data/augment.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sample_order.h"

namespace muster {

/// A view of samples; whoever filled it owns them.
struct Batch {
  std::span<const float> features;  // [size, feature_count]
  std::span<const int32_t> ids;     // [size, id_count]
  std::span<const int32_t> labels;  // [size]
  int64_t position = 0;             // of the first sample in the training stream; the others follow it

  // For models with tables: the rows that the ids name and, packed as they are there, their values.
  const RowIndex* rows = nullptr;
  std::span<const float> row_values;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

/// Room for the largest batch, reused for each: filling allocates nothing. A batch is valid until the next
/// one is filled. One thread at a time.
class BatchBuffer {
 public:
  BatchBuffer(int64_t largest_batch, int64_t feature_count, int64_t id_count = 0);

  /// From now on Fill augments what it fills: features are images of the augmentation's shape.
  void set_augmentation(const ShiftAugmentation& augmentation) { augmentation_ = augmentation; }

  int64_t largest_batch() const { return static_cast<int64_t>(labels_.size()); }

  /// The samples at these positions of the stream, for training; at most largest_batch(). `dataset` has the
  /// counts given at construction.
  Batch Fill(const Dataset& dataset, const SampleOrder& order, SampleRange positions);

  /// Samples [begin, end) in the order of the data set, for evaluation.
  Batch FillInOrder(const Dataset& dataset, SampleRange indices);

 private:
  void Set(const Dataset& dataset, int64_t slot, int64_t index);
  Batch View(int64_t size, int64_t position) const;

  const int64_t feature_count_;
  const int64_t id_count_;
  std::vector<float> features_;  // [largest_batch, feature_count]
  std::vector<int32_t> ids_;     // [largest_batch, id_count]
  std::vector<int32_t> labels_;
  std::optional<ShiftAugmentation> augmentation_;
};

}  // namespace muster
