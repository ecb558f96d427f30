#include "trainer/data/batch.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/elementwise.h"

namespace muster {
BatchBuffer::BatchBuffer(int64_t largest_batch, int64_t feature_count, int64_t id_count)
    : feature_count_(feature_count),
      id_count_(id_count),
      features_(largest_batch * feature_count),
      ids_(largest_batch * id_count),
      labels_(largest_batch) {}

Batch BatchBuffer::Fill(const Dataset& dataset, const SampleOrder& order, SampleRange positions) {
  MUSTER_CHECK(positions.size() <= largest_batch());
  for (int64_t i = 0; i < positions.size(); ++i) Set(dataset, i, order.SampleAt(positions.begin + i));
  for (int64_t i = 0; augmentation_ && i < positions.size(); ++i) {
    augmentation_->Apply(positions.begin + i,
                         std::span(features_).subspan(i * feature_count_, feature_count_));
  }
  return View(positions.size(), positions.begin);
}

Batch BatchBuffer::FillInOrder(const Dataset& dataset, SampleRange indices) {
  MUSTER_CHECK(indices.size() <= largest_batch());
  for (int64_t i = 0; i < indices.size(); ++i) Set(dataset, i, indices.begin + i);
  return View(indices.size(), indices.begin);
}

void BatchBuffer::Set(const Dataset& dataset, int64_t slot, int64_t index) {
  MUSTER_CHECK(dataset.feature_count == feature_count_ && dataset.id_count == id_count_);
  MUSTER_CHECK(index >= 0 && index < dataset.size());
  const std::span<float> features = std::span(features_).subspan(slot * feature_count_, feature_count_);
  if (!dataset.bytes.empty()) {
    BytesToUnitInterval(dataset.sample_bytes(index), features);
  } else {
    std::copy_n(dataset.features.begin() + index * feature_count_, feature_count_, features.begin());
  }
  std::copy_n(dataset.ids.begin() + index * id_count_, id_count_, ids_.begin() + slot * id_count_);
  labels_[slot] = dataset.labels[index];
}

Batch BatchBuffer::View(int64_t size, int64_t position) const {
  return {.features = std::span(features_).first(size * feature_count_),
          .ids = std::span(ids_).first(size * id_count_),
          .labels = std::span(labels_).first(size),
          .position = position};
}

}  // namespace muster
