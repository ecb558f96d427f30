// Random numbers that are the same on every machine, and identifiers that are never the same.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014): a bijection on 64 bits whose output bits all depend on all input bits.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A generator that is a pure function of (seed, stream): any element of any stream can be made anywhere, in
/// any order. No libm, no state shared between streams. Copyable; one thread at a time.
class RandomStream {
 public:
  constexpr explicit RandomStream(uint64_t seed, uint64_t stream = 0)
      : state_(Mix64(Mix64(seed + 0x9e3779b97f4a7c15u) ^ Mix64(stream + 0xd1b54a32d192ed03u))) {}

  constexpr uint64_t Next() { return Mix64(state_ += 0x9e3779b97f4a7c15u); }

  /// Uniform in [0, 1), a multiple of 2^-53.
  constexpr double NextDouble() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  /// Uniform in [0, bound), bound > 0, without modulo bias (Lemire, "Fast random integer generation in an
  /// interval", 2019).
  constexpr uint64_t NextBelow(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(Next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(Next()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t state_;
};

/// 64 bits from the kernel's generator.
uint64_t RandomSeed();

/// `length` characters of [0-9a-z] from the kernel's generator: 5.17 bits each.
std::string RandomName(int length);

/// 256 bits from the kernel's generator, as 64 hexadecimal digits: nobody guesses it.
std::string RandomSecret();

}  // namespace muster
