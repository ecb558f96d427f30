// What the commands share: where things are, how to connect, how to print.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "inventory/job.h"
#include "launcher/agent_connection.h"
#include "launcher/discovery.h"
#include "launcher/job_store.h"
#include "launcher/table.h"
#include "launcher/transport/login_secrets.h"

namespace muster {

/// Those of bench.
struct BenchFlags {
  std::vector<std::string> strategies, links;
  std::vector<std::string> models = {"mnist_mlp"};
  std::vector<int> workers = {1, 2};
  std::vector<int> servers = {1};
  bool servers_on_workers = false;
  int virtual_hosts = 0;  // 0: those of the inventory
  int64_t steps = 200;
  int64_t batch_size = 0;  // 0: the model's
  std::string device = "auto";
  int threads = 1;
  int repeat = 3;
  double target = 0;  // accuracy; 0: none
  double job_timeout_s = 600;
  std::string folder = "muster-bench";
  std::vector<std::string> command;  // the whole command line
  std::string version;               // of muster
};

/// Of a flag; 0: none.
std::optional<Duration> FromSeconds(double seconds);

/// Flags of all commands, as typed.
struct CommandFlags {
  std::string job;                 // a job file (run, plan), or the id or name of a job
  std::string replicas;            // scale: "worker=6"
  std::string cluster;             // run, plan: the standing servers that train it; empty: its own
  std::string inventory;           // empty: MUSTER_INVENTORY, or inventory.yaml
  std::vector<std::string> jobs;   // gc: only these; compare: these, or files of results
  std::vector<std::string> tasks;  // logs, restart: only these
  std::string known_hosts;
  bool connects_to_inventory = false;  // the command does, with the keys of known_hosts
  OutputFormat format = OutputFormat::kText;
  std::vector<std::string> words;        // exec: what is run
  std::vector<std::string> hosts;        // check, exec: only these
  bool accept_new = false;               // check
  bool ask_password = false;             // of the hosts' accounts
  bool metrics = false;                  // show
  bool detach = false;                   // run
  std::string controller;                // run, up: the host that drives the job; empty: this machine
  bool follow = false;                   // logs, events
  bool quiet = false;                    // run: without the tasks' output
  double unused_s = 3600;                // gc
  std::set<std::string> gone_hosts;      // gc: of which nothing is left
  double timeout_s = 0;                  // run, wait: 0: none
  std::optional<double> lost_timeout_s;  // run, scale, restart, wait
  double connect_timeout_s = 15;
  size_t parallel = std::numeric_limits<size_t>::max();  // exec: hosts at a time
  std::string data_set;                                  // data: "mnist"
  std::optional<std::string> data_folder;                // data; fetch: unset: the data cache
  std::vector<std::string> mirrors;                      // data fetch; empty: the set's own
  std::string shell;                                     // completion
  std::string image;                                     // export
  std::string export_format = "jobs";                    // export: jobs, tfjob
  std::optional<std::string> context_folder;             // export: of a docker build; unset: none is written
  BenchFlags bench;
};

/// Where a user's things are, as the environment says. Only this and what is made by CommandContext::Create
/// looks at that.
struct Places {
  std::string home;
  std::filesystem::path folder;     // ~/.muster (or MUSTER_HOME)
  std::filesystem::path inventory;  // the usual one
};
/// InvalidArgument: HOME is not set.
absl::StatusOr<Places> FindPlaces();

/// Made once by main.
class CommandContext {
 public:
  static absl::StatusOr<CommandContext> Create(const CommandFlags& flags);

  const CommandFlags& flags() const { return flags_; }
  const JobStore& jobs() const { return jobs_; }
  const Installation& installation() const { return installation_; }
  const std::string& data_folder() const { return data_folder_; }
  const std::string& home() const { return home_; }
  const std::filesystem::path& data_cache() const { return data_cache_; }
  /// To hosts of the inventory flag, or of the one that a job was run with. Valid while this object is.
  /// The hosts' keys are in the file that the flag names, or else in that which the job was run with, if it
  /// is still there, or else in the usual one. Who sits at the terminal is asked for passphrases that logging
  /// in to the hosts may need, each once.
  ConnectOptions connect_options(std::span<const record::Host> hosts) const;
  ConnectOptions connect_options(const record::JobRecord& job) const;
  /// Asks for the same already now, while somebody sits there.
  void UnlockKeysOf(const record::JobRecord& job) const;
  const std::filesystem::path& known_hosts() const { return ssh_.known_hosts; }
  Duration connect_timeout() const;

  /// That of the flag, of which only the chosen hosts, or another one; with the hosts that its discovery
  /// command finds.
  absl::StatusOr<Inventory> ReadInventoryFlag() const;
  absl::StatusOr<Inventory> ReadInventoryOf(const std::string& path) const {
    return ReadInventoryAndDiscover(path, home_);
  }
  absl::StatusOr<Job> ReadJobFlag() const;

  /// To stdout, in the format asked for.
  void Print(const Table& table) const;

 private:
  CommandContext(const CommandFlags& flags, JobStore jobs) : flags_(flags), jobs_(std::move(jobs)) {}

  ConnectOptions ConnectOptionsFor(const std::string& inventory) const;
  void UnlockKeysOf(const record::Host& host) const;

  CommandFlags flags_;
  JobStore jobs_;
  Installation installation_;
  AgentProgram agent_;
  SshOptions ssh_;
  std::shared_ptr<LoginSecrets> secrets_;
  std::string home_;
  std::string data_folder_;  // MUSTER_DATA
  std::filesystem::path data_cache_;
};

/// The commands. Each returns the status that the program exits with; those that end with a job's own exit
/// code return it.
absl::Status CheckCommand(const CommandContext& context);
absl::Status PlanCommand(const CommandContext& context);
absl::Status ExportCommand(const CommandContext& context);
absl::StatusOr<int> RunJobCommand(const CommandContext& context);
absl::StatusOr<int> UpCommand(const CommandContext& context);
absl::StatusOr<int> WaitCommand(const CommandContext& context);
absl::StatusOr<int> ScaleCommand(const CommandContext& context);
absl::StatusOr<int> RestartCommand(const CommandContext& context);
absl::Status ShowCommand(const CommandContext& context);
absl::Status ListCommand(const CommandContext& context);
absl::Status LogsCommand(const CommandContext& context);
absl::Status EventsCommand(const CommandContext& context);
absl::Status StopCommand(const CommandContext& context);
/// The same of a job that a command has driven itself, or given away.
absl::Status StopJob(const CommandContext& context, const std::string& id_or_name);
absl::Status GcCommand(const CommandContext& context);
absl::StatusOr<int> ExecCommand(const CommandContext& context);
absl::Status CheckControllerCommand(const CommandContext& context);
absl::StatusOr<int> DriveCommand(const CommandContext& context);
enum class ControlledJobAction { kAwait, kExport, kRelease, kForget };
absl::StatusOr<int> ControlledJobCommand(const CommandContext& context, ControlledJobAction action);
absl::StatusOr<int> BenchCommand(const CommandContext& context);
absl::Status CompareCommand(const CommandContext& context);
absl::Status CompletionCommand(const CommandContext& context);
absl::Status FetchDataCommand(const CommandContext& context);
absl::StatusOr<int> MakeDataCommand(const CommandContext& context);

}  // namespace muster
