#include "launcher/bench/report.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "launcher/bench/advice.h"
#include "launcher/bench/markup.h"
#include "launcher/bench/report_charts.h"
#include "launcher/bench/results_table.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

// The colours of the series keep a contrast of 3 to 1 on their background and differ in lightness, too, for
// those who do not tell hues apart; markers and dashes differ besides. What is pale has an outline in full
// colour. Text in charts stays above 11 pixels: it is larger where cards are narrow. No character that XML
// escapes.
constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --page: #f5f6f8; --card: #ffffff; --ink: #1b1f24; --soft: #586069;
  --rule: #dde1e6; --grid: #e6e9ed; --accent: #0b5cad; --warn: #9a5b00; --warn-page: #fff6e5;
  --s0: #0072b2; --s1: #d55e00; --s2: #b0478c; --s3: #00825f; --s4: #4b4f58; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1216; --card: #181c22; --ink: #e7eaee; --soft: #a2abb6; --rule: #343b45; --grid: #29303a;
    --accent: #79b8ff; --warn: #f0b95a; --warn-page: #2a2213;
    --s0: #4da3e6; --s1: #ff9147; --s2: #e58cc6; --s3: #37c99a; --s4: #d3d8df; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1160px; padding: 20px 16px 40px; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 4px; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 0 0 10px; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.card, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; margin: 0; min-width: 0;
  padding: 14px 16px; }
.card ul { margin: 0; padding-left: 1.1em; font-size: .93rem; }
.card li { margin: 3px 0; }
.card .use { margin: 0; }
.findings { margin-bottom: 14px; }
a { color: inherit; text-decoration-color: var(--rule); text-underline-offset: 3px; }
.use { color: var(--accent); font-weight: 600; }
.caution { background: var(--warn-page); border-color: var(--warn); margin: 14px 0; }
.caution h3 { color: var(--warn); }
figure h3 { font-size: .98rem; margin: 0; }
.chart { display: block; width: 100%; max-width: 460px; height: auto; margin: 8px auto 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 0 0 12px; padding: 0;
  font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: 7px; }
.swatch { width: 34px; height: 14px; flex: none; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); }
svg text { fill: var(--soft); font-size: 12.5px; stroke: var(--card); stroke-width: 3px; paint-order: stroke;
  stroke-linejoin: round; }
@media (min-width: 440px) { svg text { font-size: 10.5px; } }
@media (max-width: 419px) { body { padding: 14px 10px 30px; } .card, figure { padding: 10px 8px; } }
figure line { stroke: var(--grid); }
line.minor { stroke-width: .6; opacity: .7; }
figure line.axis { stroke: var(--soft); }
figure line.mark { stroke: var(--ink); stroke-width: 2.5; }
polyline { fill: none; stroke: currentColor; stroke-linejoin: round; }
.measured { stroke-width: 2.2; }
.bound { stroke-width: 1.2; }
.simulated { stroke-width: 1.3; }
.marker { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.hollow { fill: var(--card); stroke: currentColor; stroke-width: 2; }
rect { fill: currentColor; }
rect.second { fill-opacity: .38; stroke: currentColor; }
rect.missing { fill: none; stroke: currentColor; stroke-dasharray: 3 3; }
figure line.spread { stroke: var(--ink); }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; background: var(--card); }
table { border-collapse: separate; border-spacing: 0; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; font-size: .78rem; }
th:first-child { position: sticky; left: 0; background: var(--card); text-align: left; }
thead th:first-child, th[scope=row] { white-space: normal; min-width: 10em; border-right: 1px solid var(--rule); }
@media (min-width: 860px) { th[scope=row] { white-space: nowrap; } }
th[scope=row] { color: inherit; font-size: inherit; font-weight: 400; overflow-wrap: normal; }
th[scope=rowgroup] { color: var(--ink); padding-top: 12px; }
th[scope=rowgroup] span { position: sticky; left: 10px; }
tbody:last-child tr:last-child td, tbody:last-child tr:last-child th { border-bottom: 0; }
.text { text-align: left; }
td.error, td.text:last-child { white-space: normal; min-width: 16em; color: var(--warn); text-align: left; }
td.error span { display: inline-block; position: sticky; left: 11.5em; max-width: min(52em, 100vw - 15.5em); }
summary { cursor: pointer; margin: 0 0 10px; }
figure .legend { margin: 8px 0 4px; }
dt { font-weight: 600; break-after: avoid; } dd { margin: 0 0 8px; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; overflow-x: auto;
  font-size: .85rem; white-space: pre-wrap; }
