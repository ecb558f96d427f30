#include "launcher/bench/advice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "launcher/bench/noise.h"
#include "launcher/bench/outlook.h"
#include "launcher/bench/ranking.h"
#include "launcher/bench/recommendation.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

std::string FastestSentence(const Ranking& ranking, const Noise& noise) {
  const std::string with = "With " + WorkersText(ranking.workers) + " ";
  if (ranking.all.empty()) return with + "nothing has numbers.";
  const Measurement* const first = ranking.all.front();
  const std::string rate = AmountText(first->samples_per_second) + " samples/s";
  if (ranking.all.size() == 1) return with + "only " + NameOf(first) + " has numbers: " + rate + ".";
  const auto is_best = [&](const Measurement* of) { return std::ranges::count(ranking.best, of) > 0; };
  const auto behind = std::ranges::find_if_not(ranking.all, is_best);
  const bool has_next = behind != ranking.all.end();
  const Measurement* const next = has_next ? *behind : nullptr;
  if (ranking.best.size() == 1) {
    return with + NameOf(first) + " was fastest: " + rate + ", " + RatioText(first, next) + " times " +
           NameOf(next) + ".";
  }
  const Measurement* const last = ranking.best.back();
  std::string text = with + ListText(NamesOf(ranking.best)) + " were about equal: " + rate;
  text += " and " + PercentText(1 - last->samples_per_second / first->samples_per_second) + " less";
  // By how much the first may be ahead, as the others are behind.
  const double chance = noise.Between(*first, *last);
  text += noise.is_known() ? " (up to " + PercentText(chance / (1 + chance)) + " may be chance)" : "";
  return text +
         (has_next ? "; then came " + NameOf(next) + ", " + RatioText(first, next) + " times slower" : "") +
         ".";
}

// "allreduce 74 %, ps_sync (k = 2, own hosts) 52 %" of those of which there is something to say, in their
// order.
std::string Shares(const Measurements& measurements,
                   const std::function<std::string(const Measurement&)>& share) {
  std::string text;
  for (const Measurement* measurement : measurements) {
    const std::string said = share(*measurement);
    if (!said.empty()) text += (text.empty() ? "" : ", ") + NameOf(measurement) + " " + said;
  }
  return text;
}

// A step overlaps communication and computing: where the bytes need more than what is not computing, that is
// no share. Asynchronous workers communicate in cycles of their own, which are not the bound's.
std::string BoundShare(const Measurement& measurement) {
  const std::optional<double> share = BoundFraction(measurement);
  if (!share) return "";
  const double communication = measurement.communication_seconds.value_or(0);
  const bool has_part =
      measurement.cell.strategy != Strategy::kAsyncServers && communication >= measurement.bound_step_seconds;
  return PercentText(*share) + " of a step" +
         (has_part
              ? " (" + PercentText(measurement.bound_step_seconds / communication) + " of its communication)"
              : "");
}

std::string BoundSentence(const Group& group, const Ranking& largest) {
  const auto source = std::ranges::find_if(
      group.measurements, [](const Measurement* measurement) { return GaveTheRate(*measurement); });
  std::string rate;
  if (source != group.measurements.end()) {
    rate = "carry " + RateText(*(*source)->bound_link_bytes_per_second) + " by what " + NameOf(*source) +
           " with " + WorkersText((*source)->cell.workers) + " took";
  }
  const std::string shares = Shares(largest.all, BoundShare);
  if (!shares.empty()) {
    return "Least time on the links" + (rate.empty() ? "" : ", which " + rate + ",") + " with " +
           WorkersText(largest.workers) + ": " + shares + ".";
  }
  if (!rate.empty()) return "The links " + rate + ": how near that is to their bound is not known.";
  return group.link_bytes_per_second > 0 ? "" : "No bound is known: the rate of the links is not.";
}

std::string ScalingSentence(const Ranking& largest) {
  const std::string shares = Shares(largest.all, [](const Measurement& measurement) {
    return measurement.scaling_efficiency > 0 ? PercentText(measurement.scaling_efficiency) : "";
  });
  if (shares.empty() || largest.workers == 1) return "";
  return "Scaling efficiency with " + WorkersText(largest.workers) + ": " + shares + ".";
}

std::string AccuracySentence(const Ranking& ranking) {
  const Measurement* const most = MostAccurate(ranking);
  const Measurement* const first = ranking.all.front();
  if (most == nullptr || !first->test_accuracy ||
      *most->test_accuracy - *first->test_accuracy < kAccuracyGap) {
    return "";
  }
  return absl::StrFormat("The fastest with %s, %s, ended at a test accuracy of %.3f; %s reached %.3f.",
                         WorkersText(ranking.workers), NameOf(first), *first->test_accuracy, NameOf(most),
                         *most->test_accuracy);
}

