// Batches made on a CUDA device out of a data set that lies there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::cuda {

/// Samples of `height` x `width` x `channels` bytes, and a label each. Arrays are on the device.
struct ByteSamples {
  const uint8_t* bytes = nullptr;   // [size, height, width, channels]
  const uint8_t* labels = nullptr;  // [size]
  int64_t size = 0;
  int64_t height = 1;
  int64_t width = 1;
  int64_t channels = 1;
  int64_t feature_count() const { return height * width * channels; }
};

/// A sample of a batch, and how far its image moves: x to the right, y down, in pixels; zeros move in.
struct SampleSource {
  int32_t index;
  int16_t shift_x;
  int16_t shift_y;
};

/// features [batch, feature_count] = byte / 255, rounded as BytesToUnitInterval (kernels/elementwise.h)
/// rounds; labels [batch]. Sample i is sources[(*position + i) modulo sources_count]; with sources null it is
/// number *position + i of the data set. Where there is no such sample the features are NaN and the label
/// is -1. `position` and `sources` are on the device.
cudaError_t FillBatch(const ByteSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* labels,
                      cudaStream_t stream);

/// Samples of numbers and ids, and a label each. Arrays are on the device.
struct TableSamples {
  const float* features = nullptr;  // [size, feature_count]
  const int32_t* ids = nullptr;     // [size, id_count]
  const uint8_t* labels = nullptr;  // [size]
  int64_t size = 0;
  int64_t feature_count = 0;
  int64_t id_count = 0;
};

/// features [batch, feature_count], indices [id_count, batch] (embedding.h) and labels [batch], of the
/// samples that the other FillBatch takes; how far a source moves is not read. Where there is no such sample
/// its indices are -1 too.
cudaError_t FillBatch(const TableSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* indices,
                      int32_t* labels, cudaStream_t stream);

}  // namespace muster::cuda
