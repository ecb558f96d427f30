// muster: the command.

#include <csignal>
#include <cstdio>

#include <absl/strings/str_join.h>
#include <CLI/CLI.hpp>

#include "base/command_line.h"
#include "base/descriptor_limit.h"
#include "base/nearest.h"
#include "base/stdout.h"
#include "inventory/host_range.h"
#include "launcher/commands/context.h"
#include "launcher/data_sets.h"
#include "launcher/virtual_hosts.h"

namespace muster {
namespace {

struct CommandLine {
  CLI::App app{"Runs training jobs on machines you have, over SSH.", "muster"};
  CommandFlags flags;
  std::string format = "text";
  CLI::App* check = app.add_subcommand("check", "Connect to every host of an inventory and say what it is");
  CLI::App* plan = app.add_subcommand("plan", "Say what `run` would do, without contacting anything");
  CLI::App* run = app.add_subcommand("run", "Run a job, or bring a running one to what its file says now");
  CLI::App* up = app.add_subcommand("up", "Start servers that stand, and train one job after the other");
  CLI::App* scale = app.add_subcommand("scale", "Give a job that runs more workers, or fewer");
  CLI::App* show = app.add_subcommand("show", "The hosts and tasks of a job")->alias("status");
  CLI::App* logs = app.add_subcommand("logs", "What the tasks of a job printed");
  CLI::App* events = app.add_subcommand("events", "What happened to the hosts and tasks of a job, and when");
  CLI::App* stop = app.add_subcommand("stop", "Stop a job: nothing of it is left on any host");
  CLI::App* gc = app.add_subcommand("gc", "Remove from the hosts what jobs that have ended left there");
  CLI::App* exec = app.add_subcommand("exec", "Run a command on every host of an inventory");
  CLI::App* list = app.add_subcommand("list", "The jobs run from this account");
  CLI::App* data = app.add_subcommand("data", "Data sets: fetch the real ones, or make synthetic ones");
  CLI::App* data_fetch = data->add_subcommand("fetch", "Download a data set, once");
  CLI::App* data_make = data->add_subcommand("make", "Write the synthetic stand-in for a data set");
  CLI::App* bench = app.add_subcommand("bench", "Train by every strategy, side by side: which one to use?");
  CLI::App* wait = app.add_subcommand("wait", "Wait for the end of a job, and exit as it does");
  // What muster asks of itself on another machine: no command for people.
  CLI::App* controller = app.add_subcommand("controller", "")->group("");
  CLI::App* controller_check = controller->add_subcommand("check", "");
  CLI::App* controller_drive = controller->add_subcommand("drive", "");
  CLI::App* controller_resume = controller->add_subcommand("resume", "");
  CLI::App* controller_await = controller->add_subcommand("await", "");
  CLI::App* controller_export = controller->add_subcommand("export", "");
  CLI::App* controller_release = controller->add_subcommand("release", "");
  CLI::App* controller_forget = controller->add_subcommand("forget", "");
};

// Of all flags that take seconds. Times are 64 bits of nanoseconds; the limit is far from that and far from
// any job. CLI11's own check lets nan pass, and shows its bounds with all their digits.
CLI::Validator Seconds(bool can_be_zero = false) {
  return CLI::Validator(
      [can_be_zero](std::string& text) -> std::string {
        constexpr double kMost = 1e9;
        double seconds = 0;
        const bool is_number = CLI::detail::lexical_cast(text, seconds) && seconds <= kMost;
        if (is_number && (seconds > 0 || (can_be_zero && seconds == 0))) return "";
        return absl::StrFormat("expected seconds, a number %s and at most %.0f, found '%s'",
                               can_be_zero ? "from 0 on" : "above 0", kMost, text);
      },
      "SECONDS");
}

// Not "", as of a variable of the shell that is not set: the usual file would be taken instead.
CLI::Validator NamedFile() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "expected a file, found ''" : ""; },
      "FILE");
}

