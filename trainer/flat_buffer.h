// The parameters or the gradient of a model in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace muster {

/// One float buffer of a model, zero at first, on 64-byte boundaries like the tensors in it. Throws
/// std::bad_alloc like `new`: main knows what to say.
class FlatBuffer {
 public:
  explicit FlatBuffer(int64_t size)
      : size_(size),
        data_(static_cast<float*>(std::aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::fill_n(data_.get(), size, 0.0f);
  }
  std::span<float> values() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const float> values() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  int64_t size_;
  std::unique_ptr<float[], Free> data_;
};

}  // namespace muster
