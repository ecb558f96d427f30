#include "launcher/command_line.h"

#include <iterator>
#include <vector>

#include "inventory/host_range.h"
#include "launcher/completion.h"
#include "launcher/data_sets.h"
#include "launcher/virtual_hosts.h"

namespace muster {
namespace {

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

CLI::Validator AccuracyToReach() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double accuracy = 0;
        if (CLI::detail::lexical_cast(text, accuracy) && accuracy > 0 && accuracy <= 1) return "";
        return absl::StrFormat("expected an accuracy, a number above 0 and at most 1, found '%s'", text);
      },
      "ACCURACY");
}

// Not "", as of a variable of the shell that is not set: the usual file would be taken instead.
CLI::Validator NamedFile() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "expected a file, found ''" : ""; },
      "FILE");
}

void DeclareArguments(CommandLine& line) {
  CommandFlags& flags = line.flags;
  for (CLI::App* command : {line.run, line.plan, line.export_job})
    command->add_option("JOB", flags.job, "Job file (YAML)")->type_name("FILE")->required();
  line.up->add_option("FILE", flags.job, "File about the servers (YAML): name, replicas: {ps: ...}")
      ->required();
  for (CLI::App* command :
       {line.scale, line.restart, line.show, line.logs, line.events, line.stop, line.wait}) {
    command->add_option("JOB", flags.job, "Id of a job, or its name: the one that runs, or the newest")
        ->required();
  }
  line.scale->add_option("ROLE=N", flags.replicas, "worker=6: so many, the others go on")->required();
  for (CLI::App* command : {line.logs, line.restart})
    command->add_option("TASK", flags.tasks, "Only these: worker:0");
  line.gc->add_option("JOB", flags.jobs, "Only these: ids of jobs, or names [all that have ended]");
  line.compare
      ->add_option("JOB|FILE", flags.jobs,
                   "Two or more: a job as for `show`, or a path of what `--result_json` wrote")
      ->required()
      ->expected(2, -1);
  line.exec
      ->add_option("COMMAND", flags.words,
                   "Behind --: one word is a line for sh, several are taken as they are")
      ->required();
}

// How hosts are found and logged in to.
void DeclareHosts(CommandLine& line) {
  CommandFlags& flags = line.flags;
  for (CLI::App* command : {line.run, line.plan, line.up, line.check, line.exec, line.bench}) {
    command
        ->add_option("-i,--inventory", flags.inventory,
                     "Inventory: YAML, Ansible's, or a hostfile [MUSTER_INVENTORY, or inventory.yaml]")
        ->check(NamedFile());
  }
  for (CLI::App* command : {line.run, line.plan, line.up, line.scale, line.restart, line.check, line.exec,
                            line.show, line.logs, line.stop, line.gc, line.wait, line.bench}) {
    command
        ->add_option(
            "--known-hosts", flags.known_hosts,
            "Keys of hosts, under the inventory's names [~/.muster/known_hosts, or MUSTER_KNOWN_HOSTS]")
        ->check(NamedFile());
    command->add_flag("-k,--ask-password", flags.ask_password,
                      "Ask once for the password of the hosts' accounts, for hosts that take no key");
  }
  for (CLI::App* command :
       {line.plan, line.restart, line.check, line.exec, line.show, line.logs, line.stop, line.gc}) {
    command->add_option("--connect-timeout", flags.connect_timeout_s, "Seconds for a host to answer")
        ->check(Seconds())
        ->capture_default_str();
  }
  for (CLI::App* command : {line.check, line.exec}) {
    command
        ->add_option("--hosts", flags.hosts,
                     "Only these hosts of the inventory: names, ranges (gpu-[01:04]) or labels")
        ->type_name("HOST")
        ->delimiter(',');
  }
  line.check->add_flag("--accept-new", flags.accept_new,
                       "Trust hosts whose key is not known yet, and remember it");
}

