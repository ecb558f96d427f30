// For tests: a gradient against differences of the loss.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "trainer/models/reference_model.h"

namespace muster {

/// At `count` random parameters in [-1, 1), rows included: the gradient of the reference is that of its loss.
inline void ExpectGradientOfLoss(const ReferenceModel& reference, int64_t count, const Batch& batch) {
  std::vector<double> parameters(count);
  RandomStream random(2);
  for (double& value : parameters) value = 2 * random.NextDouble() - 1;
  const std::vector<double> gradient = reference.ForwardBackward(parameters, batch).gradient;
  double largest = 0;
  for (const double value : gradient) largest = std::max(largest, std::abs(value));
  // A central difference is off by the step's square, and by the rounding of a loss of order one divided by
  // the step: both below 1e-9. What is asked for leaves room for third derivatives up to a thousand.
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double saved = parameters[i];
    parameters[i] = saved + kStep;
    const double above = reference.TrainingLoss(parameters, batch);
    parameters[i] = saved - kStep;
    const double below = reference.TrainingLoss(parameters, batch);
    parameters[i] = saved;
    ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-6 * largest) << i;
  }
}

}  // namespace muster
