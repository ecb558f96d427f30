#include "launcher/bench/advice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

// Rates that are shown as 1.00 times each other are not told apart.
constexpr double kLeastNoise = 0.005;
constexpr double kAccuracyGap = 0.01;  // that is worth a sentence

using Measurements = std::vector<const Measurement*>;

std::string NameOf(const Measurement* measurement) { return CompetitorName(measurement->cell); }

std::vector<std::string> NamesOf(const Measurements& measurements) {
  std::vector<std::string> names;
  for (const Measurement* measurement : measurements) names.push_back(NameOf(measurement));
  return names;
}

std::string OrText(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += text.empty() ? name : " or " + name;
  return text;
}

// The noise as a fraction, if it is known.
std::optional<double> NoiseOf(const Results& results) {
  const double noise = results.median_noise.value_or(-1);
  return std::isfinite(noise) && noise >= 0 ? std::optional(noise) : std::nullopt;
}

// Up to which rates are about equal.
double Tolerance(const Results& results) { return std::max(NoiseOf(results).value_or(0), kLeastNoise); }

// What one number of workers gave, the fastest first.
struct Ranking {
  int workers = 0;
  Measurements all;   // that have numbers
  Measurements best;  // those that are about equal to the first of them
  int failed = 0;
};

std::vector<Ranking> RankingsOf(const Group& group, double tolerance) {
  std::map<int, Ranking> by_workers;
  for (const Measurement* measurement : group.measurements) {
    Ranking& ranking = by_workers[measurement->cell.workers];
    ranking.workers = measurement->cell.workers;
    if (HasNumbers(*measurement)) {
      ranking.all.push_back(measurement);
    } else {
      ++ranking.failed;
    }
  }
  std::vector<Ranking> rankings;
  for (auto& [workers, ranking] : by_workers) {
    std::stable_sort(ranking.all.begin(), ranking.all.end(), [](const auto* a, const auto* b) {
      return a->samples_per_second > b->samples_per_second;
    });
    for (const Measurement* measurement : ranking.all) {
      const double ratio = ranking.all.front()->samples_per_second / measurement->samples_per_second;
      if (ratio - 1 <= tolerance) ranking.best.push_back(measurement);
    }
    rankings.push_back(std::move(ranking));
  }
  return rankings;
}

std::string RatioText(const Measurement* faster, const Measurement* slower) {
  return AmountText(faster->samples_per_second / slower->samples_per_second);
}

std::string FastestSentence(const Ranking& ranking, std::optional<double> noise) {
  const std::string with = "With " + WorkersText(ranking.workers) + " ";
  if (ranking.all.empty()) return with + "nothing has numbers.";
  const Measurement* const first = ranking.all.front();
  const std::string rate = AmountText(first->samples_per_second) + " samples/s";
  if (ranking.all.size() == 1) return with + "only " + NameOf(first) + " has numbers: " + rate + ".";
  const bool has_next = ranking.best.size() < ranking.all.size();
  const Measurement* const next = has_next ? ranking.all[ranking.best.size()] : nullptr;
  if (ranking.best.size() == 1) {
    return with + NameOf(first) + " was fastest: " + rate + ", " + RatioText(first, next) + " times " +
           NameOf(next) + ".";
  }
  const Measurement* const last = ranking.best.back();
  std::string text = with + ListText(NamesOf(ranking.best)) + " were about equal: " + rate;
  text += " and " + PercentText(1 - last->samples_per_second / first->samples_per_second) + " less";
  text += noise ? " (noise " + PercentText(*noise) + ")" : "";
  return text +
         (has_next ? "; then came " + NameOf(next) + ", " + RatioText(first, next) + " times slower" : "") +
         ".";
}

