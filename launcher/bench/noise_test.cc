#include "launcher/bench/noise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

Measurement Repeated(std::vector<double> step_seconds) {
  Measurement measurement = Measured(Strategy::kAllReduce, 2, 1000);
  measurement.step_seconds = std::move(step_seconds);
  measurement.samples_per_second = 200 / measurement.median_step_seconds();
  return measurement;
}

Results Of(std::vector<Measurement> measurements) {
  Results results = {.measurements = std::move(measurements)};
  results.noise = PooledDeviation(results);
  return results;
}

TEST(Noise, OfACellIsTheDeviationByTheMedian) {
  EXPECT_FALSE(RelativeDeviation(Repeated({0.1})).has_value());
  EXPECT_FALSE(RelativeDeviation(Failed(Strategy::kHybrid, 2, "lost")).has_value());
  EXPECT_NEAR(*RelativeDeviation(Repeated({0.1, 0.11, 0.12})), 0.01 / 0.11, 1e-12);
}

TEST(Noise, IsPooledOverTheCells) {
  EXPECT_FALSE(PooledDeviation(Of({Repeated({0.1}), Repeated({0.1})})).has_value());
  const Measurement twice = Repeated({0.1, 0.2}), once = Repeated({0.1});
  EXPECT_TRUE(PooledDeviation(Of({twice, twice})).has_value());
  EXPECT_FALSE(PooledDeviation(Of({twice, twice, once})).has_value()) << "two do not speak for others";
  EXPECT_TRUE(PooledDeviation(Of({twice, twice, twice, once})).has_value());
  EXPECT_NEAR(*Of({Repeated({0.99, 1, 1.01}), Repeated({0.98, 1, 1.02}), Repeated({0.5})}).noise,
              std::sqrt((1e-4 + 4e-4) / 2), 1e-12);
}

// One repetition in which the machine did something else, of one cell of six.
TEST(Noise, OneHiccupDoesNotMakeEverythingAboutEqual) {
  std::vector<Measurement> quiet(5, Repeated({0.99, 1, 1.01}));
  Results results = Of(quiet);
  EXPECT_NEAR(*results.noise, 0.01, 1e-12);
  quiet.push_back(Repeated({1.8, 1.82, 5}));
  results = Of(quiet);
  EXPECT_LT(*results.noise, 0.02);
  const Noise noise(results);
  EXPECT_TRUE(noise.TellsApart(results.measurements[0], results.measurements[5]));
  EXPECT_TRUE(noise.SticksOut(results.measurements[5]));
  EXPECT_FALSE(noise.SticksOut(results.measurements[0]));
}

// Whose median is chance, too.
TEST(Noise, OfACellThatIsNoisyThroughoutCountsItsOwn) {
  std::vector<Measurement> cells(5, Repeated({0.99, 1, 1.01}));
  cells.push_back(Repeated({1, 1.5, 3}));
  const Results results = Of(cells);
  const Noise noise(results);
  EXPECT_FALSE(noise.TellsApart(results.measurements[0], results.measurements[5])) << noise.Of(cells[5]);
}

}  // namespace
}  // namespace muster::bench
