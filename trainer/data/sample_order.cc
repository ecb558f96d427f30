#include "trainer/data/sample_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/random.h"
#include "base/status.h"

namespace muster {
namespace {

// A permutation of [0, 2^(2 * half_bits)) for each key.
uint64_t Permute(uint64_t value, uint64_t key, int half_bits) {
  // Four rounds make a pseudo-random permutation of a large domain (Luby and Rackoff, 1988); small domains
  // want a few more.
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = Mix64(key + (round << 56) + right) >> (64 - half_bits);
    left = std::exchange(right, left ^ mixed);
  }
  return left << half_bits | right;
}

}  // namespace

SampleRange BatchSlice(int64_t step, int64_t global_batch_size, int worker_index, int worker_count) {
  MUSTER_CHECK(step >= 0 && global_batch_size > 0 && worker_index >= 0 && worker_index < worker_count);
  const int64_t share = global_batch_size / worker_count;
  const int64_t remainder = global_batch_size % worker_count;
  const auto begin = [&](int64_t worker) {
    return step * global_batch_size + worker * share + std::min(worker, remainder);
  };
  return {begin(worker_index), begin(worker_index + 1)};
}

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size)
    : seed_(seed),
      dataset_size_(dataset_size),
      half_bits_(
          std::max(1, (static_cast<int>(std::bit_width(static_cast<uint64_t>(dataset_size - 1))) + 1) / 2)) {
  MUSTER_CHECK(dataset_size > 0);
}

int64_t SampleOrder::SampleAt(int64_t position) const {
  MUSTER_CHECK(position >= 0);
  const int64_t epoch = position / dataset_size_;
  const uint64_t key = RandomStream(seed_, static_cast<uint64_t>(epoch)).Next();
  uint64_t index = static_cast<uint64_t>(position % dataset_size_);
  // Ends: the walk is along the cycle that holds the start, which lies inside. Less than four turns on
  // average.
  do {
    index = Permute(index, key, half_bits_);
  } while (index >= static_cast<uint64_t>(dataset_size_));
  return static_cast<int64_t>(index);
}

}  // namespace muster
