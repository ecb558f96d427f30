// What the simulator says of more workers than were measured: which strategy would lead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/bench/results_view.h"

namespace muster::bench {

/// Where none of those that led, or were about equal to who did, leads any more.
struct LeadChange {
  int before = 0;  // workers, with which they still did
  int after = 0;
  std::vector<std::string> leaders;  // from there on
};

/// With the fewest workers, more than were measured, that are faster than one.
struct FasterThanOne {
  int workers = 0;
  std::vector<std::string> leaders;  // with so many
};

struct Outlook {
  std::vector<LeadChange> changes;
  std::string doubt;  // why it is not asked what leads; empty: it is, or has nothing to say
  std::optional<FasterThanOne> faster_than_one;  // of FasterThanOneOf
};

/// Those of `names` that are among the others, too, in their order.
std::vector<std::string> Common(std::vector<std::string> names, const std::vector<std::string>& others);

/// Of the group's predictions, as fractions; not of the cells that the simulator was fitted to.
std::vector<double> PredictionErrors(const Group& group);

/// `leaders`: the names of those that were about fastest with `workers`, the most that were compared.
Outlook OutlookOf(const Group& group, const std::vector<std::string>& leaders, int workers);

/// Unset: none are, or the simulator is off by too much, or has been wrong about it, or one worker was not
/// measured.
std::optional<FasterThanOne> FasterThanOneOf(const Group& group);

/// "; the simulator expects a to take the lead between 12 and 16 workers"; empty: nothing to say.
std::string OutlookClause(const Outlook& outlook, int workers);

/// "; the simulator expects 6 workers with a to be faster than 1"; empty: nothing to say.
std::string FasterThanOneClause(const Outlook& outlook);

/// All changes; empty: there are none.
std::string OutlookSentence(const Outlook& outlook);

}  // namespace muster::bench