void Declare(CommandLine& line) {
  CLI::App& app = line.app;
  CommandFlags& flags = line.flags;
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("muster ") + MUSTER_VERSION);
  for (CLI::App* command : {line.run, line.plan})
    command->add_option("JOB", flags.job, "Job file (YAML)")->required();
  line.up->add_option("FILE", flags.job, "File about the servers (YAML): name, replicas: {ps: ...}")
      ->required();
  line.up->footer(
      "Returns once they stand. `muster run --cluster NAME JOB` trains a job on them, `show`, `logs`, "
      "`events`\n"
      "and `stop` take their NAME as they take that of a job.");
  for (CLI::App* command : {line.run, line.plan}) {
    command->add_option("--cluster", flags.cluster,
                        "Name of servers that stand (`up`), which train it instead of the job's own");
  }
  for (CLI::App* command : {line.scale, line.show, line.logs, line.events, line.stop, line.wait}) {
    command->add_option("JOB", flags.job, "Id of a job, or its name: the one that runs, or the newest")
        ->required();
  }
  for (CLI::App* command : {line.run, line.plan, line.up, line.check, line.exec, line.bench}) {
    command
        ->add_option("-i,--inventory", flags.inventory,
                     "Inventory file (YAML) [MUSTER_INVENTORY, or inventory.yaml]")
        ->check(NamedFile());
  }
  for (CLI::App* command : {line.run, line.up, line.scale, line.check, line.exec, line.show, line.logs,
                            line.stop, line.gc, line.wait, line.bench}) {
    command
        ->add_option(
            "--known-hosts", flags.known_hosts,
            "Keys of hosts, under the inventory's names [~/.muster/known_hosts, or MUSTER_KNOWN_HOSTS]")
        ->check(NamedFile());
  }
  for (CLI::App* command : {line.run, line.up, line.scale, line.check, line.exec, line.show, line.logs,
                            line.stop, line.gc, line.wait, line.bench}) {
    command->add_flag("-k,--ask-password", flags.ask_password,
                      "Ask once for the password of the hosts' accounts, for hosts that take no key");
  }
  for (CLI::App* command : {line.check, line.exec, line.show, line.logs, line.stop, line.gc}) {
    command->add_option("--connect-timeout", flags.connect_timeout_s, "Seconds for a host to answer")
        ->check(Seconds())
        ->capture_default_str();
  }
  for (CLI::App* command : {line.check, line.plan, line.run, line.exec, line.show, line.events, line.list,
                            line.wait, line.bench}) {
    command
        ->add_option("-o,--output", line.format,
                     command == line.events ? "text or json: an object on each line"
                     : command == line.run
                         ? "text or json: the result alone on stdout, what tasks print on stderr"
                         : "text or json")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
  }
  line.run
      ->add_option("--timeout", flags.timeout_s,
                   "Seconds for the whole job; then it is stopped, exit status 124")
      ->check(Seconds());
  line.wait
      ->add_option("--timeout", flags.timeout_s, "Seconds to wait; then exit status 124, and the job goes on")
      ->check(Seconds());
  line.exec
      ->add_option("--timeout", flags.timeout_s, "Seconds for the command on each host; then exit status 124")
      ->check(Seconds());
  line.gc->add_option("JOB", flags.jobs, "Only these: ids of jobs, or names [all that have ended]");
  line.gc
      ->add_option("--unused", flags.unused_s,
                   "Seconds for which programs and data of no job must have been unused to be removed too")
      ->check(Seconds(/*can_be_zero=*/true))
      ->capture_default_str();
  line.gc
      ->add_option("--gone", flags.gone_hosts,
                   "Hosts that never come back: they are not asked, and nothing is left there")
      ->delimiter(',');
  line.gc->footer(
      "Logs, checkpoints and whatever else the tasks wrote go; the records of the jobs, and what came back\n"
      "from them when they ended, stay on this machine.");
  line.exec->add_option("--parallel", flags.parallel, "Hosts at a time [all]")
      ->check(CLI::Range(size_t{1}, kMaxHosts));
  line.exec->add_option("--hosts", flags.hosts, "Only on these hosts of the inventory")->delimiter(',');
  line.exec
      ->add_option("COMMAND", flags.words,
                   "Behind --: one word is a line for sh, several are taken as they are")
      ->required();
  line.scale->add_option("ROLE=N", flags.replicas, "worker=6: so many, the others go on")->required();
  line.scale->footer(
      "For jobs in the background (`run -d`), whose workers may come and go (docs/jobs.md).\n"
      "Returns once every task runs. The job file keeps its `count`, which the next `muster run` brings "
      "back.");
  for (CLI::App* command : {line.run, line.up, line.scale, line.wait}) {
    command
        ->add_option(
            "--lost-timeout", flags.lost_timeout_s,
            "Seconds for a host that is lost to come back before the job fails [60, of servers that stand "
            "a week; or what `run` was given]")
        ->check(Seconds());
  }
  line.check->add_flag("--accept-new", flags.accept_new,
                       "Trust hosts whose key is not known yet, and remember it");
  line.run->add_flag("-d,--detach", flags.detach, "Return once every task runs");
  for (CLI::App* command : {line.run, line.up}) {
    command
        ->add_option(
            "--on", flags.controller,
            command == line.run
                ? "With -d: host of the inventory that drives the job, so that this machine may sleep or go"
                : "Host of the inventory that drives them, and the jobs that they train, in place of this "
                  "machine")
        ->type_name("HOST");
  }
  for (CLI::App* command : {line.controller_resume, line.controller_await, line.controller_export,
                            line.controller_release, line.controller_forget}) {
    command->add_option("JOB", flags.job)->required();
  }
  line.controller->require_subcommand(1);
  line.run->add_flag("-q,--quiet", flags.quiet, "Without the output of the tasks");
  line.show->add_flag("-m,--metrics", flags.metrics,
                      "Also what its trainers count and time, as of the last second that they ran");
  line.logs->add_option("TASK", flags.tasks, "Only these: worker:0");
  line.logs->add_flag("-f,--follow", flags.follow, "Go on until the tasks have ended");
  line.events->add_flag("-f,--follow", flags.follow, "Go on until the job has ended");
}

