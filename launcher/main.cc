// muster: the command.

#include <csignal>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/descriptor_limit.h"
#include "base/nearest.h"
#include "base/stdout.h"
#include "launcher/command_line.h"
#include "launcher/commands/complete.h"
#include "launcher/completion.h"

namespace muster {
namespace {

absl::StatusOr<int> Dispatch(const CommandLine& line, const CommandContext& context) {
  if (*line.run) return RunJobCommand(context);
  if (*line.up) return UpCommand(context);
  if (*line.scale) return ScaleCommand(context);
  if (*line.restart) return RestartCommand(context);
  if (*line.wait) return WaitCommand(context);
  if (*line.exec) return ExecCommand(context);
  if (*line.bench) return BenchCommand(context);
  if (*line.data_make) return MakeDataCommand(context);
  if (*line.controller_drive || *line.controller_resume) return DriveCommand(context);
  using Action = ControlledJobAction;
  if (*line.controller_await) return ControlledJobCommand(context, Action::kAwait);
  if (*line.controller_export) return ControlledJobCommand(context, Action::kExport);
  if (*line.controller_release) return ControlledJobCommand(context, Action::kRelease);
  if (*line.controller_forget) return ControlledJobCommand(context, Action::kForget);
  absl::Status status;
  if (*line.check) status = CheckCommand(context);
  if (*line.plan) status = PlanCommand(context);
  if (*line.export_job) status = ExportCommand(context);
  if (*line.show) status = ShowCommand(context);
  if (*line.logs) status = LogsCommand(context);
  if (*line.events) status = EventsCommand(context);
  if (*line.stop) status = StopCommand(context);
  if (*line.gc) status = GcCommand(context);
  if (*line.list) status = ListCommand(context);
  if (*line.compare) status = CompareCommand(context);
  if (*line.completion) status = CompletionCommand(context);
  if (*line.data_fetch) status = FetchDataCommand(context);
  if (*line.controller_check) status = CheckControllerCommand(context);
  if (!status.ok()) return status;
  return 0;
}

// Of a word that was meant as a command; empty: there is none. CLI11 only knows that there was no command.
std::string UnknownCommand(const CLI::App& app) {
  const CLI::App* last = &app;  // of the commands that were given
  while (!last->get_subcommands().empty()) last = last->get_subcommands().back();
  const std::vector<std::string> unknown = last->remaining();
  std::vector<std::string> commands;
  for (const CLI::App* command : last->get_subcommands({})) commands.push_back(command->get_name());
  if (unknown.empty() || commands.empty()) return "";
  const std::string nearest = NearestWord(unknown[0], commands);
  return "unknown command '" + unknown[0] + "'" +
         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

int BadUsage(const std::string& what) {
  std::fprintf(stderr, "muster: %s (muster --help lists the commands)\n", what.c_str());
  return 2;
}

int RunCommandLine(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();  // each host takes a few
  CommandLine line(MUSTER_VERSION);
  line.flags.bench.command.assign(argv, argv + argc);
  line.flags.bench.version = MUSTER_VERSION;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // Its words are of a line that is not complete, and may be no flags of muster's.
  if (!arguments.empty() && arguments[0] == kCompleteCommand) {
    return CompleteCommand(line.app, std::span(arguments).subspan(1));
  }
  if (const absl::Status values = CheckFlagValues(arguments); !values.ok()) {
    std::fprintf(stderr, "muster: %s\n", std::string(values.message()).c_str());
    return 2;
  }
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (const std::string unknown = UnknownCommand(line.app); !unknown.empty()) return BadUsage(unknown);
    // It is a flag of theirs: `exec df -h`.
    if (*line.exec && !line.flags.words.empty()) {
      return BadUsage("the command that `exec` is to run belongs behind --: muster exec -- " +
                      line.flags.words[0] + " ...");
    }
    PrintToStdout(line.app.help());
    return 0;
  } catch (const CLI::CallForVersion&) {
    PrintToStdout(line.app.version() + "\n");
    return 0;
  } catch (const CLI::RequiredError& error) {
    const std::string unknown = UnknownCommand(line.app);
    return BadUsage(unknown.empty() ? error.what() : unknown);
  } catch (const CLI::ExtrasError&) {
    return BadUsage(UnexpectedArgument(line.app));
  } catch (const CLI::ParseError& error) {
    return BadUsage(error.what());
  }
  line.flags.format = line.format == "json" ? OutputFormat::kJson : OutputFormat::kText;
  line.flags.connects_to_inventory = *line.run || *line.plan || *line.up || *line.check || *line.exec ||
                                     (*line.bench && line.flags.bench.virtual_hosts == 0);
  absl::StatusOr<int> code = 0;
  if (const auto context = CommandContext::Create(line.flags); context.ok()) {
    code = Dispatch(line, *context);
  } else {
    code = context.status();
  }
  if (code.ok()) return *code;
  std::fprintf(stderr, "muster: %s\n", std::string(code.status().message()).c_str());
  return ExitCodeFor(code.status());
}

int Main(int argc, char** argv) {
  const int code = RunCommandLine(argc, argv);
  const absl::Status printed = StdoutStatus();
  if (printed.ok()) return code;
  // A script that takes 0 for "everything is in the file" must not get it.
  std::fprintf(stderr, "muster: %s\n", std::string(printed.message()).c_str());
  return code != 0 ? code : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