// "allreduce 74 %, ps_sync (k = 2, own hosts) 52 %" of those that have one, in their order.
std::string Shares(const Measurements& measurements,
                   const std::function<std::optional<double>(const Measurement&)>& share) {
  std::string text;
  for (const Measurement* measurement : measurements) {
    const std::optional<double> value = share(*measurement);
    if (!value) continue;
    text += (text.empty() ? "" : ", ") + NameOf(measurement) + " " + PercentText(*value);
  }
  return text;
}

std::string AccuracySentence(const Ranking& ranking) {
  const Measurement* most = nullptr;
  for (const Measurement* measurement : ranking.all) {
    if (!measurement->test_accuracy) continue;
    if (most == nullptr || *measurement->test_accuracy > *most->test_accuracy) most = measurement;
  }
  const Measurement* const first = ranking.all.front();
  if (most == nullptr || !first->test_accuracy ||
      *most->test_accuracy - *first->test_accuracy < kAccuracyGap) {
    return "";
  }
  return absl::StrFormat("The fastest with %s, %s, ended at a test accuracy of %.3f; %s reached %.3f.",
                         WorkersText(ranking.workers), NameOf(first), *first->test_accuracy, NameOf(most),
                         *most->test_accuracy);
}

bool HasReachedTarget(const Measurement& measurement) {
  return measurement.seconds_to_target && std::isfinite(*measurement.seconds_to_target);
}

// Those that reached the accuracy asked for, the first of them first.
Measurements ByTimeToTarget(const Ranking& ranking) {
  Measurements reached;
  for (const Measurement* measurement : ranking.all) {
    if (HasReachedTarget(*measurement)) reached.push_back(measurement);
  }
  std::stable_sort(reached.begin(), reached.end(), [](const auto* a, const auto* b) {
    return *a->seconds_to_target < *b->seconds_to_target;
  });
  return reached;
}

std::string TargetSentence(const Ranking& ranking, double target) {
  const Measurements reached = ByTimeToTarget(ranking);
  std::vector<std::string> times, missed, unknown;
  for (const Measurement* measurement : reached) {
    times.push_back(NameOf(measurement) + " in " + SecondsText(*measurement->seconds_to_target));
  }
  for (const Measurement* measurement : ranking.all) {
    if (HasReachedTarget(*measurement)) continue;
    (measurement->target_error.empty() ? missed : unknown).push_back(NameOf(measurement));
  }
  const std::string workers = WorkersText(ranking.workers);
  if (times.empty() && missed.empty()) {
    return absl::StrFormat("With %s it is not known who reaches a test accuracy of %.3g.", workers, target);
  }
  std::string text = absl::StrFormat("With %s a test accuracy of %.3g was reached by ", workers, target);
  text += times.empty() ? "none" : ListText(times);
  if (!times.empty() && !missed.empty()) text += ", and not by " + ListText(missed);
  if (!unknown.empty()) text += "; of " + ListText(unknown) + " it is not known";
  return text + ".";
}

// What was about fastest at each number of workers; empty: there is no such.
std::vector<std::string> AlwaysBest(const std::vector<const Ranking*>& rankings) {
  std::vector<std::string> names = NamesOf(rankings.front()->best);
  for (const Ranking* ranking : rankings) {
    const std::vector<std::string> others = NamesOf(ranking->best);
    std::erase_if(names, [&](const std::string& name) {
      return std::find(others.begin(), others.end(), name) == others.end();
    });
  }
  return names;
}

// The first change of what is fastest that is predicted beyond what was measured.
std::string CrossingClause(const Group& group, const Ranking& largest) {
  const Crossing* first = nullptr;
  const std::vector<std::string> best = NamesOf(largest.best);
  for (const Crossing* crossing : group.crossings) {
    if (crossing->slower.workers <= largest.workers) continue;
    if (std::find(best.begin(), best.end(), CompetitorName(crossing->slower)) == best.end()) continue;
    if (first == nullptr || crossing->slower.workers < first->slower.workers) first = crossing;
  }
  if (first == nullptr) return "";
  return absl::StrFormat("; from %s on the simulator expects %s to be faster than %s",
                         WorkersText(first->slower.workers), CompetitorName(first->faster),
                         CompetitorName(first->slower));
}

