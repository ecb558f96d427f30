// The results as tables, for the terminal and for the report.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/bench/results.h"
#include "launcher/table.h"

namespace muster::bench {

/// Every cell as a row. Columns in which no cell has anything are left out. What cells have that failed is
/// their error. Control characters in a text become spaces.
Table ResultsTable(const Results& results);

/// The same for a terminal that is `width` characters wide; 0: as wide as it gets. Where it does not fit: for
/// each model and link a heading, a table of what matters most, and a line for each cell that failed.
std::string ResultsText(const Results& results, size_t width = 0);

/// Rows under a heading. The first cell of each is its name: "allreduce, 4 workers".
struct TableSection {
  std::string title;  // "mnist_mlp over 1 Gbit/s"
  Table table;
  std::vector<std::string> failures;  // of each row: why it has nothing but a name; empty: it has
};

/// Every cell by model and link, all with the same columns.
std::vector<TableSection> ResultsSections(const Results& results);

/// Every host of every cell, likewise; empty where nothing is known of them.
std::vector<TableSection> HostsSections(const Results& results);

}  // namespace muster::bench
