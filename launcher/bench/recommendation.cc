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

// What was about first at each number of workers; empty: there is no such.
std::vector<std::string> AlwaysBest(const std::vector<const Ranking*>& rankings, Chosen chosen) {
  std::vector<std::string> names = NamesOf(rankings.front()->*chosen);
  for (const Ranking* ranking : rankings) names = Common(std::move(names), NamesOf(ranking->*chosen));
  return names;
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
  const std::vector<std::string> always = AlwaysBest(compared, chosen);
  if (always.empty()) return by_number;
  return "use " + absl::StrJoin(always, " or ") + " (compared at " + ListText(numbers) +
         (numbers.back() == "1" ? " worker)" : " workers)");
}

// Where what is recommended by its speed learned less than others.
std::string AccuracyClause(const std::vector<const Ranking*>& compared) {
  const std::vector<std::string> always = AlwaysBest(compared, &Ranking::best);
  for (auto ranking = compared.rbegin(); ranking != compared.rend(); ++ranking) {
    const Measurement* const most = MostAccurate(**ranking);
    for (const Measurement* of : (*ranking)->best) {
      const bool is_named = always.empty() || !Common({NameOf(of)}, always).empty();
      if (!is_named || most == nullptr || !of->test_accuracy) continue;
      if (*most->test_accuracy - *of->test_accuracy < kAccuracyGap) continue;
      return absl::StrFormat("; but with %s %s ended at a test accuracy of %.3f, where %s reached %.3f",
                             WorkersText((*ranking)->workers), NameOf(of), *of->test_accuracy, NameOf(most),
                             *most->test_accuracy);
    }
  }
  return "";
}

// Of the one that was fastest, where it was not among the first.
std::string FastestClause(const Ranking& ranking) {
  const Measurement* const fastest = ranking.all.front();
  const Measurement* const first = ranking.first.front();
  if (!Common({NameOf(fastest)}, NamesOf(ranking.first)).empty()) return "";
  const bool has_reached = !Common({NameOf(fastest)}, NamesOf(ranking.reached)).empty();
  return absl::StrFormat(
      "; %s made %s times as many samples/s%s", NameOf(fastest), RatioText(fastest, first),
      has_reached ? " and was there after " + SecondsText(*fastest->seconds_to_target)
                  : std::string(fastest->target_error.empty() ? " and did not get there"
                                                              : "; whether it gets there is not known"));
}

// By the time to the accuracy that was asked for. Empty: nobody reached it.
std::string ChoiceByTarget(std::vector<const Ranking*> compared, double target) {
  std::erase_if(compared, [](const Ranking* ranking) { return ranking->reached.empty(); });
  if (compared.empty()) return "";
  const Ranking& largest = *compared.back();
  return Choice(compared, &Ranking::first) +
         absl::StrFormat(": first to a test accuracy of %.3g, with %s in %s", target,
                         WorkersText(largest.workers),
                         SecondsText(*largest.first.front()->seconds_to_target)) +
         FastestClause(largest);
}

// Whether more workers than one are worth it.
struct Alone {
  std::string doubt;      // a sentence; empty: they are, or it is not known
  const char* then = "";  // before what is recommended all the same
};

constexpr char kIfYouHaveTo[] = " If you have to, ", kIfYouDo[] = " If you do, ";

const Measurement* FirstOf(const Measurements& all) { return all.empty() ? nullptr : all.front(); }

// Of more workers than one, the one of which `is_better` than all others.
template <typename IsBetter>
const Measurement* BestOfMore(const std::vector<Ranking>& rankings, Chosen ordered, IsBetter is_better) {
  const Measurement* best = nullptr;
  for (size_t i = 1; i < rankings.size(); ++i) {
    const Measurement* const first = FirstOf(rankings[i].*ordered);
    if (first != nullptr && (best == nullptr || is_better(*first, *best))) best = first;
  }
  return best;
}

// Where the exchange costs more than further workers bring.
Alone AloneBySpeed(const std::vector<Ranking>& rankings, const Noise& noise) {
  const Measurement* const alone = FirstOf(rankings.front().all);
  const Measurement* const best = BestOfMore(
      rankings, &Ranking::all,
      [](const Measurement& a, const Measurement& b) { return a.samples_per_second > b.samples_per_second; });
  if (alone == nullptr || best == nullptr || noise.TellsApart(*best, *alone)) return {};
  const double ahead = best->samples_per_second / alone->samples_per_second - 1;
  const std::string numbers = absl::StrFormat(
      "1 worker made %s samples/s, the best of %s, %s, %s", AmountText(alone->samples_per_second),
      WorkersText(best->cell.workers), NameOf(best), AmountText(best->samples_per_second));
  if (ahead <= kLeastNoise) return {.doubt = "Do not distribute: " + numbers + ".", .then = kIfYouHaveTo};
  return {.doubt = "Whether to distribute cannot be told: " + numbers + ", " + PercentText(ahead) +
                   " more, where up to " + PercentText(noise.Between(*best, *alone)) + " may be chance.",
          .then = kIfYouDo};
}

// The same by the time to the accuracy asked for. Unset: one worker did not reach it.
std::optional<Alone> AloneByTarget(const Results& results, const std::vector<Ranking>& rankings) {
  const Measurement* const alone = FirstOf(rankings.front().reached);
  if (!results.target_accuracy || alone == nullptr) return std::nullopt;
  const Measurement* const best = BestOfMore(
      rankings, &Ranking::reached,
      [](const Measurement& a, const Measurement& b) { return *a.seconds_to_target < *b.seconds_to_target; });
  if (best == nullptr) return Alone{};
  const double ahead = *alone->seconds_to_target - *best->seconds_to_target;
  const double between = std::max(EvaluationSeconds(results, *alone), EvaluationSeconds(results, *best));
  if (ahead > std::max(between, kLeastNoise * *alone->seconds_to_target)) return Alone{};
  const std::string numbers =
      absl::StrFormat("1 worker had a test accuracy of %.3g after %s, the best of %s, %s, after %s",
                      *results.target_accuracy, SecondsText(*alone->seconds_to_target),
                      WorkersText(best->cell.workers), NameOf(best), SecondsText(*best->seconds_to_target));
  if (ahead <= 0) return Alone{.doubt = "Do not distribute: " + numbers + ".", .then = kIfYouHaveTo};
  return Alone{.doubt = "Whether to distribute cannot be told: " + numbers + ", and evaluations are " +
                        SecondsText(between) + " apart.",
               .then = kIfYouDo};
}

Alone AloneOf(const Results& results, const std::vector<Ranking>& rankings, const Noise& noise) {
  if (rankings.front().workers != 1) return {};
  if (const auto by_target = AloneByTarget(results, rankings)) return *by_target;
  return AloneBySpeed(rankings, noise);
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

std::string Recommendation(const Results& results, const std::vector<Ranking>& rankings,
                           const std::vector<const Ranking*>& compared, const Outlook& outlook,
                           const Noise& noise) {
  const Alone alone = AloneOf(results, rankings, noise);
  if (compared.empty() || (!alone.doubt.empty() && compared.back()->workers == 1)) {
    return alone.doubt.empty() ? WhyNone(rankings) : alone.doubt;
  }
  std::string text = results.target_accuracy ? ChoiceByTarget(compared, *results.target_accuracy) : "";
  if (text.empty()) {
    text = Choice(compared, &Ranking::best);
    if (results.target_accuracy) {
      text += absl::StrFormat(", by samples/s: none is known to reach a test accuracy of %.3g",
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