void DeclareData(CommandLine& line) {
  CommandFlags& flags = line.flags;
  std::vector<std::string> sets;
  for (const DataSet& set : DataSets()) sets.push_back(set.name);
  line.data->require_subcommand(1);
  for (CLI::App* command : {line.data_fetch, line.data_make}) {
    command->add_option("SET", flags.data_set, absl::StrJoin(sets, " or "))
        ->required()
        ->check(CLI::IsMember(sets).description(""));
  }
  line.data_fetch->add_option("DIR", flags.data_folder,
                              "Where to, as DIR/SET/ [the cache that `data: auto` of a job looks into: "
                              "$MUSTER_CACHE/data, or muster/data under $XDG_CACHE_HOME or ~/.cache]");
  line.data_fetch
      ->add_option("--mirror", flags.mirrors,
                   "URL of a folder with the files, instead of the known ones; may be repeated")
      ->allow_extra_args(false);
  line.data_fetch->footer(
      "What was cut off is gone on with, what does not have the SHA-256 of the set is thrown away, and\n"
      "what is there stays. Prints the folder to stdout. Exit status: 69 if no mirror gives a file, 1 if "
      "one\n"
      "gave something else, if DIR holds something else, or if another process is fetching the same\n"
      "file (wait for its end, then call this again).");
  line.data_make->add_option("DIR", flags.data_folder, "Where to, as DIR/SET/; overwrites nothing")
      ->required();
}

// The matrix: each of these against each.
void DeclareBench(CLI::App& bench, BenchFlags& flags) {
  constexpr int kMostTasks = 4096, kMostTimes = 1000;
  const auto list = [&](const char* name, auto& values, const char* help) {
    return bench.add_option(name, values, help)->delimiter(',');
  };
  list("--strategies", flags.strategies,
       "ps_async, ps_sync, ps_backup (one worker less makes a step), allreduce, hybrid [all that fit the "
       "model]");
  list("--models", flags.models, "Models, with a variant behind a colon: mnist_cnn:deep")
      ->capture_default_str();
  list("--workers", flags.workers, "Numbers of workers; with 1, how well they scale is known")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  list("--ps", flags.servers, "Numbers of parameter servers")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  bench.add_flag("--servers-on-workers", flags.servers_on_workers,
                 "Servers run on the workers' hosts, also where there are enough for each to have one");
  bench
      .add_option("--virtual", flags.virtual_hosts,
                  "So many hosts on this machine instead of the inventory's, as network namespaces (root)")
      ->check(CLI::Range(1, kMaxVirtualHosts))
      ->excludes("--inventory");
  list("--link", flags.links, "Rates of virtual hosts' links: 100mbit, 1gbit, none");
  bench.add_option("--steps", flags.steps, "Of each worker")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  bench.add_option("--batch-size", flags.batch_size, "Samples of a worker's step [the model's]")
      ->check(CLI::Range(1, 1'000'000));
  bench
      .add_option(
          "--device", flags.device,
          "auto, cpu, cuda:N; or wait:N, N milliseconds instead of computing, where hosts share cores")
      ->capture_default_str();
  bench.add_option("--threads", flags.threads, "Of each task")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench.add_option("--repeat", flags.repeat, "How often each job is run")
      ->check(CLI::Range(1, kMostTimes))
      ->capture_default_str();
  bench.add_option("--target", flags.target, "Also the time to this accuracy on the test set")
      ->check(CLI::Range(0.0, 1.0));
  bench.add_option("--job-timeout", flags.job_timeout_s, "Seconds for each job")
      ->check(Seconds())
      ->capture_default_str();
  bench.add_option("--folder", flags.folder, "For results.json and report.html")->capture_default_str();
  bench.footer(
      "Prints a table and what follows from it. Exit status: 1 if one of the jobs failed, 69 if a host of "
      "the "
      "inventory cannot be reached.");
}

absl::StatusOr<int> Dispatch(const CommandLine& line, const CommandContext& context) {
  if (*line.run) return RunJobCommand(context);
  if (*line.up) return UpCommand(context);
  if (*line.scale) return ScaleCommand(context);
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
  if (*line.show) status = ShowCommand(context);
  if (*line.logs) status = LogsCommand(context);
  if (*line.events) status = EventsCommand(context);
  if (*line.stop) status = StopCommand(context);
  if (*line.gc) status = GcCommand(context);
  if (*line.list) status = ListCommand(context);
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
  CommandLine line;
  Declare(line);
  DeclareData(line);
  DeclareBench(*line.bench, line.flags.bench);
  line.flags.bench.command.assign(argv, argv + argc);
  line.flags.bench.version = MUSTER_VERSION;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const absl::Status values = CheckFlagValues(arguments); !values.ok()) {
    std::fprintf(stderr, "muster: %s\n", std::string(values.message()).c_str());
    return 2;
  }
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (const std::string unknown = UnknownCommand(line.app); !unknown.empty()) return BadUsage(unknown);
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
  line.flags.connects_to_inventory = *line.run || *line.up || *line.check || *line.exec ||
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
