#include "launcher/bench/ranking.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace muster::bench {
namespace {

bool HasReachedTarget(const Measurement& measurement) {
  return measurement.seconds_to_target && std::isfinite(*measurement.seconds_to_target);
}

void Rank(const Noise& noise, Ranking* ranking) {
  std::stable_sort(ranking->all.begin(), ranking->all.end(), [](const auto* a, const auto* b) {
    return a->samples_per_second > b->samples_per_second;
  });
  for (const Measurement* measurement : ranking->all) {
    if (!noise.TellsApart(*ranking->all.front(), *measurement)) ranking->best.push_back(measurement);
    if (HasReachedTarget(*measurement)) ranking->reached.push_back(measurement);
  }
  std::stable_sort(ranking->reached.begin(), ranking->reached.end(), [](const auto* a, const auto* b) {
    return *a->seconds_to_target < *b->seconds_to_target;
  });
  for (const Measurement* measurement : ranking->reached) {
    if (IsAsEarly(*ranking->reached.front(), *measurement, noise)) ranking->first.push_back(measurement);
  }
}

}  // namespace

std::string NameOf(const Measurement* measurement) { return CompetitorName(measurement->cell); }

std::vector<std::string> NamesOf(const Measurements& measurements) {
  std::vector<std::string> names;
  for (const Measurement* measurement : measurements) names.push_back(NameOf(measurement));
  return names;
}

std::vector<Ranking> RankingsOf(const Group& group, const Noise& noise) {
  std::map<int, Ranking> by_workers;
  for (const Measurement* measurement : group.measurements) {
    Ranking& ranking = by_workers[measurement->cell.workers];
    ranking.workers = measurement->cell.workers;
    if (HasNumbers(*measurement)) ranking.all.push_back(measurement);
  }
  std::vector<Ranking> rankings;
  for (auto& [workers, ranking] : by_workers) {
    Rank(noise, &ranking);
    rankings.push_back(std::move(ranking));
  }
  return rankings;
}

bool IsAsEarly(const Measurement& first, const Measurement& other, const Noise& noise) {
  const double later = *other.seconds_to_target - *first.seconds_to_target;
  return later <= std::max(other.target_gap_seconds, ChanceSeconds(first, other, noise));
}

double ChanceSeconds(const Measurement& first, const Measurement& other, const Noise& noise) {
  return noise.Between(first, other) * *first.seconds_to_target;
}

const Measurement* MostAccurate(const Ranking& ranking) {
  const Measurement* most = nullptr;
  for (const Measurement* measurement : ranking.all) {
    if (!measurement->test_accuracy) continue;
    if (most == nullptr || *measurement->test_accuracy > *most->test_accuracy) most = measurement;
  }
  return most;
}

std::string RatioText(const Measurement* faster, const Measurement* slower) {
  return AmountText(faster->samples_per_second / slower->samples_per_second);
}

}  // namespace muster::bench