@page { size: landscape; margin: 12mm; }
@media print {
  :root { font-size: 9.5pt; }
  body { background: none; max-width: none; padding: 0; font-size: 1rem; }
  .grid { grid-template-columns: repeat(3, 1fr); }
  .card, figure, tr, tbody, .legend { break-inside: avoid; } .findings { break-inside: auto; }
  h2, h3, summary, .legend, tbody tr:first-child { break-after: avoid; } section:has(table) { break-before: page; }
  .scroll { overflow: visible; border: 0; } table { font-size: 6.5pt; } th { font-size: 6pt; }
  th, td { padding: 2px 3px; } thead th { white-space: normal; vertical-align: bottom; }
  th:first-child { position: static; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
)";

constexpr char kTerms[] = R"(<dl class="soft">
<dt>Cell</dt><dd>One of the jobs that were compared: a strategy with so many workers and servers, for one model over
links of one rate.</dd>
<dt>Strategies</dt><dd>ps_async and ps_sync: parameter servers whose updates each worker makes on its own, or all
together; ps_backup: together, without waiting for the slowest; allreduce: no servers; hybrid: both.</dd>
<dt>k</dt><dd>The number of parameter servers: on hosts of their own, or on those of the workers.</dd>
<dt>Link</dt><dd>The rate of the link of each host, in each direction.</dd>
<dt>Step</dt><dd>The time of one update, the median of the repetitions; step range: from the shortest of them to the
longest. The first step of a job, in which what computes is still prepared, is none of it. With ps_async each push of a worker is an update, so that
its steps are shorter than those of others by the number of workers: compare samples/s, or the picture of the time of a
gradient of each worker.</dd>
<dt>Efficiency</dt><dd>Samples/s divided by the number of workers and by the samples/s of one worker: of the strategy
that was fastest with one, for all of a model over the same links.</dd>
<dt>Bound, of bound</dt><dd>The least time in which the links can carry the bytes of a step, if nothing else took time;
and that divided by the measured time. Links that were given no rate are taken for as fast as the smallest allreduce
of several workers was beyond computing: what other cells got may be more, and how near that one came (it has
&quot;gave the rate&quot;) is not known.</dd>
<dt>Sent, received</dt><dd>Per step, by the chief worker: worker:0, which evaluates and saves the model, too.</dd>
<dt>CPU</dt><dd>The time on processors of all tasks together, for a gradient of each worker: with ps_backup in
n&#160;/&#160;(n&#160;-&#160;1) steps, as one of the n gradients is left out of each.</dd>
<dt>Host CPU, host net</dt><dd>Of the busiest host while it trains: its tasks' time on processors, where 100&#160;% is one
of them, and what its network interface carries in its busier direction, whoever sends it.</dd>
<dt>Algbw</dt><dd>Bandwidth of the algorithm: the bytes of the model divided by the time that a step takes a worker
beyond computing, where computing is the wait, or a step of one worker alone. So what others are waited for counts, and
what overlaps with computing does not.</dd>
<dt>Busbw</dt><dd>Bandwidth of the bus: the bytes that the busiest link has to carry in its busier direction, divided by
the same time, to be compared with the rate of the links. With allreduce 2&#160;(n&#160;-&#160;1)&#160;/&#160;n times
the model, n being the workers; with synchronous servers what the bound counts: with k of them on hosts of their own
n&#160;/&#160;k times the model, as both directions are in use at once, and twice that where pushes travel whole
(ps_backup, and less than 64&#160;KiB for each server). It is above the rate where bytes travel while gradients are still
computed, as with allreduce in parts, and of small models where links let bursts pass, as those of virtual hosts do. With
ps_async there is none, as some workers compute while others have the links.</dd>
<dt>Accuracy</dt><dd>The share of the test data that the model gets right at the end, the median of the
repetitions.</dd>
<dt>To target</dt><dd>How long it trained until it had the accuracy that was asked for; empty: it did not get there, or
it is not known.</dd>
<dt>Predicted, off by</dt><dd>The simulator's step time, and how much longer or shorter it is than the measured one;
fitted: the simulator was calibrated with this cell, so that this says nothing about how good it is. In the
curves some steps take longer, as those of one worker alone did that took five times the median or more, and none that
took less than twice. Predictions of cells, and so what they are off by, are of steps that are all alike, as waits
are.</dd>
<dt>Noise</dt><dd>The standard deviation of a repetition's step time, divided by the median of its cell: one number,
pooled over all cells.</dd>
<dt>Error</dt><dd>Why a cell has no numbers, or no time to the target.</dd>
</dl>
)";

std::string Element(const char* name, const std::string& text) {
  return absl::StrFormat("<%s>%s</%s>\n", name, Escape(text), name);
}

// A number stays on one line with its sign, and k with its number.
std::string SentenceHtml(const std::string& sentence) {
  return absl::StrReplaceAll(Escape(sentence), {{" %", "&#160;%"}, {"k = ", "k&#160;=&#160;"}});
}

// Of a row; its last part, "2 workers", stays on one line.
std::string NameHtml(const std::string& name) {
  return absl::StrReplaceAll(SentenceHtml(name), {{" worker", "&#160;worker"}});
}

std::string ListHtml(const std::vector<std::string>& sentences) {
  if (sentences.empty()) return "";
  std::string html = "<ul>\n";
  for (const std::string& sentence : sentences) html += "<li>" + SentenceHtml(sentence) + "</li>\n";
  return html + "</ul>\n";
}

std::string AdviceHtml(const Advice& advice) {
  std::string html = "<section>\n<h2>Advice</h2>\n";
  if (!advice.cautions.empty()) {
    html += "<div class=\"card caution\">\n<h3>How far to trust it</h3>\n" + ListHtml(advice.cautions) +
            "</div>\n";
  }
  if (advice.groups.empty()) return html + "</section>\n";
  html += "<div class=\"grid\">\n";
  for (size_t i = 0; i < advice.groups.size(); ++i) {
    html += absl::StrFormat(
        "<div class=\"card\">\n<h3><a href=\"#group-%d\">%s</a></h3>\n<p class=\"use\">%s</p>\n</div>\n", i,
        Escape(advice.groups[i].title), SentenceHtml(advice.groups[i].recommendation));
  }
  return html + "</div>\n</section>\n";
}

std::string LegendItem(const std::string& swatch, const std::string& name) {
  return "<li>" + swatch + "<span>" + Escape(name) + "</span></li>\n";
}

std::string LegendHtml(const std::vector<Line>& lines, bool shows_bounds) {
  std::string html = "<ul class=\"legend\">\n";
  for (const Line& line : lines)
    html += LegendItem(LegendSvg(ChartLine::Kind::kMeasured, line.look), line.name);
  if (shows_bounds) html += LegendItem(LegendSvg(ChartLine::Kind::kBound, {}), "bound of the links");
  if (std::any_of(lines.begin(), lines.end(), [](const Line& line) { return line.curve != nullptr; })) {
    html += LegendItem(LegendSvg(ChartLine::Kind::kSimulated, {}), "simulated");
  }
  return html + "</ul>\n";
}

std::string Figure(const std::string& title, const std::string& chart, const std::string& caption,
                   const std::string& legend = "") {
  return "<figure>\n" + Element("h3", title) + chart + legend +
         (caption.empty() ? "" : Element("figcaption", caption)) + "</figure>\n";
}

// One for each number of servers: a curve keeps that from its first worker to its last.
std::string SimulatedFigures(const Group& group, const std::vector<Line>& lines) {
  constexpr char kCaption[] =
      "Thin lines, up to their marker at the right: the simulator. The rest: measured.";
  const std::vector<int> all_servers = ServersOfCurves(lines);
  if (all_servers.empty()) {
    const LineChart chart = SimulatedChart(group, lines);
    return chart.lines.empty() ? "" : Figure("Predicted beyond", LineChartSvg(chart), kCaption);
  }
  std::string html;
  for (const int servers : all_servers) {
    const std::vector<Line> some = LinesWith(lines, servers);
    html += Figure(absl::StrFormat("Predicted beyond, k = %d", servers),
                   LineChartSvg(SimulatedChart(group, some)),
                   absl::StrFormat("%s %d %s for any number of workers.", kCaption, servers,
                                   servers == 1 ? "server" : "servers"),
                   all_servers.size() > 1 ? LegendHtml(some, /*shows_bounds=*/false) : "");
  }
  return html;
}

std::string MeasuredCaption(const LineChart& chart) {
  size_t bounds = 0;
  for (const ChartLine& line : chart.lines)
    bounds += line.kind == ChartLine::Kind::kBound ? line.points.size() : 0;
  const auto shown = static_cast<size_t>(BoundsShown(chart));
  if (bounds == 0) return "";
  if (shown == 0) return "The bounds of the links lie above the picture.";
  return shown == bounds
             ? "Thin dashes: the bound of the links."
             : "Thin dashes: the bound of the links; where it is not in the picture, it lies above.";
}

std::string RoundTimeCaption(const BarChart& chart) {
  const auto any = [&](auto predicate) {
    return std::any_of(chart.bars.begin(), chart.bars.end(), predicate);
  };
  std::vector<std::string> parts = {
      "In which each worker makes one gradient: a step; with ps_async as many steps as there are workers; "
      "with "
      "ps_backup n / (n - 1) steps of n workers, since one gradient is left out of each."};
  if (any([](const Bar& bar) { return bar.second > 0 && bar.first > 0; })) {
    parts.push_back("Full colour: the bound, where it is known; pale: the rest.");
  }
  if (any([](const Bar& bar) { return bar.missing > 0; })) {
    parts.push_back("Dashed outline: it took less than the bound.");
  }
  if (any([](const Bar& bar) { return bar.mark > 0; })) parts.push_back("Thick line across: the prediction.");
  if (any([](const Bar& bar) { return bar.most > 0; })) {
    parts.push_back("Thin line along: from the shortest repetition to the longest.");
  }
  return absl::StrJoin(parts, " ");
}

std::string ChartsHtml(const Group& group, const std::vector<Line>& lines) {
  const int most_workers = MostWorkers(lines);
  const LineChart measured = MeasuredChart(group, lines);
  std::string html = LegendHtml(lines, BoundsShown(measured) > 0) + "<div class=\"grid\">\n";
  if (most_workers > 0) html += Figure("Measured", LineChartSvg(measured), MeasuredCaption(measured));
  html += SimulatedFigures(group, lines);
  if (most_workers > 0) {
    const std::string with = " with " + WorkersText(most_workers);
    const BarChart round_time = RoundTimeChart(group, lines);
    if (const BarChart bytes = BytesChart(group, lines); !bytes.bars.empty()) {
      html += Figure("Bytes per step" + with, BarChartSvg(bytes),
                     "Of the chief worker: sent (full colour) + received (pale).");
    }
    html += Figure("Time of a gradient of each worker" + with, BarChartSvg(round_time),
                   RoundTimeCaption(round_time));
  }
  return html + "</div>\n";
}

std::string GroupHtml(const Group& group, const GroupAdvice& advice, size_t index) {
  const std::vector<Line> lines = LinesOf(group);
  return absl::StrFormat("<section id=\"group-%d\">\n", index) + Element("h2", advice.title) +
         "<div class=\"card findings\">\n" + ListHtml(advice.sentences) + "</div>\n" +
         (lines.empty() ? "" : ChartsHtml(group, lines)) + "</section>\n";
}

bool IsText(const muster::Cell& cell) { return std::holds_alternative<std::string>(cell.value); }

// What failed has its reason right after its name: at the far end of the row nobody would look for it.
std::string RowHtml(const std::vector<muster::Cell>& row, const std::string& failure) {
  std::string html = "<tr><th scope=\"row\">" + NameHtml(row[0].text) + "</th>";
  if (!failure.empty()) {
    html += absl::StrFormat("<td class=\"error\" colspan=\"%d\"><span>%s</span></td>", row.size() - 1,
                            Escape(failure));
    return html + "</tr>\n";
  }
  for (size_t i = 1; i < row.size(); ++i) {
    html += absl::StrFormat("<td%s>%s</td>", IsText(row[i]) ? " class=\"text\"" : "", Escape(row[i].text));
  }
  return html + "</tr>\n";
}

// Above text at its left, as that is.
std::string HeaderHtml(const std::vector<TableSection>& sections) {
  const std::vector<std::string>& header = sections.front().table.header();
  std::string html = "<thead><tr>";
  for (size_t i = 0; i < header.size(); ++i) {
    const bool is_text = std::any_of(sections.begin(), sections.end(), [&](const TableSection& section) {
      return std::any_of(section.table.rows().begin(), section.table.rows().end(),
                         [&](const std::vector<muster::Cell>& row) { return IsText(row[i]); });
    });
    html +=
        absl::StrFormat("<th scope=\"col\"%s>%s</th>", is_text ? " class=\"text\"" : "", Escape(header[i]));
  }
  return html + "</tr></thead>\n";
}

// Its region can be scrolled with keys.
std::string TableHtml(const std::string& name, const std::vector<TableSection>& sections) {
  std::string html = absl::StrFormat(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"%s\">\n<table>\n<caption>%s</caption>\n",
      name, name);
  html += HeaderHtml(sections);
  for (const TableSection& section : sections) {
    html += absl::StrFormat("<tbody>\n<tr><th scope=\"rowgroup\" colspan=\"%d\"><span>%s</span></th></tr>\n",
                            section.table.header().size(), Escape(section.title));
    for (size_t i = 0; i < section.table.rows().size(); ++i) {
      html += RowHtml(section.table.rows()[i], section.failures[i]);
    }
    html += "</tbody>\n";
  }
  return html + "</table>\n</div>\n";
}

std::string CellsHtml(const Results& results) {
  const std::vector<TableSection> sections = ResultsSections(results);
  if (sections.empty()) return "";
  return "<section>\n<h2>Every cell</h2>\n" + TableHtml("Every cell", sections) + "</section>\n";
}

// Folded up, since there are many.
std::string HostsHtml(const Results& results) {
  const std::vector<TableSection> sections = HostsSections(results);
  if (sections.empty()) return "";
  return "<section>\n<h2>Every host</h2>\n<details>\n<summary>Processors and network of each host in each "
         "cell</summary>\n" +
         TableHtml("Every host", sections) + "</details>\n</section>\n";
}

// "muster bench: mnist_mlp and mnist_cnn on 4 hosts"
std::string TitleOf(const Results& results) {
  std::vector<std::string> models;
  for (const Measurement& measurement : results.measurements) {
    const std::string& model = measurement.cell.model;
    if (std::find(models.begin(), models.end(), model) == models.end()) models.push_back(model);
  }
  return models.empty() ? "muster bench" : "muster bench: " + ListText(models) + " on " + results.where;
}

// Of those that have numbers.
std::string Repetitions(const Results& results) {
  size_t least = SIZE_MAX, most = 0;
  for (const Measurement& measurement : results.measurements) {
    if (!HasNumbers(measurement)) continue;
    least = std::min(least, measurement.step_seconds.size());
    most = std::max(most, measurement.step_seconds.size());
  }
  if (most < 2) return "each cell once";
  if (least == most) return absl::StrFormat("each cell %d times", most);
  return absl::StrFormat("each cell %d to %d times", least, most);
}

}  // namespace

