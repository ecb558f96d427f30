// Ranking: who was fastest with one number of workers, and who was first to the accuracy asked for.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/noise.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {

inline constexpr double kAccuracyGap = 0.01;  // that is worth a word

/// Of one group. Point into the results.
using Measurements = std::vector<const Measurement*>;

std::string NameOf(const Measurement* measurement);
std::vector<std::string> NamesOf(const Measurements& measurements);

/// What one number of workers gave.
struct Ranking {
  int workers = 0;
  Measurements all;      // that have numbers, the fastest first
  Measurements best;     // of them, those that are about equal to the first
  Measurements reached;  // of all, those that reached the accuracy asked for, the first of them first
  Measurements first;    // of reached, those that were there at about the same time as the first
};

/// By number of workers.
std::vector<Ranking> RankingsOf(const Group& group, const Noise& noise);

/// Of two that reached the target. `other` was there before `first`, or later by no more than chance may
/// explain, or by no more than has passed since it was evaluated before.
bool IsAsEarly(const Measurement& first, const Measurement& other, const Noise& noise);

/// By how much later than `first` the other one may have been there by chance.
double ChanceSeconds(const Measurement& first, const Measurement& other, const Noise& noise);

/// nullptr: of nobody is it known.
const Measurement* MostAccurate(const Ranking& ranking);

/// "1.43": by their samples/s.
std::string RatioText(const Measurement* faster, const Measurement* slower);

}  // namespace muster::bench
