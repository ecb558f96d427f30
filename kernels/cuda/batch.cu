#include <cmath>

#include "kernels/cuda/batch.h"
#include "kernels/cuda/device_code.h"

namespace muster::cuda {
namespace {

// A block for each sample of the batch.
__global__ void FillBatchKernel(ByteSamples samples, int feature_count, const SampleSource* sources,
                                int64_t sources_count, const int64_t* position, float* features,
                                int32_t* labels) {
  const int64_t slot = blockIdx.x;
  const int64_t at = *position + slot;
  int64_t index = at;
  int shift_x = 0, shift_y = 0;
  if (sources != nullptr) {
    const SampleSource source = sources[at % sources_count];
    index = source.index;
    shift_x = source.shift_x;
    shift_y = source.shift_y;
  }
  const bool exists = index >= 0 && index < samples.size;
  if (threadIdx.x == 0) labels[slot] = exists ? samples.labels[index] : -1;
  float* const target = features + slot * feature_count;
  const uint8_t* const bytes = samples.bytes + index * feature_count;
  const int row_size = static_cast<int>(samples.width * samples.channels);
  const bool moves = shift_x != 0 || shift_y != 0;
  const int shift = static_cast<int>((shift_y * samples.width + shift_x) * samples.channels);
  const auto is_value = [&](int i) {
    if (!exists || i >= feature_count) return false;
    if (!moves) return true;
    const int64_t y = i / row_size - shift_y;
    const int64_t x = i % row_size / samples.channels - shift_x;
    return y >= 0 && y < samples.height && x >= 0 && x < samples.width;
  };
  constexpr int kLoads = 4;  // of a thread that are under way together
  for (int first = static_cast<int>(threadIdx.x); first < feature_count; first += kLoads * kBlockThreads) {
    float values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = first + j * kBlockThreads;
      values[j] = is_value(i) ? static_cast<float>(bytes[i - shift]) * (1.0f / 255) : exists ? 0 : NAN;
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (first + j * kBlockThreads < feature_count) target[first + j * kBlockThreads] = values[j];
    }
  }
}

// One thread for each number, id and label: item `batch * i + slot` is number i of the sample in `slot`, so
// that neighbours write to neighbours what is written that way.
__global__ void FillTableBatchKernel(TableSamples samples, const SampleSource* sources, int64_t sources_count,
                                     const int64_t* position, int64_t batch, float* features,
                                     int32_t* indices, int32_t* labels) {
  const int64_t items = samples.feature_count + samples.id_count + 1;
  for (int64_t at = FirstIndex(); at < batch * items; at += IndexStride()) {
    const int64_t slot = at % batch, item = at / batch, place = *position + slot;
    const int64_t index = sources == nullptr ? place : sources[place % sources_count].index;
    const bool exists = index >= 0 && index < samples.size;
    const int64_t id = item - samples.feature_count;
    if (id < 0) {
      features[slot * samples.feature_count + item] =
          exists ? samples.features[index * samples.feature_count + item] : NAN;
    } else if (id < samples.id_count) {
      indices[id * batch + slot] = exists ? samples.ids[index * samples.id_count + id] : -1;
    } else {
      labels[slot] = exists ? samples.labels[index] : -1;
    }
  }
}

}  // namespace

cudaError_t FillBatch(const ByteSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* labels,
                      cudaStream_t stream) {
  if (batch == 0) return cudaSuccess;
  FillBatchKernel<<<static_cast<unsigned>(batch), kBlockThreads, 0, stream>>>(
      samples, static_cast<int>(samples.feature_count()), sources, sources_count, position, features, labels);
  return cudaGetLastError();
}

cudaError_t FillBatch(const TableSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* indices,
                      int32_t* labels, cudaStream_t stream) {
  if (batch == 0) return cudaSuccess;
  const int64_t items = samples.feature_count + samples.id_count + 1;
  FillTableBatchKernel<<<BlocksFor(batch * items), kBlockThreads, 0, stream>>>(
      samples, sources, sources_count, position, batch, features, indices, labels);
  return cudaGetLastError();
}

}  // namespace muster::cuda