std::string ReportHtml(const Results& results) {
  const std::string settings = Escape(SettingsText(results));
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n";
  html += Element("title", TitleOf(results)) + "<style>" + kStyle + "</style>\n</head>\n<body>\n";
  html +=
      "<header>\n<h1>Parameter server or allreduce?</h1>\n<p class=\"soft\">Measured by muster bench on " +
      Escape(results.where) + ", " + Repetitions(results) + ", " + Escape(results.created) + "</p>\n";
  if (!settings.empty()) html += "<p class=\"soft\">" + settings + "</p>\n";
  html += "</header>\n<main>\n";
  const Advice advice = MakeAdvice(results);
  const std::vector<Group> groups = GroupsOf(results);  // one for each group of the advice
  html += AdviceHtml(advice);
  for (size_t i = 0; i < groups.size(); ++i) html += GroupHtml(groups[i], advice.groups[i], i);
  html += CellsHtml(results) + HostsHtml(results) + "<section>\n<h2>What the words mean</h2>\n" + kTerms +
          "</section>\n";
  html += "<section>\n<h2>How it was made</h2>\n<pre>" + Escape(results.command) +
          "</pre>\n<p class=\"soft\">" + (settings.empty() ? "" : settings + "; ") + Escape(results.created) +
          ", on " + Escape(results.where) + "</p>\n</section>\n</main>\n</body>\n</html>\n";
  return html;
}

}  // namespace muster::bench
