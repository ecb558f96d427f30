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

/// By number of workers. Times to a target are about equal within the noise, or where no evaluation lay
/// between them for certain.
std::vector<Ranking> RankingsOf(const Results& results, const Group& group, const Noise& noise);

/// From one evaluation of a job that times the way to the target to its next; 0: not known.
double EvaluationSeconds(const Results& results, const Measurement& measurement);

/// nullptr: of nobody is it known.
const Measurement* MostAccurate(const Ranking& ranking);

/// "1.43": by their samples/s.
std::string RatioText(const Measurement* faster, const Measurement* slower);

}  // namespace muster::bench
