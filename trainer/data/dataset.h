// Dataset: samples in memory as models take them, whatever file they came from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace muster {

/// `size()` samples. Each has `feature_count` numbers, kept either as bytes (a feature is byte / 255) or as
/// floats, and `id_count` ids of table rows. Immutable once made: any thread may read it.
struct Dataset {
  int64_t feature_count = 0;
  int64_t id_count = 0;
  std::vector<uint8_t> bytes;   // [size, feature_count], or empty
  std::vector<float> features;  // [size, feature_count], or empty
  std::vector<int32_t> ids;     // [size, id_count]
  std::vector<uint8_t> labels;  // [size], classes from 0

  int64_t size() const { return static_cast<int64_t>(labels.size()); }

  /// The bytes of one sample, where features are bytes.
  std::span<const uint8_t> sample_bytes(int64_t index) const {
    return std::span(bytes).subspan(index * feature_count, feature_count);
  }
};

struct TrainTestData {
  Dataset train;
  Dataset test;
};

}  // namespace muster
