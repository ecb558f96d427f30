// Batches: samples as numbers, as models take them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/mnist.h"
#include "trainer/data/sample_order.h"

namespace muster {

/// A view of samples; whoever filled it owns them.
struct Batch {
  std::span<const float> features;  // [size, features of a sample]; pixels are in [0, 1]
  std::span<const int32_t> labels;  // [size]
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

/// Room for the largest batch, reused for each: filling allocates nothing. A batch is valid until the next
/// one is filled. One thread at a time.
class BatchBuffer {
 public:
  explicit BatchBuffer(int64_t largest_batch);

  int64_t largest_batch() const { return static_cast<int64_t>(labels_.size()); }

  /// The samples at these indices of the data set; at most largest_batch().
  Batch Fill(const MnistDataset& dataset, std::span<const int64_t> indices);

  /// The samples at these positions of the stream, for training.
  Batch Fill(const MnistDataset& dataset, const SampleOrder& order, SampleRange positions);

  /// Samples [begin, end) in the order of the data set, for evaluation.
  Batch FillInOrder(const MnistDataset& dataset, SampleRange indices);

 private:
  void Set(const MnistDataset& dataset, int64_t slot, int64_t index);
  Batch View(int64_t size) const;

  std::vector<float> features_;  // [largest_batch, 784]
  std::vector<int32_t> labels_;
};

}  // namespace muster
