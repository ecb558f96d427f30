#include "launcher/bench/report.h"

#include <absl/strings/str_replace.h>

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
// those who do not tell hues apart; markers and dashes differ besides. No character that XML escapes.
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
figure svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 8px auto 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 0 0 12px; padding: 0;
  font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: 7px; }
.swatch { width: 34px; height: 14px; flex: none; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); }
svg text { fill: var(--soft); font-size: 12.5px; stroke: var(--card); stroke-width: 3px; paint-order: stroke;
  stroke-linejoin: round; }
@media (min-width: 860px) { svg text { font-size: 10.5px; } }
figure line { stroke: var(--grid); }
line.minor { stroke-width: .6; opacity: .7; }
figure line.axis { stroke: var(--soft); }
figure line.mark { stroke: var(--ink); stroke-width: 2.5; }
polyline { fill: none; stroke: currentColor; stroke-linejoin: round; }
.measured { stroke-width: 2.2; }
.bound { stroke-width: 1.2; stroke-dasharray: 4 4; }
.simulated { stroke-width: 2; opacity: .55; }
.marker { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.hollow { fill: var(--card); stroke: currentColor; stroke-width: 2; }
rect { fill: currentColor; }
rect.second { opacity: .38; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; font-size: .78rem; }
tr:last-child td { border-bottom: 0; }
.text { text-align: left; }
td.error { white-space: normal; min-width: 16em; color: var(--warn); text-align: left; }
summary { cursor: pointer; margin: 0 0 10px; }
figure .legend { margin: 8px 0 4px; }
dt { font-weight: 600; } dd { margin: 0 0 8px; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; overflow-x: auto;
  font-size: .85rem; white-space: pre-wrap; }
@media print { body { background: none; } .card, figure { break-inside: avoid; } }
)";

constexpr char kTerms[] = R"(<dl class="soft">
<dt>Strategies</dt><dd>ps_async and ps_sync: parameter servers whose updates each worker makes on its own, or all
together; ps_backup: together, without waiting for the slowest; allreduce: no servers; hybrid: both.</dd>
<dt>k</dt><dd>The number of parameter servers: on hosts of their own, or on those of the workers.</dd>
<dt>Step</dt><dd>The time of one update, the median of the repetitions. With ps_async each push of a worker is an
update.</dd>
<dt>Efficiency</dt><dd>Samples/s by the number of workers times the samples/s of one worker: of the strategy that was
fastest with one, for all of a model over the same links.</dd>
<dt>Bound</dt><dd>The least time in which the links can carry the bytes of a step, if nothing else took time. Of
bound: that time by the measured one.</dd>
<dt>Sent, received</dt><dd>By the chief worker, per step. CPU: of all tasks together, per step.</dd>
<dt>Host CPU, host net</dt><dd>Of the busiest host while it trains: its tasks' time on processors, where 100&#160;% is one
of them, and what its network interface carries in its busier direction, whoever sends it.</dd>
<dt>Algbw</dt><dd>Bandwidth of the algorithm: the bytes of the model by the time that a step takes a worker beyond
computing, where computing is the wait, or a step of one worker alone. So what others are waited for counts, and what
overlaps with computing does not.</dd>
<dt>Busbw</dt><dd>Bandwidth of the bus: by the same time, the bytes that the busiest link has to carry in its busier
direction, to be compared with the rate of the links. With allreduce 2&#160;(n&#160;-&#160;1)&#160;/&#160;n times the model, n being the
workers; with synchronous servers what the bound counts: with k of them on hosts of their own n&#160;/&#160;k times the model,
as both directions are in use at once, and twice that where pushes travel whole (ps_backup, and less than 64&#160;KiB for
each server). It is above the rate where bytes travel while gradients are still computed, as with allreduce in parts,
and of small models where links let bursts pass, as those of virtual hosts do. With ps_async there is none, as some
workers compute while others have the links.</dd>
<dt>Predicted, off by</dt><dd>The simulator's step time, and how much longer or shorter it is than the measured
one.</dd>
</dl>
)";

std::string Element(const char* name, const std::string& text) {
  return absl::StrFormat("<%s>%s</%s>\n", name, Escape(text), name);
}

