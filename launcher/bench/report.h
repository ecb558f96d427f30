// The page that `muster bench` writes.
#pragma once

#include <string>

#include "launcher/bench/results.h"

namespace muster::bench {

/// One page that needs nothing else: no network, scripts or fonts. The advice first, then charts for each
/// model and link rate, every cell in a table, and how it was made. Well-formed XML after its first line.
std::string ReportHtml(const Results& results);

}  // namespace muster::bench
