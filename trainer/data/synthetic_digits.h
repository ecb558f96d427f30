// Synthetic digits: drawn, not written, for where there is no MNIST. Ten glyphs of line segments, each sample
// with its own slant, size, place, pen and noise.
//
// Pure functions of the seed with the same bits on every machine: only +, -, *, / and sqrt, which IEEE 754
// rounds exactly.
#pragma once

#include <cstdint>

#include "trainer/data/mnist.h"

namespace muster {

/// `size` digits in the shape of MNIST, labels uniform. Sample i depends on (seed, i) only. About 10
/// microseconds a sample.
Dataset MakeSyntheticDigits(uint64_t seed, int64_t size);

/// A training and a test set that share no sample.
TrainTestData MakeSyntheticMnist(uint64_t seed, int64_t train_size = 12'000, int64_t test_size = 2'000);

}  // namespace muster
