// exec: a command on many hosts at once.
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/stdout.h"
#include "launcher/commands/context.h"
#include "launcher/fleet.h"
#include "launcher/host_records.h"
#include "launcher/terminal.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kNoTimeout = std::chrono::hours(24 * 365);  // a lost connection ends it, as everywhere
constexpr size_t kMostKept = size_t{64} << 20;                 // of a host's output, for JSON

struct HostRun {
  int exit_code = 0;
  std::string stdout_text, stderr_text;  // only for JSON
  size_t kept() const { return stdout_text.size() + stderr_text.size(); }
  double seconds = 0;  // with the connection
};

absl::StatusOr<std::string> CommandLineOf(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (word.find_first_of("\n\r") != std::string::npos) {
      return InvalidArgument(
          "exec: a word holds a line break (\\n or \\r), which login shells do not quote alike");
    }
    line += (line.empty() ? "" : " ") + QuoteWord(word);
  }
  return words.size() == 1 ? words[0] : line;
}

// Lines of all hosts, each with its host's name.
class Output {
 public:
  explicit Output(OutputFormat format) : format_(format) {}

  // Cancelled: nobody reads it any more.
  absl::Status Take(const std::string& host, std::string_view bytes, HostRun& run) {
    if (format_ == OutputFormat::kJson) {
      run.stdout_text += bytes;
      return CheckKept(host, run);
    }
    const std::lock_guard lock(mutex_);
    printer_.Print(host, "", std::string(bytes));
    return ReaderIsGone(STDOUT_FILENO) ? Cancelled("nobody reads on") : absl::OkStatus();
  }
  absl::Status TakeErrors(const std::string& host, std::string_view bytes, HostRun& run) {
    if (format_ == OutputFormat::kJson) {
      run.stderr_text += bytes;
      return CheckKept(host, run);
    }
    const std::lock_guard lock(mutex_);
    error_printer_.Print(host, "", std::string(bytes));
    return ReaderIsGone(STDERR_FILENO) ? Cancelled("nobody reads on") : absl::OkStatus();
  }
  void Flush(const std::string& host) {
    const std::lock_guard lock(mutex_);
    printer_.Flush(host, "");
    error_printer_.Flush(host, "");
  }

 private:
  static absl::Status CheckKept(const std::string& host, const HostRun& run) {
    if (run.kept() <= kMostKept) return absl::OkStatus();
    return FailedPrecondition("%s: more than %d bytes of output, and the command may go on there", host,
                              kMostKept);
  }

  const OutputFormat format_;
  std::mutex mutex_;
  LogPrinter printer_{/*prefix=*/true};
  LogPrinter error_printer_{/*prefix=*/true, STDERR_FILENO};
};

absl::Status RunOn(const record::Host& host, const CommandContext& context, const ConnectOptions& connect,
                   const std::string& command, Output& output, HostRun& run) {
  if (ReaderIsGone(STDOUT_FILENO)) return absl::OkStatus();  // nothing more is begun, either
  const auto transport = OpenTransport(host, connect, Now() + context.connect_timeout());
  if (!transport.ok()) return transport.status();
  const std::optional<Duration> timeout = FromSeconds(context.flags().timeout_s);
  const auto result = RunOnHost(
      **transport, command, "", Now() + timeout.value_or(kNoTimeout),
      [&](std::string_view bytes) { return output.Take(host.name(), bytes, run); },
      [&](std::string_view bytes) { return output.TakeErrors(host.name(), bytes, run); });
  if (absl::IsDeadlineExceeded(result.status())) {
    return DeadlineExceeded("%s: the command has not ended within %s, and may go on there", host.name(),
                            FormatAge(timeout.value_or(kNoTimeout)));
  }
  if (absl::IsCancelled(result.status())) return absl::OkStatus();  // who has gone has seen what it wanted
  MUSTER_RETURN_IF_ERROR(result.status());
  run.exit_code = result->exit_code;
  return absl::OkStatus();
}

void ReportText(const record::Host& host, const absl::Status& status, const HostRun& run) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  } else if (run.exit_code != 0) {
    std::fprintf(stderr, "%s: exited with code %d\n", host.name().c_str(), run.exit_code);
  }
}

Json ReportJson(const record::Host& host, const absl::Status& status, const HostRun& run) {
  Json json = {{"host", host.name()}, {"exit_code", nullptr}, {"error", nullptr}};
  if (status.ok()) {
    json["exit_code"] = run.exit_code;
  } else {
    json["error"] = std::string(status.message());
  }
  json["stdout"] = run.stdout_text;
  json["stderr"] = run.stderr_text;
  json["seconds"] = run.seconds;
  return json;
}

}  // namespace

absl::StatusOr<int> ExecCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const std::string command, CommandLineOf(context.flags().words));
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryFlag());
  const std::vector<record::Host> hosts = AllHosts(inventory);
  ConnectOptions connect = context.connect_options(hosts);
  MUSTER_ASSIGN_OR_RETURN(KnownHosts known_hosts, KnownHosts::Load(context.known_hosts()));
  connect.lent = std::make_shared<const LentConnections>(LentConnections{
      .sockets = ListenedAt(context.jobs().ConnectionsSockets()), .known_hosts = std::move(known_hosts)});
  Output output(context.flags().format);
  std::vector<HostRun> runs(hosts.size());
  const std::vector<absl::Status> statuses =
      OnEachHost(hosts.size(), context.flags().parallel, [&](size_t i) {
        const TimePoint start = Now();
        const absl::Status status = RunOn(hosts[i], context, connect, command, output, runs[i]);
        runs[i].seconds = ToSeconds(Now() - start);
        output.Flush(hosts[i].name());
        return status;
      });
  Json all = Json::array();
  int exit_code = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (context.flags().format == OutputFormat::kJson) {
      all.push_back(ReportJson(hosts[i], statuses[i], runs[i]));
    } else {
      ReportText(hosts[i], statuses[i], runs[i]);
    }
    if (exit_code == 0) exit_code = runs[i].exit_code;
  }
  if (context.flags().format == OutputFormat::kJson) {
    PrintToStdout(all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  const absl::Status failure = FirstFailure(statuses);
  if (!failure.ok()) return absl::Status(failure.code(), "the command did not run to its end on every host");
  return exit_code;
}

}  // namespace muster
