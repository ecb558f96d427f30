#include "trainer/metrics_export.h"

#include <fcntl.h>
#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/logging.h"

namespace muster {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr Duration kWriteEvery = std::chrono::seconds(1);

// Families in the making.
class Families {
 public:
  explicit Families(TaskId task) : task_(TaskName(task)) {}

  void Counter(const std::string& name, const std::string& help, const Labels& labels, double value) {
    Add(name, help, MetricType::Counter, labels).counter.value = value;
  }
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value) {
    Add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void Distribution(const std::string& name, const std::string& help, const Labels& labels,
                    const Histogram& histogram) {
    ClientMetric::Histogram& out = Add(name, help, MetricType::Histogram, labels).histogram;
    out.sample_count = histogram.count();
    out.sample_sum = histogram.sum();
    uint64_t count = 0;
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      count += histogram.counts()[i];
      out.bucket.push_back({count, histogram.bounds()[i]});
    }
    out.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  ClientMetric& Add(const std::string& name, const std::string& help, MetricType type, const Labels& labels) {
    auto family = std::find_if(families_.begin(), families_.end(),
                               [&](const MetricFamily& known) { return known.name == name; });
    if (family == families_.end()) {
      family = families_.insert(families_.end(), MetricFamily{name, help, type, {}});
    }
    ClientMetric& metric = family->metric.emplace_back();
    metric.label = {{"task", task_}};
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  const std::string task_;
  std::vector<MetricFamily> families_;
};

void AddProcess(Families& families) {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  families.Gauge("process_resident_memory_bytes", "What the process has in memory.", {},
                 static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)));
  families.Counter("process_cpu_seconds_total", "Of processors, of all its threads.", {},
                   ProcessCpuSeconds());
}

void AddUsage(const TrainingUsage& usage, Families& families) {
  families.Gauge("muster_training_seconds", "From the beginning of training to its end, or so far.", {},
                 usage.seconds);
  families.Gauge("muster_training_cpu_seconds", "Of processors in that time.", {}, usage.cpu_seconds);
  if (!usage.network) return;
  families.Gauge("muster_training_host_received_bytes",
                 "In that time, over the network interface that has the task's address.", {},
                 static_cast<double>(usage.network->received));
  families.Gauge("muster_training_host_sent_bytes",
                 "In that time, over the network interface that has the task's address.", {},
                 static_cast<double>(usage.network->sent));
}

void AddWorker(const WorkerMetrics& worker, Families& families) {
  families.Gauge("muster_worker_step", "Updates that the parameters have had.", {},
                 static_cast<double>(worker.step));
  families.Counter("muster_worker_steps_total", "Batches that this process has contributed.", {},
                   static_cast<double>(worker.local_steps));
  families.Counter("muster_worker_samples_total", "Samples of those batches.", {},
                   static_cast<double>(worker.samples));
  if (worker.loss) {
    families.Gauge("muster_worker_loss", "Mean loss of the last update.", {}, *worker.loss);
  }
  families.Counter("muster_worker_sent_bytes_total", "Of all requests to parameter servers.", {},
                   static_cast<double>(worker.sent_bytes));
  families.Counter("muster_worker_received_bytes_total", "Of all answers of parameter servers.", {},
                   static_cast<double>(worker.received_bytes));
  for (size_t shard = 0; shard < worker.waiting.size(); ++shard) {
    families.Gauge("muster_worker_waiting_seconds", "How long this server has been waited for.",
                   {{"shard", std::to_string(shard)}}, ToSeconds(worker.waiting[shard]));
  }
  for (const auto& [phase, times] : {std::pair("compute", &worker.compute), std::pair("push", &worker.push),
                                     std::pair("wait", &worker.wait), std::pair("pull", &worker.pull)}) {
    families.Distribution("muster_worker_step_seconds", "Where the time of steps goes.", {{"phase", phase}},
                          *times);
  }
}

void AddShard(const ShardMetrics& shard, const ClusterSpec& cluster, Families& families) {
  const ClientMetric::Label label = {"shard", std::to_string(shard.shard)};
  families.Gauge("muster_ps_primary", "1: this server speaks for the shard; 0: it is its backup.", {label},
                 shard.serves ? 1 : 0);
  families.Gauge("muster_ps_step", "Updates that the parameters have had.", {label},
                 static_cast<double>(shard.step));
  for (int rank = 0; rank < static_cast<int>(shard.workers.size()); ++rank) {
    const PushCounts& counts = shard.workers[rank].counts;
    const ClientMetric::Label worker = {"worker", TaskName(TaskOfRank(cluster, rank))};
    families.Counter("muster_ps_pushes_received_total", "Gradients that have come and are not held.",
                     {label, worker}, static_cast<double>(counts.received));
    for (const auto& [outcome, count] :
         {std::pair("applied", counts.applied), std::pair("stale", counts.stale),
          std::pair("duplicate", counts.duplicate), std::pair("rejected", counts.rejected)}) {
      families.Counter("muster_ps_pushes_total", "What became of them.",
                       {label, worker, {"outcome", outcome}}, static_cast<double>(count));
    }
    families.Distribution("muster_ps_push_staleness_steps",
                          "Updates between the parameters that an applied gradient was computed from and it.",
                          {label, worker}, shard.workers[rank].staleness);
  }
  families.Gauge("muster_ps_table_rows", "Rows of tables that it holds: they have been updated.", {label},
                 static_cast<double>(shard.table_rows));
  families.Gauge("muster_ps_held_pushes", "Gradients that wait for those of other workers.", {label},
                 static_cast<double>(shard.held_pushes));
  families.Gauge("muster_ps_queued_pushes", "Large gradients whose senders wait for their turn.", {label},
                 static_cast<double>(shard.queued_pushes));
  for (const int rank : shard.awaited) {
    families.Gauge("muster_ps_awaited_seconds",
                   "How long a step has waited for the worker, from two seconds on.",
                   {label, {"worker", TaskName(TaskOfRank(cluster, rank))}}, ToSeconds(shard.waiting));
  }
  if (shard.checkpoint_age) {
    families.Gauge("muster_ps_checkpoint_age_seconds", "Since the newest checkpoint was complete.", {label},
                   ToSeconds(*shard.checkpoint_age));
  }
}