void DeclareOutput(CommandLine& line) {
  CommandFlags& flags = line.flags;
  for (CLI::App* command : {line.check, line.plan, line.run, line.exec, line.show, line.events, line.list,
                            line.wait, line.bench, line.compare}) {
    command
        ->add_option("-o,--output", line.format,
                     command == line.events ? "text or json: an object on each line"
                     : command == line.run
                         ? "text or json: the result alone on stdout, what tasks print on stderr"
                         : "text or json")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
  }
  line.run->add_flag("-q,--quiet", flags.quiet, "Without the output of the tasks");
  line.show->add_flag("-m,--metrics", flags.metrics,
                      "Also what its trainers count and time, as of the last second that they ran");
  line.logs->add_flag("-f,--follow", flags.follow, "Go on until the tasks have ended");
  line.events->add_flag("-f,--follow", flags.follow, "Go on until the job has ended");
}

void DeclareTimeouts(CommandLine& line) {
  CommandFlags& flags = line.flags;
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
  for (CLI::App* command : {line.run, line.up, line.scale, line.restart, line.wait}) {
    command
        ->add_option(
            "--lost-timeout", flags.lost_timeout_s,
            "Seconds for a host that is lost to come back before the job fails [60, of servers that stand "
            "a week; or what `run` was given]")
        ->check(Seconds());
  }
}

// Who trains a job, and who drives it.
void DeclareRunning(CommandLine& line) {
  CommandFlags& flags = line.flags;
  for (CLI::App* command : {line.run, line.plan}) {
    command
        ->add_option("--cluster", flags.cluster,
                     "Name of servers that stand (`up`), which train it instead of the job's own")
        ->type_name("POOL");
  }
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
  line.up->footer(
      "Returns once they stand. `muster run --cluster NAME JOB` trains a job on them, `show`, `logs`, "
      "`events`\n"
      "and `stop` take their NAME as they take that of a job.");
  line.restart->footer(
      "For jobs in the background (`run -d`). What they run stays what it is: `muster run` brings about what "
      "has changed.\n"
      "Does not count as one of `max_restarts`. Returns once every task runs.");
  line.scale->footer(
      "For jobs in the background (`run -d`), whose workers may come and go (docs/jobs.md).\n"
      "Returns once every task runs. The job file keeps its `count`, which the next `muster run` brings "
      "back.");
}

void DeclareGc(CLI::App& gc, CommandFlags& flags) {
  gc.add_option("--unused", flags.unused_s,
                "Seconds for which programs and data of no job must have been unused to be removed too")
      ->check(Seconds(/*can_be_zero=*/true))
      ->capture_default_str();
  gc.add_option("--gone", flags.gone_hosts,
                "Hosts that never come back: they are not asked, and nothing is left there")
      ->type_name("HOST")
      ->delimiter(',');
  gc.footer(
      "Logs, checkpoints and whatever else the tasks wrote go; the records of the jobs, and what came back\n"
      "from them when they ended, stay on this machine.");
}

void DeclareExec(CLI::App& exec, CommandFlags& flags) {
  exec.add_option("--parallel", flags.parallel, "Hosts at a time [all]")
      ->check(CLI::Range(size_t{1}, kMaxHosts));
}

void DeclareCompletion(CLI::App& completion, CommandFlags& flags) {
  const std::vector<std::string> shells(std::begin(kShellNames), std::end(kShellNames));
  completion.add_option("SHELL", flags.shell, "For which shell")->required()->check(CLI::IsMember(shells));
  completion.footer(
      "For the file that the shell reads when it starts, ~/.bashrc or ~/.zshrc: source <(muster completion "
      "bash)\n"
      "For fish, ~/.config/fish/config.fish: muster completion fish | source");
}

void DeclareController(CommandLine& line) {
  for (CLI::App* command : {line.controller_resume, line.controller_await, line.controller_export,
                            line.controller_release, line.controller_forget}) {
    command->add_option("JOB", line.flags.job)->required();
  }
  line.controller->require_subcommand(1);
}

