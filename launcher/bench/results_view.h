// How results are said, in advice, tables and charts: what is compared with what, under which names, in which
// units.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/bench/results.h"

namespace muster::bench {

/// What is compared with each other: one model over links of one rate. Points into the results.
struct Group {
  std::string model;
  double link_bytes_per_second = 0;
  std::vector<const Measurement*> measurements;
  std::vector<const Curve*> curves;
};

/// In the order in which they come.
std::vector<Group> GroupsOf(const Results& results);

/// "mnist_cnn deep over 1 Gbit/s"
std::string GroupName(const Group& group);

/// Of the links of the group; unset: not measured.
std::optional<double> LatencyOf(const Results& results, const Group& group);

/// It did not fail, and its step time and its rate are known.
bool HasNumbers(const Measurement& measurement);

/// So many steps are a round, in which each worker makes one gradient on average: of asynchronous workers as
/// many as there are, of those with a backup a little more than one.
double StepsOfRound(const Cell& cell);

/// Models whose rows travel with the batch that names them.
bool HasTables(const std::string& model);

/// Links without a rate were found to have theirs by this cell: its bound is what it took.
bool GaveTheRate(const Measurement& measurement);

/// The least step time divided by the measured one: 0.8 is 80 % of what the links allow. Unset: no bound, or
/// no numbers, or it gave the rate.
std::optional<double> BoundFraction(const Measurement& measurement);

/// The predicted step time divided by the measured one, less 1: 0.1 is a prediction that is 10 % too long.
std::optional<double> PredictionError(const Measurement& measurement);

/// The shortest and the longest step time of its repetitions. Unset: no numbers, or one repetition.
std::optional<std::pair<double, double>> StepRange(const Measurement& measurement);

/// What was run, as far as it is known, typed or not: "60 steps of each worker, of 100 samples; muster 1.2".
/// Batches of several sizes with the models whose they are.
std::string SettingsText(const Results& results);

bool UsesServers(Strategy strategy);

/// "own hosts" or "on workers"; empty where there are no servers.
std::string ServersPlace(const Cell& cell);

/// A cell but for its workers, model and link: "allreduce", "ps_sync (k = 2, own hosts)".
std::string CompetitorName(const Cell& cell);

/// "ps_async (k = 2)": the same wherever its servers are.
std::string PlacelessName(const Cell& cell);

/// "1 worker", "4 workers"
std::string WorkersText(int workers);

/// "1 Gbit/s" for 125e6; "links as they are" for 0.
std::string LinkText(double bytes_per_second);

/// Three significant digits or more: "0.52", "81.3", "5213", "1.2M", "3e+21".
std::string AmountText(double amount);

/// "3.4 %", "81 %" of a fraction; "0 %" of what rounds to no tenth of a percent.
std::string PercentText(double fraction);

/// "1.2 MB" of a number that need not be whole, and may be absurd.
std::string BytesText(double bytes);

/// "1.2 MB/s"
std::string RateText(double bytes_per_second);

/// "2.51 ms", "177 ms", "1.18 s", "2136 s"
std::string SecondsText(double seconds);

/// Control characters become spaces: what comes from tasks and files must not move a terminal's cursor.
std::string OneLine(std::string text);

/// "a", "a and b", "a, b and c"
std::string ListText(const std::vector<std::string>& items);

}  // namespace muster::bench