void AddServer(const ServerMetrics& server, const ClusterSpec& cluster, Families& families) {
  for (const ShardMetrics& shard : server.shards) AddShard(shard, cluster, families);
  families.Counter("muster_ps_received_bytes_total", "Of frames from those who have connected to it.", {},
                   static_cast<double>(server.received_bytes));
  families.Counter("muster_ps_sent_bytes_total", "Of frames to those who have connected to it.", {},
                   static_cast<double>(server.sent_bytes));
}

class Source final : public prometheus::Collectable {
 public:
  Source(TaskId task, const UsageMeter& meter, std::function<void(Families&)> add)
      : task_(task), meter_(meter), add_(std::move(add)) {}

  // Called through C, which passes on no exception: without memory there is nothing to read.
  std::vector<MetricFamily> Collect() const override try {
    Families families(task_);
    add_(families);
    AddProcess(families);
    if (const auto usage = meter_.usage()) AddUsage(*usage, families);
    return families.Take();
  } catch (const std::bad_alloc&) {
    return {};
  }

 private:
  const TaskId task_;
  const UsageMeter& meter_;
  const std::function<void(Families&)> add_;
};

class Export final : public MetricsExport {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsExport>> Begin(const MetricsTargets& targets,
                                                              std::shared_ptr<Source> source,
                                                              std::function<bool()> goes_on) {
    auto out = std::make_unique<Export>(targets, std::move(source), std::move(goes_on));
    if (!targets.address.empty()) MUSTER_RETURN_IF_ERROR(out->Listen(targets.address));
    return out;
  }

  Export(const MetricsTargets& targets, std::shared_ptr<Source> source, std::function<bool()> goes_on)
      : file_(targets.file),
        progress_file_(targets.progress_file),
        source_(std::move(source)),
        goes_on_(std::move(goes_on)) {
    if (!file_.empty() || !progress_file_.empty())
      writer_ = std::jthread([this](const std::stop_token& stop) { WriteUntil(stop); });
  }

 private:
  absl::Status Listen(const std::string& address) try {
    // Somebody who connects and says nothing has one of the threads for as long as the timeout.
    exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "2", "request_timeout_ms", "2000"});
    exposer_->RegisterCollectable(source_);
    return absl::OkStatus();
  } catch (const std::exception&) {  // which does not say why
    return Unavailable("--metrics_address: cannot listen on %s: is it this machine's, and free?", address);
  }

  void WriteUntil(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (true) {
      const bool is_last = stop.stop_requested();
      if (!file_.empty()) Write();
      if (!progress_file_.empty() && goes_on_()) Touch();
      if (is_last) return;
      stopped.wait_for(lock, stop, kWriteEvery, [] { return false; });
    }
  }

  void Write() try {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, source_->Collect());
    const absl::Status status = WriteFileAtomically(file_, text.str(), 0644, Sync::kNo);
    if (!status.ok() && !has_failed_)
      spdlog::warn("--metrics_file={}: {}", file_, std::string(status.message()));
    has_failed_ = !status.ok();
  } catch (const std::bad_alloc&) {  // the next time, if there is one
  }

  void Touch() {
    const UniqueFd file(::open(progress_file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (file.valid()) (void)::futimens(file.get(), nullptr);  // who cannot say so is taken for hung
  }

  const std::string file_;
  const std::string progress_file_;
  const std::shared_ptr<Source> source_;
  const std::function<bool()> goes_on_;  // called by the writer only
  std::unique_ptr<prometheus::Exposer> exposer_;
  bool has_failed_ = false;  // the last time
  std::jthread writer_;      // the last member: it uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsExport>> MetricsExport::Begin(const MetricsTargets& targets,
                                                                    TaskId task, const UsageMeter& meter,
                                                                    std::function<WorkerMetrics()> read) {
  const auto goes_on = [read, watch = StepWatch()]() mutable { return watch.GoesOn(read()); };
  auto source = std::make_shared<Source>(
      task, meter, [read = std::move(read)](Families& families) { AddWorker(read(), families); });
  return Export::Begin(targets, std::move(source), goes_on);
}

absl::StatusOr<std::unique_ptr<MetricsExport>> MetricsExport::Begin(const MetricsTargets& targets,
                                                                    TaskId task, const ClusterSpec& cluster,
                                                                    const UsageMeter& meter,
                                                                    std::function<ServerMetrics()> read) {
  auto source = std::make_shared<Source>(task, meter, [read = std::move(read), cluster](Families& families) {
    AddServer(read(), cluster, families);
  });
  return Export::Begin(targets, std::move(source), [] { return true; });
}

}  // namespace muster
