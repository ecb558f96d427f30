// The charts of the report, from results.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/results_view.h"
#include "launcher/bench/svg_chart.h"

namespace muster::bench {

/// One strategy over numbers of workers. Where a number of workers was measured with several numbers of
/// servers, each number of servers is a line of its own.
struct Line {
  std::string name;  // "ps_sync (k = 2, own hosts)", "ps_sync (k = workers, on workers)", "allreduce"
  SeriesLook look;
  std::vector<const Measurement*> measured;  // that have numbers, by workers
  const Curve* curve = nullptr;              // that has the servers of all of these
};

/// Of what can be drawn, by strategy.
std::vector<Line> LinesOf(const Group& group);

/// Of the measurements by which `lines` are compared in bars: the most workers.
int MostWorkers(const std::vector<Line>& lines);

/// Samples/s over workers, and the bounds where they are known.
LineChart MeasuredChart(const Group& group, const std::vector<Line>& lines);

/// Each number of servers that a curve has, from the smallest; none: only curves without servers.
std::vector<int> ServersOfCurves(const std::vector<Line>& lines);

/// Those without servers, and those of so many, as far as they have so many: what SimulatedChart shows.
std::vector<Line> LinesWith(const std::vector<Line>& lines, int servers);

/// The same with the curves of the simulator, both axes logarithmic. Without lines: there are no curves.
LineChart SimulatedChart(const Group& group, const std::vector<Line>& lines);

/// Of the chief worker with the most workers: sent and then received. Without bars: no bytes.
BarChart BytesChart(const Group& group, const std::vector<Line>& lines);

/// With the most workers, the time in which each of them makes one gradient (StepsOfRound), so that what is
/// beside each other is the same work: the bound and then the rest, or what it is shorter than its bound;
/// where no bound is known, all of it. The prediction as a mark, and the range of the repetitions.
BarChart RoundTimeChart(const Group& group, const std::vector<Line>& lines);

}  // namespace muster::bench