void DeclareData(CommandLine& line) {
  CommandFlags& flags = line.flags;
  std::vector<std::string> sets;
  for (const DataSet& set : DataSets()) sets.push_back(set.name);
  line.data->require_subcommand(1);
  for (CLI::App* command : {line.data_fetch, line.data_make}) {
    command->add_option("SET", flags.data_set, "Data set")->required()->check(CLI::IsMember(sets));
  }
  line.data_fetch->add_option("DIR", flags.data_folder,
                              "Where to, as DIR/SET/ [the cache that `data: auto` of a job looks into: "
                              "$MUSTER_CACHE/data, or muster/data under $XDG_CACHE_HOME or ~/.cache]");
  line.data_fetch
      ->add_option("--mirror", flags.mirrors,
                   "URL of a folder with the files, instead of the known ones; may be repeated")
      ->type_name("URL")
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

void DeclareExport(CLI::App& export_job, CommandFlags& flags) {
  export_job.add_option("--image", flags.image, "Image with the trainer, or the program, in it")
      ->type_name("IMAGE")
      ->required();
  export_job
      .add_option(
          "--format", flags.export_format,
          "jobs: an Indexed Job for each role and a Service, without any operator; or tfjob: Kubeflow's")
      ->check(CLI::IsMember({"jobs", "tfjob"}))
      ->capture_default_str();
  export_job
      .add_option("--context", flags.context_folder,
                  "Also write a folder from which `docker build` makes the image")
      ->type_name("DIR");
  export_job.footer(
      "Prints YAML for `kubectl apply -f`, with what is not the same there, and how the result comes back,\n"
      "in comments at its head. Contacts nothing.");
}

// The matrix: each of these against each.
void DeclareBench(CLI::App& bench, BenchFlags& flags) {
  constexpr int kMostTasks = 4096, kMostTimes = 1000;
  const auto list = [&](const char* name, auto& values, const char* help) {
    return bench.add_option(name, values, help)->delimiter(',');
  };
  list("--strategies", flags.strategies,
       "ps_async, ps_sync, ps_backup (one worker less makes a step), allreduce, hybrid [all that fit the "
       "model]")
      ->type_name("STRATEGY");
  list("--models", flags.models, "Models, with a variant behind a colon: mnist_cnn:deep")
      ->type_name("MODEL")
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
  list("--link", flags.links, "Rates of virtual hosts' links: 100mbit, 1gbit, none")->type_name("RATE");
  bench.add_option("--steps", flags.steps, "Of each worker")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  bench.add_option("--batch-size", flags.batch_size, "Samples of a worker's step [the model's]")
      ->check(CLI::Range(1, 1'000'000));
  bench
      .add_option(
          "--device", flags.device,
          "auto, cpu, cuda:N; or wait:N, N milliseconds instead of computing, where hosts share cores")
      ->type_name("DEVICE")
      ->capture_default_str();
  bench.add_option("--threads", flags.threads, "Of each task")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench.add_option("--repeat", flags.repeat, "How often each job is run")
      ->check(CLI::Range(1, kMostTimes))
      ->capture_default_str();
  bench.add_option("--target", flags.target, "Also the time to this accuracy on the test set")
      ->check(AccuracyToReach());
  bench.add_option("--job-timeout", flags.job_timeout_s, "Seconds for each job")
      ->check(Seconds())
      ->capture_default_str();
  bench.add_option("--folder", flags.folder, "For results.json and report.html")
      ->type_name("DIR")
      ->capture_default_str();
  bench.footer(
      "Prints a table and what follows from it. Exit status: 1 if one of the jobs failed, 69 if a host of "
      "the "
      "inventory cannot be reached.");
}

}  // namespace

CommandLine::CommandLine(const std::string& version) {
  app.require_subcommand(1);
  app.set_version_flag("--version", "muster " + version);
  DeclareArguments(*this);
  DeclareHosts(*this);
  DeclareRunning(*this);
  DeclareTimeouts(*this);
  DeclareOutput(*this);
  DeclareGc(*gc, flags);
  DeclareExec(*exec, flags);
  DeclareCompletion(*completion, flags);
  DeclareController(*this);
  DeclareData(*this);
  DeclareExport(*export_job, flags);
  DeclareBench(*bench, flags.bench);
}

}  // namespace muster
