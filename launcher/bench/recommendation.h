// Recommendation: of one model over links of one rate, what to use, in one line.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/outlook.h"
#include "launcher/bench/ranking.h"

namespace muster::bench {

/// Numbers of workers with a choice. One worker alone has nobody to exchange with: it decides only where
/// nothing else was compared.
std::vector<const Ranking*> ComparedOf(const std::vector<Ranking>& rankings);

/// Anybody reached the accuracy that was asked for.
bool GoesByTarget(const std::vector<const Ranking*>& compared);

/// Where an accuracy was asked for that anybody reached, who reached it first; else who is fastest, with a
/// word where that learned less than others.
/// `compared`: of ComparedOf.
std::string Recommendation(const Results& results, const std::vector<Ranking>& rankings,
                           const std::vector<const Ranking*>& compared, const Outlook& outlook,
                           const Noise& noise);

}  // namespace muster::bench
