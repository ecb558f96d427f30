#include "kernels/initializer.h"

#include "base/random.h"
#include "base/status.h"

namespace muster {
namespace {

// True with probability exp(-x), 0 <= x <= 1, from comparisons alone (von Neumann, "Various techniques used
// in connection with random digits", 1951): a run of uniforms that falls from x on lasts n or longer with
// probability x^n/n!, and the alternating sum of those is the probability that it breaks at an odd place.
bool BernoulliExp(double x, RandomStream& random) {
  bool odd = true;
  double previous = x;
  for (;;
       odd = !odd) {  // ends: a strictly falling run is finite, and each further term is as unlikely as 1/n!
    const double next = random.NextDouble();
    if (next >= previous) return odd;
    previous = next;
  }
}

// Standard normal, truncated to [-2, 2), by rejection from the uniform distribution with the exact
// probability exp(-x^2/2).
double TruncatedNormal(RandomStream random) {
  constexpr int kMaxAttempts = 1000;  // one attempt fails with probability 0.40, so all of them with 1e-395
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const double x = 4 * random.NextDouble() - 2;
    const double half = x * x / 4;  // BernoulliExp takes at most 1, and x^2/2 may be 2
    if (BernoulliExp(half, random) && BernoulliExp(half, random)) return x;
  }
  MUSTER_CHECK(false, "the random stream is not random");
}

// In [-1, 1) on a grid of 2^-23, so that the product with a float scale cannot round up to the scale itself.
double Uniform(RandomStream random) { return static_cast<double>(random.Next() >> 40) * 0x1.0p-23 - 1; }

}  // namespace

void InitializeValues(Initializer initializer, float scale, uint64_t seed, int64_t first,
                      std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t element = static_cast<uint64_t>(first) + i;
    switch (initializer) {
      case Initializer::kZeros:
        values[i] = 0;
        break;
      case Initializer::kTruncatedNormal:
        values[i] = static_cast<float>(TruncatedNormal(RandomStream(seed, element)) * double{scale});
        break;
      case Initializer::kUniform:
        values[i] = static_cast<float>(Uniform(RandomStream(seed, element)) * double{scale});
        break;
      case Initializer::kConstant:
        values[i] = scale;
        break;
    }
  }
}

}  // namespace muster
