// "Did you mean": the nearest of a set of words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// The candidate with the least edit distance (insertions, deletions, substitutions, swaps of neighbours), if
/// that is at most a third of the longer word, rounded up; else "". Ties go to the earlier candidate.
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace muster
