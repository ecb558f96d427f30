// A synthetic stand-in for the census, for machines without a network: people who do not exist, in the format
// and with the categories of UCI's Adult.
//
// What they earn follows from marriage, hours and capital gains, which a linear model learns, and from
// whether an odd number of these hold, which it cannot learn without crosses: education of at least
// Some-college, work in an office, age from 35 to 49. Half of the people have each of the first two and three
// in ten the third: a cross of the first two learns a part of it, a cross of all three the whole.
//
// Pure functions of the seed with the same bits on every machine: whole numbers only.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/data/census.h"

namespace muster {

/// The two files, byte for byte.
struct CensusFiles {
  std::string train;  // adult.data
  std::string test;   // adult.test
};

/// Person i of a file depends on (seed, file, i) only. About 120 bytes and 2 microseconds a
/// person.
CensusFiles MakeSyntheticCensusFiles(uint64_t seed, int64_t train_size = 16'000, int64_t test_size = 8'000);

/// What LoadCensus makes of those files.
Census MakeSyntheticCensus(uint64_t seed, int64_t train_size = 16'000, int64_t test_size = 8'000);

}  // namespace muster
