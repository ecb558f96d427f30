#include "launcher/bench/outlook.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace muster::bench {
namespace {

// A lead of less than this factor may be an accident of the simulated steps.
constexpr double kAhead = 1.05;
constexpr double kMostError = 0.3;  // in the median; beyond it what is predicted is a guess

// What curves have at each number of workers.
using Rates = std::map<std::string, double>;

std::map<int, Rates> RatesOf(const std::vector<const Curve*>& curves) {
  std::map<int, Rates> rates;
  for (const Curve* curve : curves) {
    for (const Curve::Point& point : curve->points) {
      const double rate = point.samples_per_second;
      if (std::isfinite(rate) && rate > 0) rates[point.workers][CompetitorName(curve->cell)] = rate;
    }
  }
  return rates;
}

double MostOf(const Rates& rates) {
  double most = 0;
  for (const auto& [name, rate] : rates) most = std::max(most, rate);
  return most;
}

// The fastest, and those that are behind it by no more than an accident.
std::vector<std::string> LeadersOf(const Rates& rates) {
  const double most = MostOf(rates);
  std::vector<std::string> leaders;
  for (const auto& [name, rate] : rates) {
    if (rate * kAhead >= most) leaders.push_back(name);
  }
  return leaders;
}

std::vector<LeadChange> LeadChanges(const std::map<int, Rates>& rates, std::vector<std::string> leaders,
                                    int compared) {
  std::vector<LeadChange> changes;
  int before = compared;
  for (auto at = rates.upper_bound(compared); at != rates.end(); ++at) {
    const std::vector<std::string> now = LeadersOf(at->second);
    if (Common(leaders, now).empty()) {
      changes.push_back({before, at->first, now});
      leaders = now;
    }
    before = at->first;
  }
  return changes;
}

}  // namespace

std::vector<std::string> Common(std::vector<std::string> names, const std::vector<std::string>& others) {
  std::erase_if(names, [&](const std::string& name) {
    return std::find(others.begin(), others.end(), name) == others.end();
  });
  return names;
}

std::vector<double> PredictionErrors(const Group& group) {
  std::vector<double> errors;
  for (const Measurement* measurement : group.measurements) {
    const std::optional<double> error = PredictionError(*measurement);
    if (error && !measurement->is_fitted) errors.push_back(std::abs(*error));
  }
  return errors;
}

Outlook OutlookOf(const Group& group, const std::vector<std::string>& leaders, int workers) {
  const std::map<int, Rates> rates = RatesOf(group.curves);
  const std::vector<double> errors = PredictionErrors(group);
  if (rates.empty() || errors.empty()) return {};
  const double error = MedianOf(errors);
  if (error > kMostError) {
    return {.doubt = "its predictions were off by " + PercentText(error) + " in the median"};
  }
  if (auto measured = rates.upper_bound(workers); measured != rates.begin()) {
    --measured;
    const std::vector<std::string> simulated = LeadersOf(measured->second);
    if (Common(leaders, simulated).empty()) {
      return {.doubt = "with " + WorkersText(measured->first) + " it has " +
                       absl::StrJoin(simulated, " or ") + " in front"};
    }
  }
  return {.changes = LeadChanges(rates, leaders, workers)};
}

std::optional<FasterThanOne> FasterThanOneOf(const Group& group) {
  const std::map<int, Rates> rates = RatesOf(group.curves);
  const std::vector<double> errors = PredictionErrors(group);
  if (rates.empty() || errors.empty() || MedianOf(errors) > kMostError) return std::nullopt;
  double alone = 0;
  int measured = 0;
  for (const Measurement* of : group.measurements) {
    if (!HasNumbers(*of)) continue;
    if (of->cell.workers == 1) alone = std::max(alone, of->samples_per_second);
    measured = std::max(measured, of->cell.workers);
  }
  if (alone == 0) return std::nullopt;
  // A lead below its error is none.
  const double least = alone * std::max(kAhead, 1 + MedianOf(errors));
  auto at = rates.upper_bound(measured);
  // It has as many as were measured ahead already, and they were not.
  if (at != rates.begin() && MostOf(std::prev(at)->second) > least) return std::nullopt;
  for (; at != rates.end(); ++at) {
    if (MostOf(at->second) > least) return FasterThanOne{at->first, LeadersOf(at->second)};
  }
  return std::nullopt;
}

std::string OutlookClause(const Outlook& outlook, int workers) {
  if (!outlook.doubt.empty()) {
    return "; of more than " + WorkersText(workers) +
           " the simulator cannot say what leads: " + outlook.doubt;
  }
  if (outlook.changes.empty()) return "";
  const LeadChange& first = outlook.changes.front();
  return absl::StrFormat("; the simulator expects %s to take the lead between %d and %d workers",
                         absl::StrJoin(first.leaders, " or "), first.before, first.after);
}

std::string FasterThanOneClause(const Outlook& outlook) {
  if (!outlook.faster_than_one) return "";
  return "; the simulator expects " + WorkersText(outlook.faster_than_one->workers) + " with " +
         absl::StrJoin(outlook.faster_than_one->leaders, " or ") + " to be faster than 1";
}

std::string OutlookSentence(const Outlook& outlook) {
  std::string text;
  for (const LeadChange& change : outlook.changes) {
    text += absl::StrFormat("%s to %s between %d and %d", text.empty() ? "" : ", then",
                            absl::StrJoin(change.leaders, " or "), change.before, change.after);
  }
  return text.empty() ? "" : "The simulator expects the lead to pass" + text + " workers.";
}

}  // namespace muster::bench