std::string TargetClause(const Ranking& largest) {
  const Measurements reached = ByTimeToTarget(largest);
  if (reached.empty() || NameOf(reached.front()) == NameOf(largest.all.front())) return "";
  return "; to the accuracy asked for " + NameOf(reached.front()) + " was first";
}

// Where the exchange costs more than further workers bring.
std::string AloneClause(const std::vector<Ranking>& rankings, double tolerance) {
  if (rankings.front().workers != 1 || rankings.front().all.empty()) return "";
  const double alone = rankings.front().all.front()->samples_per_second;
  bool has_more = false;
  for (size_t i = 1; i < rankings.size(); ++i) {
    if (rankings[i].all.empty()) continue;
    has_more = true;
    if (rankings[i].all.front()->samples_per_second > alone * (1 + tolerance)) return "";
  }
  return has_more ? "; but no larger number of workers was faster than 1 alone: " + AmountText(alone) +
                        " samples/s"
                  : "";
}

std::string Recommendation(const Group& group, const std::vector<Ranking>& rankings, double tolerance) {
  std::set<std::string> competitors;
  std::vector<const Ranking*> compared;  // numbers of workers with a choice
  for (const Ranking& ranking : rankings) {
    for (const std::string& name : NamesOf(ranking.all)) competitors.insert(name);
    if (ranking.all.size() > 1) compared.push_back(&ranking);
  }
  if (competitors.empty()) return "None: no cell has numbers.";
  if (competitors.size() == 1) return "None: only " + *competitors.begin() + " has numbers.";
  if (compared.empty()) return "None: no two have numbers for the same number of workers.";
  // One worker alone has nobody to exchange with: it decides only where nothing else was compared.
  if (compared.size() > 1 && compared.front()->workers == 1) compared.erase(compared.begin());

  const Ranking& largest = *compared.back();
  const std::string clauses =
      TargetClause(largest) + CrossingClause(group, largest) + AloneClause(rankings, tolerance) + ".";
  const std::vector<std::string> always = AlwaysBest(compared);
  if (!always.empty()) {
    std::vector<std::string> numbers;
    for (const Ranking* ranking : compared) numbers.push_back(std::to_string(ranking->workers));
    return "Use " + OrText(always) + " (compared at " + ListText(numbers) +
           (numbers.back() == "1" ? " worker)" : " workers)") + clauses;
  }
  std::string text;
  for (const Ranking* ranking : compared) {
    text += (text.empty() ? "With " : "; with ") + WorkersText(ranking->workers) + " use " +
            OrText(NamesOf(ranking->best));
  }
  return text + clauses;
}

std::string LatencySentence(const Results& results, const Group& group) {
  if (const auto latency = LatencyOf(results, group)) {
    return "A byte is on its way from one host to another for " + SecondsText(*latency) +
           (group.curves.empty() ? "." : ", which the curves count.");
  }
  return group.curves.empty() ? ""
                              : "The latency of the links is not known: of many workers in a ring the curves "
                                "promise too much.";
}

