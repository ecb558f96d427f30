#include "kernels/parameter_layout.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/random.h"

namespace muster {
namespace {

constexpr int64_t kMaxFloats = int64_t{1} << 40;
constexpr uint64_t kHashVersion = 2;

int64_t RoundUpToBlock(int64_t floats) { return (floats + kBlockFloats - 1) / kBlockFloats * kBlockFloats; }

// Hashes a sequence of 64-bit words: one bijective mixing round per word, so that changing any one word
// changes the result.
class WordHash {
 public:
  void Add(uint64_t word) { state_ = Mix64((state_ ^ word) + 0x9e3779b97f4a7c15u); }

  // The length, then eight bytes a word, little-endian whatever the machine, the last word padded with zeros.
  void Add(const std::string& text) {
    Add(text.size());
    for (size_t begin = 0; begin < text.size(); begin += 8) {
      uint64_t word = 0;
      for (size_t i = begin; i < std::min(begin + 8, text.size()); ++i) {
        word |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * (i - begin));
      }
      Add(word);
    }
  }

  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

absl::StatusOr<ParameterLayout> ParameterLayout::Create(std::vector<TensorSpec> tensors) {
  ParameterLayout layout;
  std::set<std::string> names;
  for (TensorSpec& spec : tensors) {
    if (!names.insert(spec.name).second) return InvalidArgument("two tensors are named '%s'", spec.name);
    if (spec.optimizer_group < 0) {
      return InvalidArgument("tensor '%s' has optimizer group %d", spec.name, spec.optimizer_group);
    }
    int64_t size = 1;
    for (const int64_t dimension : spec.shape) {
      if (dimension < 1) return InvalidArgument("tensor '%s' has a dimension of %d", spec.name, dimension);
      if (dimension > kMaxFloats / size) {
        return InvalidArgument("tensor '%s' has more than %d elements", spec.name, kMaxFloats);
      }
      size *= dimension;
    }
    const int64_t end = RoundUpToBlock(layout.size_ + size);
    if (end > kMaxFloats) {
      return InvalidArgument("with tensor '%s' the model has more than %d parameters", spec.name, kMaxFloats);
    }
    layout.tensors_.push_back({.spec = std::move(spec), .offset = layout.size_, .size = size});
    layout.size_ = end;
  }
  return layout;
}

int64_t ParameterLayout::parameter_count() const {
  int64_t count = 0;
  for (const LayoutTensor& tensor : tensors_) count += tensor.size;
  return count;
}

// The words hashed: version of this format, block size, number of tensors; then per tensor its name (length,
// bytes), rank, dimensions, initializer, the bits of its scale, and its optimizer group. Lengths come first,
// so that no two layouts give the same words.
uint64_t ParameterLayout::Hash() const {
  WordHash hash;
  hash.Add(kHashVersion);
  hash.Add(kBlockFloats);
  hash.Add(tensors_.size());
  for (const LayoutTensor& tensor : tensors_) {
    hash.Add(tensor.spec.name);
    hash.Add(tensor.spec.shape.size());
    for (const int64_t dimension : tensor.spec.shape) hash.Add(static_cast<uint64_t>(dimension));
    hash.Add(static_cast<uint64_t>(tensor.spec.initializer));
    hash.Add(std::bit_cast<uint32_t>(tensor.spec.scale));
    hash.Add(static_cast<uint64_t>(tensor.spec.optimizer_group));
  }
  return hash.value();
}

LayoutRange ParameterLayout::Shard(int index, int count) const {
  MUSTER_CHECK(count > 0 && index >= 0 && index < count);
  const int64_t blocks = size_ / kBlockFloats;
  const auto begin = [&](int64_t i) {
    return (blocks / count * i + std::min(i, blocks % count)) * kBlockFloats;
  };
  return {begin(index), begin(index + 1)};
}

void ParameterLayout::Initialize(uint64_t seed, LayoutRange range, std::span<float> values) const {
  MUSTER_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= size_);
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == range.size());
  std::fill(values.begin(), values.end(), 0.0f);  // padding
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const LayoutTensor& tensor = tensors_[t];
    const int64_t begin = std::max(range.begin, tensor.offset);
    const int64_t end = std::min(range.end, tensor.offset + tensor.size);
    if (begin >= end) continue;
    InitializeValues(tensor.spec.initializer, tensor.spec.scale, RandomStream(seed, t).Next(),
                     begin - tensor.offset, values.subspan(begin - range.begin, end - begin));
  }
}

}  // namespace muster
