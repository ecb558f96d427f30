#include "launcher/bench/recommendation.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>
#include <set>

namespace muster::bench {
namespace {

// Of a ranking, those that are recommended.
using Chosen = Measurements Ranking::*;

std::vector<std::string> PlacelessNames(const Measurements& measurements) {
  std::vector<std::string> names;
  for (const Measurement* of : measurements) names.push_back(PlacelessName(of->cell));
  return names;
}

bool HasPlaceless(const std::vector<std::string>& names, const Measurement* of) {
  return std::ranges::count(names, PlacelessName(of->cell)) > 0;
}

// What was about first at each number of workers, wherever its servers had to be, if any of it was the very
// first at one; empty: there is no such.
std::vector<std::string> AlwaysBest(const std::vector<const Ranking*>& rankings, Chosen chosen) {
  std::vector<std::string> names = PlacelessNames(rankings.front()->*chosen);
  for (const Ranking* ranking : rankings) names = Common(std::move(names), PlacelessNames(ranking->*chosen));
  const auto has_front = [&](const Ranking* ranking) {
    return HasPlaceless(names, (ranking->*chosen).front());
  };
  return std::ranges::any_of(rankings, has_front) ? names : std::vector<std::string>();
}

// Without the place, where that differs from one number of workers to another.
std::string NameWithPlace(const std::vector<const Ranking*>& rankings, Chosen chosen,
                          const std::string& placeless) {
  std::set<std::string> names;
  for (const Ranking* ranking : rankings) {
    for (const Measurement* of : ranking->*chosen) {
      if (PlacelessName(of->cell) == placeless) names.insert(NameOf(of));
    }
  }
  return names.size() == 1 ? *names.begin() : placeless;
}

// "use allreduce (compared at 2 and 4 workers)"
std::string Choice(const std::vector<const Ranking*>& compared, Chosen chosen) {
  std::vector<std::string> numbers;
  std::string by_number;
  for (const Ranking* ranking : compared) {
    numbers.push_back(std::to_string(ranking->workers));
    by_number += (by_number.empty() ? "with " : "; with ") + WorkersText(ranking->workers) + " use " +
                 absl::StrJoin(NamesOf(ranking->*chosen), " or ");
  }
  std::vector<std::string> always;
  for (const std::string& name : AlwaysBest(compared, chosen)) {
    always.push_back(NameWithPlace(compared, chosen, name));
  }
  if (always.empty()) return by_number;
  return "use " + absl::StrJoin(always, " or ") + " (compared at " + ListText(numbers) +
         (numbers.back() == "1" ? " worker)" : " workers)");
}

// Where what is recommended by its speed learned less than others.
std::string AccuracyClause(const std::vector<const Ranking*>& compared) {
  const std::vector<std::string> always = AlwaysBest(compared, &Ranking::best);
  for (auto ranking = compared.rbegin(); ranking != compared.rend(); ++ranking) {
    const Measurement* const most = MostAccurate(**ranking);
    std::vector<std::string> less;
    for (const Measurement* of : (*ranking)->best) {
      const bool is_named = always.empty() || HasPlaceless(always, of);
      if (!is_named || most == nullptr || !of->test_accuracy) continue;
      if (*most->test_accuracy - *of->test_accuracy < kAccuracyGap) continue;
      less.push_back(absl::StrFormat(
          "%s %s %.3f", NameOf(of), less.empty() ? "ended at a test accuracy of" : "of", *of->test_accuracy));
    }
    if (less.empty()) continue;
    return absl::StrFormat("; but with %s %s, where %s reached %.3f", WorkersText((*ranking)->workers),
                           ListText(less), NameOf(most), *most->test_accuracy);
  }
  return "";
}

// Of the one that was fastest, where it was not among the first. `named`: that is recommended.
std::string FastestClause(const Ranking& ranking, const Measurement* named) {
  const Measurement* const fastest = ranking.all.front();
  if (std::ranges::count(ranking.first, fastest) > 0) return "";
  const bool has_reached = std::ranges::count(ranking.reached, fastest) > 0;
  return absl::StrFormat(
      "; %s made %s times as many samples/s%s", NameOf(fastest), RatioText(fastest, named),
      has_reached ? " and was there after " + SecondsText(*fastest->seconds_to_target)
                  : std::string(fastest->target_error.empty() ? " and did not get there"
                                                              : "; whether it gets there is not known"));
}

// By the time to the accuracy that was asked for, which somebody reached.
std::string ChoiceByTarget(std::vector<const Ranking*> compared, double target) {
  std::erase_if(compared, [](const Ranking* ranking) { return ranking->reached.empty(); });
  const Ranking& largest = *compared.back();
  const std::vector<std::string> always = AlwaysBest(compared, &Ranking::first);
  const auto is_named = [&](const Measurement* of) { return HasPlaceless(always, of); };
  const auto found = std::ranges::find_if(largest.first, is_named);
  const Measurement* const named = found != largest.first.end() ? *found : largest.first.front();
  const Measurement* const front = largest.reached.front();
  return Choice(compared, &Ranking::first) +
         absl::StrFormat(": %s to a test accuracy of %.3g, with %s in %s",
                         named == front ? "first" : "about first", target, WorkersText(largest.workers),
                         SecondsText(*named->seconds_to_target)) +
         (named == front ? ""
                         : " (" + NameOf(front) + " in " + SecondsText(*front->seconds_to_target) + ")") +
         FastestClause(largest, named);
}

// Whether more workers than one are worth it.
struct Alone {
  std::string doubt;      // a sentence; empty: they are, or it is not known
  const char* then = "";  // before what is recommended all the same
};

const Measurement* FirstOf(const Measurements& all) { return all.empty() ? nullptr : all.front(); }

Measurements OfMoreWorkers(const std::vector<Ranking>& rankings, Chosen chosen) {
  Measurements all;
  for (size_t i = 1; i < rankings.size(); ++i) {
    const Measurements& some = rankings[i].*chosen;
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// "2 or 4 workers": that were tried besides one.
std::string MoreWorkers(const std::vector<Ranking>& rankings) {
  std::vector<std::string> numbers;
  for (size_t i = 1; i < rankings.size(); ++i) {
    if (!rankings[i].all.empty()) numbers.push_back(std::to_string(rankings[i].workers));
  }
  return absl::StrJoin(numbers, " or ") + " workers";
}

Alone DoNot(const std::vector<Ranking>& rankings, const std::string& numbers) {
  return {.doubt = "Do not distribute to " + MoreWorkers(rankings) + ": " + numbers + ".",
          .then = " If you have to, "};
}

Alone CannotBeTold(const std::vector<Ranking>& rankings, const std::string& numbers) {
  return {.doubt = "Whether to distribute to " + MoreWorkers(rankings) + " cannot be told: " + numbers + ".",
          .then = " If you do, "};
}

// Where the exchange costs more than further workers bring.
Alone AloneBySpeed(const std::vector<Ranking>& rankings, const Outlook& outlook, const Noise& noise) {
  const Measurement* const alone = FirstOf(rankings.front().all);
  const Measurements more = OfMoreWorkers(rankings, &Ranking::all);
  if (alone == nullptr || more.empty()) return {};
  // It need not be the fastest, whose repetitions may differ more.
  const auto is_faster = [&](const Measurement* of) { return noise.TellsApart(*of, *alone); };
  if (std::ranges::any_of(more, is_faster)) return {};
  const Measurement* const best = *std::ranges::max_element(more, {}, &Measurement::samples_per_second);
  const double ahead = best->samples_per_second / alone->samples_per_second - 1;
  const std::string numbers = absl::StrFormat(
      "1 worker made %s samples/s, the best of %s, %s, %s", AmountText(alone->samples_per_second),
      WorkersText(best->cell.workers), NameOf(best), AmountText(best->samples_per_second));
  const std::string beyond = FasterThanOneClause(outlook);
  if (ahead <= kLeastNoise) return DoNot(rankings, numbers + beyond);
  return CannotBeTold(rankings, numbers + ", " + PercentText(ahead) + " more, where up to " +
                                    PercentText(noise.Between(*best, *alone)) + " may be chance" + beyond);
}

// The same by the time to the accuracy asked for. Unset: nobody reached it.
std::optional<Alone> AloneByTarget(const std::vector<Ranking>& rankings, double target, const Noise& noise) {
  const Measurement* const alone = FirstOf(rankings.front().reached);
  const Measurements more = OfMoreWorkers(rankings, &Ranking::reached);
  if (alone == nullptr) return more.empty() ? std::nullopt : std::optional(Alone{});
  const std::string there = absl::StrFormat("1 worker had a test accuracy of %.3g after %s", target,
                                            SecondsText(*alone->seconds_to_target));
  if (more.empty()) {
    const Measurements tried = OfMoreWorkers(rankings, &Ranking::all);
    if (tried.empty()) return Alone{};
    const std::string none = there + "; of more workers none is known to have";
    const auto is_known = [](const Measurement* of) { return of->target_error.empty(); };
    return std::ranges::all_of(tried, is_known) ? DoNot(rankings, none) : CannotBeTold(rankings, none);
  }
  const auto is_earlier = [&](const Measurement* of) { return !IsAsEarly(*of, *alone, noise); };
  if (std::ranges::any_of(more, is_earlier)) return Alone{};
  const Measurement* const best = *std::ranges::min_element(more, {}, &Measurement::seconds_to_target);
  const std::string numbers = there + ", the best of " + WorkersText(best->cell.workers) + ", " +
                              NameOf(best) + ", after " + SecondsText(*best->seconds_to_target);
  if (*best->seconds_to_target >= *alone->seconds_to_target) return DoNot(rankings, numbers);
  const double chance = ChanceSeconds(*best, *alone, noise);
  return CannotBeTold(
      rankings, numbers + (alone->target_gap_seconds > chance
                               ? ", and evaluations are " + SecondsText(alone->target_gap_seconds) + " apart"
                               : ", where up to " + SecondsText(chance) + " may be chance"));
}

Alone AloneOf(const Results& results, const std::vector<Ranking>& rankings, const Outlook& outlook,
              const Noise& noise) {
  if (rankings.front().workers != 1) return {};
  if (results.target_accuracy) {
    if (const auto alone = AloneByTarget(rankings, *results.target_accuracy, noise)) return *alone;
  }
  return AloneBySpeed(rankings, outlook, noise);
}

std::string WhyNone(const std::vector<Ranking>& rankings) {
  std::set<std::string> competitors;
  for (const Ranking& ranking : rankings) {
    for (const std::string& name : NamesOf(ranking.all)) competitors.insert(name);
  }
  if (competitors.empty()) return "None: no cell has numbers.";
  if (competitors.size() == 1) return "None: only " + *competitors.begin() + " has numbers.";
  return "None: no two have numbers for the same number of workers.";
}

}  // namespace

std::vector<const Ranking*> ComparedOf(const std::vector<Ranking>& rankings) {
  std::vector<const Ranking*> compared;
  for (const Ranking& ranking : rankings) {
    if (ranking.all.size() > 1) compared.push_back(&ranking);
  }
  if (compared.size() > 1 && compared.front()->workers == 1) compared.erase(compared.begin());
  return compared;
}

bool GoesByTarget(const std::vector<const Ranking*>& compared) {
  return std::ranges::any_of(compared, [](const Ranking* of) { return !of->reached.empty(); });
}

std::string Recommendation(const Results& results, const std::vector<Ranking>& rankings,
                           const std::vector<const Ranking*>& compared, const Outlook& outlook,
                           const Noise& noise) {
  const Alone alone = AloneOf(results, rankings, outlook, noise);
  if (compared.empty() || (!alone.doubt.empty() && compared.back()->workers == 1)) {
    return alone.doubt.empty() ? WhyNone(rankings) : alone.doubt;
  }
  std::string text;
  if (results.target_accuracy && GoesByTarget(compared)) {
    text = ChoiceByTarget(compared, *results.target_accuracy);
  } else {
    text = Choice(compared, &Ranking::best);
    if (results.target_accuracy) {
      text +=
          absl::StrFormat(", by samples/s: of those compared none is known to reach a test accuracy of %.3g",
                          *results.target_accuracy);
    }
    text += AccuracyClause(compared) + OutlookClause(outlook, compared.back()->workers);
  }
  text += ".";
  if (!alone.doubt.empty()) return alone.doubt + alone.then + text;
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  return text;
}

}  // namespace muster::bench
