#include "trainer/data/batch.h"

#include "base/status.h"

namespace muster {

BatchBuffer::BatchBuffer(int64_t largest_batch)
    : features_(largest_batch * kMnistPixels), labels_(largest_batch) {}

Batch BatchBuffer::Fill(const MnistDataset& dataset, std::span<const int64_t> indices) {
  const int64_t size = static_cast<int64_t>(indices.size());
  MUSTER_CHECK(size <= largest_batch());
  for (int64_t i = 0; i < size; ++i) Set(dataset, i, indices[i]);
  return View(size);
}

Batch BatchBuffer::Fill(const MnistDataset& dataset, const SampleOrder& order, SampleRange positions) {
  MUSTER_CHECK(positions.size() <= largest_batch());
  for (int64_t i = 0; i < positions.size(); ++i) Set(dataset, i, order.SampleAt(positions.begin + i));
  return View(positions.size());
}

Batch BatchBuffer::FillInOrder(const MnistDataset& dataset, SampleRange indices) {
  MUSTER_CHECK(indices.size() <= largest_batch());
  for (int64_t i = 0; i < indices.size(); ++i) Set(dataset, i, indices.begin + i);
  return View(indices.size());
}

void BatchBuffer::Set(const MnistDataset& dataset, int64_t slot, int64_t index) {
  MUSTER_CHECK(index >= 0 && index < dataset.size());
  constexpr float kScale =
      1.0f / 255;  // a product, because the division would cost as much as the model's forward pass
  const uint8_t* const pixels = dataset.images.data() + index * kMnistPixels;
  float* const features = features_.data() + slot * kMnistPixels;
  for (int64_t i = 0; i < kMnistPixels; ++i) features[i] = static_cast<float>(pixels[i]) * kScale;
  labels_[slot] = dataset.labels[index];
}

Batch BatchBuffer::View(int64_t size) const {
  return {.features = std::span(features_).first(size * kMnistPixels),
          .labels = std::span(labels_).first(size)};
}

}  // namespace muster
