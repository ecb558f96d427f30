#include "launcher/gpus.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <map>

#include "base/quoted_bytes.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

// In a line of its own, behind whatever a login shell prints.
constexpr std::string_view kSentinel = "muster-gpus\n";
constexpr std::string_view kCommand =
    "command -v nvidia-smi >/dev/null 2>&1 || exit 0; echo muster-gpus; exec nvidia-smi "
    "--query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits";

constexpr size_t kMostWords = 200;

std::string LastLine(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t before = text.rfind('\n');
  return std::string(before == text.npos ? text : text.substr(before + 1));
}

}  // namespace

absl::StatusOr<std::vector<Gpu>> AskForGpus(Transport& transport, TimePoint deadline, int cancel_fd) {
  MUSTER_ASSIGN_OR_RETURN(const HostCommandResult result,
                          RunOnHost(transport, ForAnyLoginShell(kCommand), "", deadline, 1 << 20, cancel_fd));
  const size_t at = result.stdout_text.rfind(kSentinel);
  if (at == std::string::npos) return std::vector<Gpu>();
  const std::string said = result.stdout_text.substr(at + kSentinel.size());
  if (result.exit_code != 0) {
    const std::string why = LastLine(said).empty() ? LastLine(result.stderr_tail) : LastLine(said);
    return Unavailable("%s: nvidia-smi exits with code %d: %s", transport.host(), result.exit_code,
                       absl::CHexEscape(why.substr(0, kMostWords)));
  }
  const auto gpus = ParseGpus(said);
  return gpus.ok() ? gpus : Annotate(gpus.status(), transport.host());
}

absl::StatusOr<std::vector<Gpu>> ParseGpus(const std::string& csv) {
  std::vector<Gpu> gpus;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(csv, '\n', absl::SkipWhitespace()))) {
    std::vector<std::string> fields = absl::StrSplit(line, ',');
    for (std::string& field : fields) absl::StripAsciiWhitespace(&field);
    Gpu gpu;
    if (fields.size() != 4 || !absl::SimpleAtoi(fields[0], &gpu.index) || gpu.index < 0) {
      return Unavailable("nvidia-smi says what is no GPU: %s", QuotedBytes(line));
    }
    uint64_t mebibytes = 0;
    if (absl::SimpleAtoi(fields[2], &mebibytes)) gpu.memory_bytes = mebibytes << 20;  // or "[N/A]"
    gpu.name = fields[1];
    gpu.driver = fields[3];
    gpus.push_back(std::move(gpu));
  }
  std::ranges::sort(gpus, {}, &Gpu::index);
  return gpus;
}

std::vector<std::string> DescribeGpus(const std::vector<Gpu>& gpus) {
  std::map<std::string, int> counts;
  for (const Gpu& gpu : gpus) {
    std::string text = gpu.name;
    if (gpu.memory_bytes > 0) {
      text += absl::StrFormat(" (%.1f GiB)", static_cast<double>(gpu.memory_bytes) / (1 << 30));
    }
    ++counts[text];
  }
  std::vector<std::string> texts;
  for (const auto& [text, count] : counts) texts.push_back(absl::StrFormat("%dx %s", count, text));
  if (!texts.empty()) texts.push_back("driver " + gpus.front().driver);
  return texts;
}

}  // namespace muster
