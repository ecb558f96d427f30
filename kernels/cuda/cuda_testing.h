// What the tests of CUDA code have in common.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace muster::cuda {

/// Skips where there is no GPU, and says why.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    if (count == 0) GTEST_SKIP() << "no GPU";
  }
};

/// An array on the device in the middle of bytes that are all ones, which for floats are NaNs: what is read
/// outside of it spoils the result, what is written outside fails the test when the array is read back.
template <typename T>
class GuardedOnDevice {
 public:
  explicit GuardedOnDevice(std::span<const T> values) : size_(static_cast<int64_t>(values.size())) {
    std::vector<uint8_t> bytes(values.size_bytes() + 2 * kGuard, kOnes);
    if (!values.empty()) std::memcpy(bytes.data() + kGuard, values.data(), values.size_bytes());
    auto memory = CopyToDevice<uint8_t>(bytes);
    MUSTER_CHECK(memory.ok(), memory.status().ToString());
    memory_ = *std::move(memory);
  }
  explicit GuardedOnDevice(const std::vector<T>& values) : GuardedOnDevice(std::span<const T>(values)) {}

  /// An output: its old bytes are ones as well.
  explicit GuardedOnDevice(int64_t size) : GuardedOnDevice(Ones(size)) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data() + kGuard); }

  /// After everything that was enqueued.
  std::vector<T> Read() const {
    std::vector<uint8_t> bytes(memory_.size());
    const cudaError_t waited = cudaDeviceSynchronize();
    EXPECT_EQ(waited, cudaSuccess) << cudaGetErrorString(waited);
    const cudaError_t copied = cudaMemcpy(bytes.data(), memory_.data(), bytes.size(), cudaMemcpyDeviceToHost);
    EXPECT_EQ(copied, cudaSuccess) << cudaGetErrorString(copied);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(bytes[i], kOnes) << "written " << kGuard - i << " bytes before the array";
      EXPECT_EQ(bytes[bytes.size() - 1 - i], kOnes) << "written behind the array";
    }
    std::vector<T> values(size_);
    if (size_ > 0) std::memcpy(values.data(), bytes.data() + kGuard, size_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;  // bytes, so that the array begins on the boundary that tensors have
  static constexpr uint8_t kOnes = 0xff;

  static std::vector<T> Ones(int64_t size) {
    std::vector<T> values(size);
    if (size > 0) std::memset(static_cast<void*>(values.data()), kOnes, size * sizeof(T));
    return values;
  }

  int64_t size_;
  DeviceArray<uint8_t> memory_;
};

using GuardedFloats = GuardedOnDevice<float>;

}  // namespace muster::cuda