GroupAdvice AdviceOn(const Results& results, const Group& group) {
  const double tolerance = Tolerance(results);
  const std::vector<Ranking> rankings = RankingsOf(group, tolerance);
  GroupAdvice advice = {.title = GroupName(group),
                        .recommendation = Recommendation(group, rankings, tolerance)};
  const auto say = [&](const std::string& sentence) {
    if (!sentence.empty()) advice.sentences.push_back(sentence);
  };
  for (const Ranking& ranking : rankings) say(FastestSentence(ranking, NoiseOf(results)));
  const auto largest = std::find_if(rankings.rbegin(), rankings.rend(),
                                    [](const Ranking& ranking) { return !ranking.all.empty(); });
  if (largest != rankings.rend()) {
    const std::string with = " with " + WorkersText(largest->workers) + ": ";
    const std::string scaling = Shares(largest->all, [](const Measurement& measurement) {
      return measurement.scaling_efficiency > 0 ? std::optional(measurement.scaling_efficiency)
                                                : std::nullopt;
    });
    if (!scaling.empty() && largest->workers > 1) say("Scaling efficiency" + with + scaling + ".");
    const std::string bounds = Shares(largest->all, BoundFraction);
    say(bounds.empty() ? "No bound is known: the rate of the links is not."
                       : "Of what the links allow" + with + bounds + ".");
    if (results.target_accuracy) say(TargetSentence(*largest, *results.target_accuracy));
    say(AccuracySentence(*largest));
  }
  say(LatencySentence(results, group));
  for (const Crossing* crossing : group.crossings) {
    say(absl::StrFormat("The simulator predicts that from %s on %s is faster than %s.",
                        WorkersText(crossing->slower.workers), CompetitorName(crossing->faster),
                        CompetitorName(crossing->slower)));
  }
  return advice;
}

// "2 of 5 cells have" with `were` "have" and `was` "has".
std::string CountText(size_t count, size_t total, const char* was, const char* were) {
  return absl::StrFormat("%d of %d %s %s", count, total, total == 1 ? "cell" : "cells",
                         count == 1 ? was : were);
}

void CautionAboutSimulator(const Results& results, std::vector<std::string>* cautions) {
  const bool has_predictions = !results.curves.empty() || !results.crossings.empty();
  if (!results.median_prediction_error) {
    if (has_predictions) cautions->push_back("How far the simulator is off was not measured.");
    return;
  }
  const double error = *results.median_prediction_error;
  if (const std::optional<double> noise = NoiseOf(results); noise && error > *noise) {
    cautions->push_back(
        absl::StrFormat("The median error of the predictions, %s, is larger than the noise, %s: what the "
                        "simulator says is weak.",
                        PercentText(error), PercentText(*noise)));
  }
}

std::vector<std::string> CautionsOf(const Results& results) {
  std::vector<std::string> cautions;
  const size_t total = results.measurements.size();
  if (total == 0) cautions.push_back("Nothing was measured.");
  size_t failed = 0, beyond_bound = 0;
  for (const Measurement& measurement : results.measurements) {
    failed += HasNumbers(measurement) ? 0 : 1;
    beyond_bound += BoundFraction(measurement).value_or(0) > 1 + Tolerance(results) ? 1 : 0;
  }
  if (failed > 0) {
    cautions.push_back(CountText(failed, total, "has", "have") +
                       " no numbers: the comparison is weak where they are missing.");
  }
  if (beyond_bound > 0) {
    cautions.push_back(CountText(beyond_bound, total, "was", "were") +
                       " faster than the bound: the links are not as slow as they were said to be.");
  }
  if (failed < total && !NoiseOf(results)) {
    cautions.push_back("The noise was not measured: small differences may be chance.");
  }
  CautionAboutSimulator(results, &cautions);
  if (results.compute_seconds_per_step > 0) {
    cautions.push_back("The computation was a wait of " + SecondsText(results.compute_seconds_per_step) +
                       " a step: this compares the exchange of gradients, not the training.");
  }
  return cautions;
}

}  // namespace

Advice MakeAdvice(const Results& results) {
  Advice advice = {.cautions = CautionsOf(results)};
  for (const Group& group : GroupsOf(results)) advice.groups.push_back(AdviceOn(results, group));
  return advice;
}

std::string ToText(const Advice& advice) {
  std::string text;
  for (const GroupAdvice& group : advice.groups) {
    text += OneLine(group.title) + "\n  " + group.recommendation + "\n";
    for (const std::string& sentence : group.sentences) text += "  - " + sentence + "\n";
  }
  for (const std::string& caution : advice.cautions) text += "Caution: " + caution + "\n";
  return text;
}

}  // namespace muster::bench
