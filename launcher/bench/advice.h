// "Parameter server or allreduce?", answered from results in plain sentences.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/results.h"

namespace muster::bench {

/// For one model over links of one rate.
struct GroupAdvice {
  std::string title;           // "mnist_cnn deep over 1 Gbit/s"
  std::string recommendation;  // one line
  std::vector<std::string> sentences;
};

struct Advice {
  std::vector<GroupAdvice> groups;    // in the order of GroupsOf(results)
  std::vector<std::string> cautions;  // why it is weak; empty: nothing speaks against it
};

/// Pure. Two results are "about equal" where their rates are no further apart than, nine times in ten, chance
/// makes those of equal ones (by results.noise), or than half a percent.
Advice MakeAdvice(const Results& results);

/// Lines for a terminal; control characters in names become spaces.
std::string ToText(const Advice& advice);

}  // namespace muster::bench