std::string TargetSentence(const Ranking& ranking, double target) {
  std::vector<std::string> times, missed, unknown;
  for (const Measurement* measurement : ranking.reached) {
    times.push_back(NameOf(measurement) + " in " + SecondsText(*measurement->seconds_to_target));
  }
  for (const Measurement* measurement : ranking.all) {
    if (std::ranges::count(ranking.reached, measurement) > 0) continue;
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

// Servers move to the workers' hosts where there are no more hosts.
std::vector<std::string> PlaceSentences(const Group& group) {
  struct Places {
    std::set<int> own, shared;  // numbers of workers
  };
  std::map<int, Places> by_servers;
  for (const Measurement* measurement : group.measurements) {
    const Cell& cell = measurement->cell;
    if (!UsesServers(cell.strategy)) continue;
    Places& places = by_servers[cell.servers];
    (cell.servers_on_workers ? places.shared : places.own).insert(cell.workers);
  }
  const auto with = [](const std::set<int>& workers) {
    std::vector<std::string> numbers;
    for (const int number : workers) numbers.push_back(std::to_string(number));
    return ListText(numbers) + (*workers.rbegin() == 1 ? " worker" : " workers");
  };
  std::vector<std::string> sentences;
  for (const auto& [servers, places] : by_servers) {
    if (places.own.empty() || places.shared.empty()) continue;
    sentences.push_back(
        absl::StrFormat("Servers (k = %d) have hosts of their own with %s, and are on the workers' hosts "
                        "with %s: part of the difference between these is their place.",
                        servers, with(places.own), with(places.shared)));
  }
  return sentences;
}

// What a calibration would need (prediction.h), where its lack keeps predictions from being made.
std::string MissingPredictionsSentence(const Results& results, const Group& group) {
  const auto has = [&](const std::function<bool(const Cell&)>& fits) {
    return std::any_of(group.measurements.begin(), group.measurements.end(),
                       [&](const Measurement* of) { return HasNumbers(*of) && fits(of->cell); });
  };
  if (HasTables(group.model)) {
    return "Models with tables are not predicted: what their rows cost comes and goes with the batch.";
  }
  for (const Unpredicted& of : results.unpredicted) {
    const bool is_it = of.model == group.model && of.link_bytes_per_second == group.link_bytes_per_second;
    if (is_it) return "Nothing is predicted: " + of.why + ".";
  }
  const auto is_ring = [](const Cell& cell) { return cell.strategy == Strategy::kAllReduce; };
  std::vector<std::string> missing;
  if (!results.compute_seconds_per_step &&
      !has([&](const Cell& cell) { return is_ring(cell) && cell.workers == 1; })) {
    missing.push_back("allreduce with 1 worker");
  }
  if (!has([&](const Cell& cell) { return is_ring(cell) && cell.workers > 1; })) {
    missing.push_back("allreduce with 2 or more workers");
  }
  const std::string would_need = " predicted: the simulator would need numbers of ";
  if (!missing.empty()) return "Nothing is" + would_need + ListText(missing) + ".";
  if (has([](const Cell& cell) { return UsesServers(cell.strategy); }) &&
      !has([](const Cell& cell) { return cell.strategy == Strategy::kSyncServers; })) {
    return "Parameter servers are not" + would_need + "ps_sync.";
  }
  return "";
}

// Predict makes no curves then.
std::string MisfitSentence(const Group& group) {
  for (const Measurement* measurement : group.measurements) {
    const double error = std::abs(PredictionError(*measurement).value_or(0));
    if (!measurement->is_fitted || error <= kMostMisfit) continue;
    return absl::StrFormat(
        "The simulator does not fit what it was calibrated with: of %s with %s it is off by %s. So its "
        "curves are left out.",
        NameOf(measurement), WorkersText(measurement->cell.workers), PercentText(error));
  }
  return "";
}

std::string PredictionErrorSentence(const Group& group) {
  const std::vector<double> errors = PredictionErrors(group);
  if (errors.empty()) {
    return group.curves.empty()
               ? ""
               : "How far the simulator's predictions are off is not known: it was calibrated "
                 "with all cells that it could be compared with.";
  }
  if (errors.size() == 1) {
    return "The simulator's prediction was off by " + PercentText(errors[0]) + ", of 1 cell.";
  }
  const auto [least, most] = std::minmax_element(errors.begin(), errors.end());
  return absl::StrFormat(
      "The simulator's predictions were off by %s in the median, from %s to %s, of %d cells.",
      PercentText(MedianOf(errors)), PercentText(*least), PercentText(*most), errors.size());
}

std::string LatencySentence(const Results& results, const Group& group) {
  if (const auto latency = LatencyOf(results, group)) {
    return "Latency from one host to another: " + SecondsText(*latency) +
           (group.curves.empty() ? "." : ", which the curves include.");
  }
  return group.curves.empty() ? ""
                              : "The latency of the links is not known: of many workers in a ring the curves "
                                "promise too much.";
}

GroupAdvice AdviceOn(const Results& results, const Group& group) {
  const Noise noise(results);
  const std::vector<Ranking> rankings = RankingsOf(group, noise);
  const std::vector<const Ranking*> compared = ComparedOf(rankings);
  Outlook outlook;
  if (!compared.empty()) {
    outlook = OutlookOf(group, NamesOf(compared.back()->best), compared.back()->workers);
  }
  outlook.faster_than_one = FasterThanOneOf(group);
  GroupAdvice advice = {.title = GroupName(group),
                        .recommendation = Recommendation(results, rankings, compared, outlook, noise)};
  const auto say = [&](const std::string& sentence) {
    if (!sentence.empty()) advice.sentences.push_back(sentence);
  };
  for (const Ranking& ranking : rankings) say(FastestSentence(ranking, noise));
  const auto largest = std::find_if(rankings.rbegin(), rankings.rend(),
                                    [](const Ranking& ranking) { return !ranking.all.empty(); });
  if (largest != rankings.rend()) {
    say(ScalingSentence(*largest));
    say(BoundSentence(group, *largest));
    if (results.target_accuracy) say(TargetSentence(*largest, *results.target_accuracy));
    // Else the headline says it of what it names.
    if (GoesByTarget(compared)) say(AccuracySentence(*largest));
    for (const std::string& sentence : PlaceSentences(group)) say(sentence);
    say(MissingPredictionsSentence(results, group));
  }
  say(OutlookSentence(outlook));
  say(MisfitSentence(group));
  say(PredictionErrorSentence(group));
  say(LatencySentence(results, group));
  return advice;
}

// "2 of 5 cells have" with `were` "have" and `was` "has".
std::string CountText(size_t count, size_t total, const char* was, const char* were) {
  return absl::StrFormat("%d of %d %s %s", count, total, total == 1 ? "cell" : "cells",
                         count == 1 ? was : were);
}

// Of the cell whose repetitions differ most, where that is much.
std::string NoisiestCaution(const Results& results, const Noise& noise) {
  constexpr double kMuch = 0.1;
  const Measurement* noisiest = nullptr;
  for (const Measurement& of : results.measurements) {
    const double most = noisiest == nullptr ? -1 : RelativeDeviation(*noisiest).value_or(-1);
    if (RelativeDeviation(of).value_or(-1) > most) noisiest = &of;
  }
  if (noisiest == nullptr || !noise.is_known()) return "";
  if (*results.noise <= kMuch && !noise.SticksOut(*noisiest)) return "";
  return absl::StrFormat(
      "Repetitions differ by %s (standard deviation), those of %s with %s, %s over %s, by %s: what is said "
      "of it may be chance, and more repetitions would tell.",
      PercentText(*results.noise), NameOf(noisiest), WorkersText(noisiest->cell.workers),
      OneLine(noisiest->cell.model), LinkText(noisiest->cell.link_bytes_per_second),
      PercentText(*RelativeDeviation(*noisiest)));
}

std::vector<std::string> CautionsOf(const Results& results) {
  std::vector<std::string> cautions;
  const size_t total = results.measurements.size();
  if (total == 0) cautions.push_back("Nothing was measured.");
  if (!results.unfinished.empty()) {
    cautions.push_back("It did not come to its end (" + OneLine(results.unfinished) +
                       "): cells may lack repetitions, and there are no curves.");
  }
  const Noise noise(results);
  size_t failed = 0, beyond_bound = 0;
  for (const Measurement& measurement : results.measurements) {
    failed += HasNumbers(measurement) ? 0 : 1;
    const std::optional<double> share = BoundFraction(measurement);
    beyond_bound += share && *share > 1 + noise.Of(measurement) ? 1 : 0;
  }
  if (failed > 0) {
    cautions.push_back(CountText(failed, total, "has", "have") +
                       " no numbers: the comparison is weak where they are missing.");
  }
  if (beyond_bound > 0) {
    cautions.push_back(
        CountText(beyond_bound, total, "was", "were") + " faster than " +
        (beyond_bound == 1 ? "its bound" : "their bounds") +
        ". Shaped links let short bursts pass at more than their rate, which is much of a small "
        "model; or a step has fewer bytes than were counted for it; or the links are faster than "
        "they were said, or measured, to be.");
  }
  if (failed < total && !noise.is_known()) {
    cautions.push_back(
        "There are too few repetitions to tell how large the noise is: small differences may be chance.");
  }
  if (const std::string noisiest = NoisiestCaution(results, noise); !noisiest.empty()) {
    cautions.push_back(noisiest);
  }
  if (results.compute_seconds_per_step) {
    cautions.push_back("The computation was a wait of " + SecondsText(*results.compute_seconds_per_step) +
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
