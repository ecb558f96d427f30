// Every cell of the results as a row, for the terminal and for the report.
#pragma once

#include "launcher/bench/results.h"
#include "launcher/table.h"

namespace muster::bench {

/// Columns in which no cell has anything are left out. What cells have that failed is their error. Control
/// characters in a text become spaces.
Table ResultsTable(const Results& results);

/// Every host of every cell; empty where nothing is known of them.
Table HostsTable(const Results& results);

}  // namespace muster::bench