// A number stays on one line with its sign, and k with its number.
std::string SentenceHtml(const std::string& sentence) {
  return absl::StrReplaceAll(Escape(sentence), {{" %", "&#160;%"}, {"k = ", "k&#160;=&#160;"}});
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

std::string LegendHtml(const std::vector<Line>& lines, bool shows_bounds) {
  bool has_bound = false, has_curve = false;
  std::string html = "<ul class=\"legend\">\n";
  for (const Line& line : lines) {
    has_curve = has_curve || line.curve != nullptr;
    for (const Measurement* measurement : line.measured) has_bound = has_bound || BoundFraction(*measurement);
    html += "<li>" + LegendSvg(ChartLine::Kind::kMeasured, line.look) + "<span>" + Escape(line.name) +
            "</span></li>\n";
  }
  if (has_bound && shows_bounds)
    html += "<li>" + LegendSvg(ChartLine::Kind::kBound, {}) + "<span>bound of the links</span></li>\n";
  if (has_curve)
    html += "<li>" + LegendSvg(ChartLine::Kind::kSimulated, {}) + "<span>simulated</span></li>\n";
  return html + "</ul>\n";
}

std::string Figure(const std::string& title, const std::string& chart, const std::string& caption,
                   const std::string& legend = "") {
  return "<figure>\n" + Element("h3", title) + chart + legend + Element("figcaption", caption) +
         "</figure>\n";
}

// One for each number of servers: a curve keeps that from its first worker to its last.
std::string SimulatedFigures(const Group& group, const std::vector<Line>& lines) {
  constexpr char kCaption[] = "Markers: measured. Light lines: the simulator.";
  const std::vector<int> all_servers = ServersOfCurves(lines);
  if (all_servers.empty()) {
    const std::string chart = SimulatedChart(group, lines);
    return chart.empty() ? "" : Figure("Predicted beyond", chart, kCaption);
  }
  std::string html;
  for (const int servers : all_servers) {
    const std::vector<Line> some = LinesWith(lines, servers);
    html += Figure(absl::StrFormat("Predicted beyond, k = %d", servers), SimulatedChart(group, some),
                   absl::StrFormat("%s %d %s for any number of workers.", kCaption, servers,
                                   servers == 1 ? "server" : "servers"),
                   all_servers.size() > 1 ? LegendHtml(some, /*shows_bounds=*/false) : "");
  }
  return html;
}

std::string ChartsHtml(const Group& group, const std::vector<Line>& lines) {
  std::string html = LegendHtml(lines, /*shows_bounds=*/true) + "<div class=\"grid\">\n";
  const int most_workers = MostWorkers(lines);
  if (most_workers > 0) {
    html += Figure("Measured", MeasuredChart(group, lines),
                   "Dashed: the bound; where it is not in the picture, it is unknown or lies above.");
  }
  html += SimulatedFigures(group, lines);
  if (most_workers > 0) {
    const std::string with = " with " + WorkersText(most_workers);
    html += Figure("Bytes per step" + with, BytesChart(group, lines),
                   "Of the chief worker: sent (full colour) + received (pale).");
    html +=
        Figure("Step time" + with, StepTimeChart(group, lines),
               "Full colour: the bound, where it is known; pale: the rest. The line across: the prediction.");
  }
  return html + "</div>\n";
}

std::string GroupHtml(const Group& group, const GroupAdvice& advice, size_t index) {
  const std::vector<Line> lines = LinesOf(group);
  return absl::StrFormat("<section id=\"group-%d\">\n", index) + Element("h2", advice.title) +
         "<div class=\"card findings\">\n" + ListHtml(advice.sentences) + "</div>\n" +
         (lines.empty() ? "" : ChartsHtml(group, lines)) + "</section>\n";
}

std::string TableHtml(const Table& table) {
  const auto is_text = [](const muster::Cell& cell) {
    return std::holds_alternative<std::string>(cell.value);
  };
  std::string html = "<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>";
  for (size_t i = 0; i < table.header().size(); ++i) {
    const bool is_left = !table.empty() && is_text(table.rows().front()[i]);
    html += absl::StrFormat("<th scope=\"col\"%s>%s</th>", is_left ? " class=\"text\"" : "",
                            Escape(table.header()[i]));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows()) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_error = table.header()[i] == "ERROR";
      html += absl::StrFormat("<td%s>%s</td>",
                              is_error          ? " class=\"error\""
                              : is_text(row[i]) ? " class=\"text\""
                                                : "",
                              Escape(row[i].text));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n</div>\n";
}

// Folded up, since there are many.
std::string HostsHtml(const Results& results) {
  const Table table = HostsTable(results);
  if (table.empty()) return "";
  return "<section>\n<h2>Every host</h2>\n<details>\n<summary>Processors and network of each host in each "
         "cell</summary>\n" +
         TableHtml(table) + "</details>\n</section>\n";
}

}  // namespace

std::string ReportHtml(const Results& results) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>muster bench</title>\n<style>";
  html +=
      std::string(kStyle) + "</style>\n</head>\n<body>\n<header>\n<h1>Parameter server or allreduce?</h1>\n";
  html +=
      "<p class=\"soft\">Measured by muster bench on " + Escape(results.where) + "</p>\n</header>\n<main>\n";
  const Advice advice = MakeAdvice(results);
  const std::vector<Group> groups = GroupsOf(results);  // one for each group of the advice
  html += AdviceHtml(advice);
  for (size_t i = 0; i < groups.size(); ++i) html += GroupHtml(groups[i], advice.groups[i], i);
  html += "<section>\n<h2>Every cell</h2>\n" + TableHtml(ResultsTable(results)) + "</section>\n" +
          HostsHtml(results) + "<section>\n<h2>What the words mean</h2>\n" + kTerms + "</section>\n";
  html += "<section>\n<h2>How it was made</h2>\n<pre>" + Escape(results.command) +
          "</pre>\n<p class=\"soft\">" + Escape(results.created) + ", on " + Escape(results.where) +
          "</p>\n</section>\n</main>\n</body>\n</html>\n";
  return html;
}

}  // namespace muster::bench
