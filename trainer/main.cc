// muster-trainer: one task of a training job, in every role.
#include <openssl/crypto.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "base/allocator.h"
#include "base/clock.h"
#include "base/descriptor_limit.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/stdout.h"
#include "cluster/listening.h"
#include "ps/inspect_checkpoints.h"
#include "ps/server.h"
#include "trainer/cluster_watch.h"
#include "trainer/data/make_data.h"
#include "trainer/evaluation.h"
#include "trainer/metrics_export.h"
#include "trainer/options.h"
#include "trainer/output_files.h"
#include "trainer/training.h"
#include "trainer/training_usage.h"

namespace muster {
namespace {

uint64_t PushesReceived(const ServerMetrics& metrics) {
  uint64_t count = 0;
  for (const ShardMetrics& shard : metrics.shards) {
    for (const PushTally& worker : shard.workers) count += worker.counts.received;
  }
  return count;
}

absl::Status ServeJob(const TrainerOptions& options, ParameterServer& server) {
  const auto& [task, cluster] = *options.task;
  UsageMeter usage(InterfaceOfAddress(cluster.ps[task.index]));
  MUSTER_ASSIGN_OR_RETURN(const auto metrics, MetricsExport::Begin(options.metrics, task, cluster, usage,
                                                                   [&] { return server.metrics(); }));
  std::optional<UsageWatch> watch;
  if (!options.metrics.address.empty() || !options.metrics.file.empty()) {
    watch.emplace(&usage, [&] { return PushesReceived(server.metrics()); });
  }
  return server.Wait();
}

absl::Status Serve(const TrainerOptions& options) {
  MUSTER_RETURN_IF_ERROR(CheckOutputFiles({{"--metrics_file", options.metrics.file}}));
  ParameterServerOptions server_options{.cluster = options.task->cluster,
                                        .view = options.view,
                                        .shard_index = options.task->task.index,
                                        .bind_host = options.bind_host,
                                        .generation = options.generation,
                                        .incarnation = options.incarnation,
                                        .worker_timeout = options.worker_timeout,
                                        .worker_lease = options.worker_lease,
                                        .begins_together = options.begins_together,
                                        .server_timeout = options.server_timeout,
                                        .transport = options.transport,
                                        .checkpoint_dir = options.checkpoint_dir,
                                        .checkpoint_every = options.checkpoint_every,
                                        .keep_checkpoints = options.keep_checkpoints,
                                        .checkpoint_buddy = options.checkpoint_buddy,
                                        .journal = options.journal,
                                        .replicated = options.replicated};
  if (!options.tls_dir.empty()) {
    MUSTER_ASSIGN_OR_RETURN(server_options.tls, LoadTlsDirectory(options.tls_dir));
  }
  if (options.is_standing) {
    return ServeJobs(server_options, [&](ParameterServer& server) { return ServeJob(options, server); });
  }
  MUSTER_ASSIGN_OR_RETURN(const auto server, ParameterServer::Start(server_options));
  MUSTER_RETURN_IF_ERROR(ServeJob(options, *server));
  absl::Status kept = server->last_checkpoint();
  if (kept.ok()) return kept;
  kept = Annotate(
      kept,
      "the job has its result, but what goes on from here begins with an earlier checkpoint; to have "
      "that of its end, mend this and start the job again");
  // Who supervises tasks would start it again, or take a job that has its result for failed.
  if (options.done_file.empty()) return kept;
  spdlog::error("{}", std::string(kept.message()));
  return absl::OkStatus();
}

absl::Status Run(const CommandLine& line, TimePoint start) try {
  TrainerOptions options = line.options;
  std::shared_ptr<ClusterView> view;
  std::optional<ClusterWatch> watch;
  const bool is_server = options.task && options.task->task.role == Role::kPs;
  if (options.task && !options.cluster_file.empty()) {
    // A server hears later how it updates.
    const bool may_scale = is_server || options.may_scale();
    view = std::make_shared<ClusterView>(
        options.task->cluster, options.task->task,
        may_scale ? ClusterView::Workers::kMayComeAndGo : ClusterView::Workers::kStay);
    watch.emplace(options.cluster_file, view.get());
    const bool listens = is_server || options.strategy != Strategy::kParameterServer;
    if (listens) AwaitOwnAddress(*view, options.bind_host, options.connect_timeout);
    options.view = view;
    options.task->cluster = view->cluster();
    const TaskId own = view->own();
    if (own.index >= static_cast<int>(options.task->cluster.addresses(own.role).size())) {
      return FailedPrecondition("%s: %s has no part in this cluster", options.cluster_file, TaskName(own));
    }
    options.hosts = HostsOf(options.task->cluster);
  }
  MUSTER_RETURN_IF_ERROR(line.evaluation ? Evaluate(*line.evaluation)
                         : is_server     ? Serve(options)
                                         : Train(options, start));
  return StdoutStatus();
} catch (const std::bad_alloc&) {
  // No bound of a flag can know the memory of this host.
  return absl::ResourceExhaustedError(
      "not enough memory on this host for the model and its batch: lower --batch_size or --hidden");
}

// A few too many cost little; that many of them would wait for each other in every product.
void WarnOfTooManyThreads(const CommandLine& line) {
  const int threads = line.evaluation ? line.evaluation->threads : line.options.threads;
  const unsigned processors = std::thread::hardware_concurrency();
  if (processors != 0 && threads > static_cast<int>(processors)) {
    spdlog::warn("--threads={} on {} processors: they wait for each other; at most {} are of use", threads,
                 processors, processors);
  }
}

absl::Status MakeData(const std::string& kind, const std::string& folder) {
  MUSTER_ASSIGN_OR_RETURN(const auto paths, WriteSyntheticData(kind, folder));
  for (const std::filesystem::path& path : paths) PrintToStdout(path.string() + "\n");
  return StdoutStatus();
}

absl::Status InspectCheckpoint(const std::string& folder) {
  if (const auto names = ListDirectory(folder); !names.ok()) {
    return InvalidArgument("--inspect_checkpoint: it has no checkpoints: %s",
                           std::string(names.status().message()));
  }
  std::string text;
  const absl::Status status = InspectCheckpoints(folder, &text);
  PrintToStdout(text);
  return status.ok() ? StdoutStatus() : status;
}

// The first process of a container: the kernel ignores for it what it does not handle. A thread of its own
// waits for that: a handler would run on the stack of whatever it interrupts, and oneDNN's kernels have their
// stack pointer in a workspace.
void EndWhenSignalled() {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now = {};
    // What whoever started this has ignored, as nohup does, stays ignored.
    if (::sigaction(signal_number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) {
      ::sigaddset(&awaited, signal_number);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &awaited, nullptr);  // in all threads: they begin with what this one has
  std::thread([awaited] {
    int signal_number = 0;
    if (::sigwait(&awaited, &signal_number) == 0) ::_exit(128 + signal_number);
  }).detach();
}

int Main(int argc, char** argv) {
  const TimePoint start = Now();
  KeepLargeFreeBlocks();
  RaiseDescriptorLimit();
  // Threads of gRPC may outlive main, and would find OpenSSL taken apart below them.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  // gRPC prints what we report ourselves, in lines of a thousand characters.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::signal(SIGPIPE, SIG_IGN);
  if (::getpid() == 1) EndWhenSignalled();
  const Environment environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const auto line = ParseCommandLine({argv + 1, argv + argc}, environment);
  if (!line.ok()) {
    std::fprintf(stderr, "muster-trainer: %s\n", std::string(line.status().message()).c_str());
    return ExitCodeFor(line.status());
  }
  if (line->text || line->make_data || line->inspect_checkpoint) {
    if (line->text) PrintToStdout(*line->text);
    const absl::Status status = line->make_data ? MakeData(*line->make_data, line->options.data_dir)
                                : line->inspect_checkpoint ? InspectCheckpoint(*line->inspect_checkpoint)
                                                           : StdoutStatus();
    if (!status.ok()) std::fprintf(stderr, "muster-trainer: %s\n", std::string(status.message()).c_str());
    return ExitCodeFor(status);
  }
  const std::optional<TaskInCluster>& task = line->options.task;
  InitLogging(task ? TaskName(task->task) : "local");
  WarnOfTooManyThreads(*line);
  const absl::Status status = Run(*line, start);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return absl::IsAlreadyExists(status) ? kPortLostExitCode : ExitCodeFor(status);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
