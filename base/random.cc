#include "base/random.h"

#include <sys/random.h>

#include <absl/strings/escaping.h>

#include "base/status.h"

namespace muster {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  MUSTER_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

std::string RandomName(int length) {
  RandomStream random(RandomSeed());
  std::string name;
  for (int i = 0; i < length; ++i) name += "0123456789abcdefghijklmnopqrstuvwxyz"[random.NextBelow(36)];
  return name;
}

std::string RandomSecret() {
  std::string bytes(32, '\0');
  MUSTER_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(bytes);
}

}  // namespace muster
