#include "ps/server.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/allocator.h"
#include "base/file.h"
#include "base/logging.h"
#include "cluster/listening.h"
#include "cluster/replica_view.h"
#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "ps/frame_server.h"
#include "ps/job_config.h"
#include "ps/shard_server.h"
#include "ps/wire.h"

namespace muster {
namespace {

using StreamId = FrameServer::StreamId;

constexpr Duration kLookEvery = std::chrono::milliseconds(100);  // which shards are needed
constexpr Duration kCloseTimeout = std::chrono::seconds(5);      // for the others to hang up at the end
constexpr Duration kTakeOverTimeout = std::chrono::minutes(1);   // for the other shards, at the end
constexpr char kJobFolder[] = "job-";                            // of checkpoints

TaskId TaskOfJoin(const ps::Join& join) {
  const auto rank = static_cast<int>(std::min(join.rank(), kMostWorkers));
  if (!join.has_chief()) return {Role::kWorker, rank};
  return rank == 0 ? TaskId{Role::kChief, 0} : TaskId{Role::kWorker, rank - 1};
}

// That of the job, beside which there is none of an earlier one. FailedPrecondition: there is one of a later
// one, which another process has served here.
absl::Status UseFolderOfJob(ParameterServerOptions* options) {
  const std::filesystem::path folder = options->checkpoint_dir;
  std::vector<std::filesystem::path> earlier;
  for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>())) {
    uint64_t job = 0;
    if (!name.starts_with(kJobFolder) || !absl::SimpleAtoi(name.substr(sizeof kJobFolder - 1), &job))
      continue;
    if (job > options->generation) {
      return FailedPrecondition("%s is of job %d, which is later than job %d", (folder / name).string(), job,
                                options->generation);
    }
    if (job < options->generation) earlier.push_back(folder / name);
  }
  for (const std::filesystem::path& path : earlier) {
    // Another server may still be writing there. The next job tries again.
    if (const absl::Status removed = RemoveTree(path); !removed.ok()) {
      spdlog::warn("{}: {}", path.string(), std::string(removed.message()));
    }
  }
  options->checkpoint_dir = folder / (kJobFolder + std::to_string(options->generation));
  return absl::OkStatus();
}

class Process final : public ParameterServer, private FrameServer::Handler {
 public:
  explicit Process(const ParameterServerOptions& options)
      : is_standing_(options.is_standing),
        shard_index_(options.shard_index),
        name_(TaskName({Role::kPs, options.shard_index})),
        options_(options),
        latest_job_(options.latest_job),
        is_over_(options.latest_job_is_over) {}

  // To those who talk to it, as if the process had ended: the streams break, and nobody is told why.
  ~Process() override {
    follower_.reset();
    if (frames_ != nullptr) frames_->Shutdown();
  }

  absl::Status Listen();
  absl::Status Wait() override;
  absl::Status last_checkpoint() const override {
    const std::lock_guard lock(mutex_);
    return last_checkpoint_;
  }
  void Kill() override {
    is_killed_ = true;
    frames_->Shutdown();
    const std::lock_guard lock(mutex_);
    for (const auto& shard : shards_) shard->End(absl::CancelledError(name_ + " has been ended"));
    has_begun_.notify_all();
  }
  std::optional<uint64_t> job() const override {
    const std::lock_guard lock(mutex_);
    return shards_.empty() ? std::nullopt : std::optional(options_.generation);
  }
  uint64_t latest_job() const override {
    const std::lock_guard lock(mutex_);
    return latest_job_;
  }
  int shards_in_touch() const override {
    const std::lock_guard lock(mutex_);
    const auto is_in_touch = [](const auto& shard) { return shard->is_in_touch(); };
    return static_cast<int>(std::count_if(shards_.begin(), shards_.end(), is_in_touch));
  }

  ServerMetrics metrics() const override {
    ServerMetrics metrics{.received_bytes = frames_->received_bytes(), .sent_bytes = frames_->sent_bytes()};
    const std::lock_guard lock(mutex_);
    for (const auto& shard : shards_) metrics.shards.push_back(shard->metrics());
    return metrics;
  }

 private:
  void OnFrame(StreamId stream, grpc::ByteBuffer* frame) override;
  void OnClosed(StreamId stream) override;
  absl::Status StartShards();
  absl::Status Admit(StreamId stream, const ps::ClientHeader& header, bool* begins);
  void EndUnlessJoined(ShardServer& shard);
  absl::Status CheckJoin(StreamId stream, const ps::Join& join) const;
  absl::Status CheckShardJoin(StreamId stream, const ps::ShardJoin& join) const;
  absl::Status BeginJob(StreamId stream, const ps::Join& join);
  bool AwaitClosed();
  ShardServer* ShardOf(StreamId stream, const ps::ClientHeader& header);
  void SendError(StreamId stream, uint64_t request, const absl::Status& status);
  bool IsOver(const ps::ClientHeader& header);
  void SendOver(StreamId stream, const ps::ClientHeader& header);

  const bool is_standing_;
  const int shard_index_;
  const std::string name_;
  mutable std::mutex mutex_;  // guards the following; held until all is there
  std::condition_variable has_begun_;
  ParameterServerOptions options_;  // standing: of its job, once it has one
  uint64_t latest_job_;             // that has come
  bool is_over_;                    // that one has ended well
  bool is_superseded_ = false;      // by a later job
  bool is_beginning_ = false;       // standing: whoever brings the job is just let in, or not
  bool is_closing_ = false;         // standing: its job has ended
  absl::Status last_checkpoint_;    // of a job that has ended well
  std::unique_ptr<FrameServer> frames_;
  std::vector<std::unique_ptr<ShardServer>> shards_;  // its own first
  std::map<StreamId, ShardServer*> streams_;
  std::unique_ptr<CopyKeeper> keeper_;  // null: nobody asks for checkpoints
  std::atomic<bool> is_killed_ = false;
  std::optional<ListenerFollower> follower_;  // the last member: it uses the others
};

absl::Status Process::Listen() {
  const std::string address =
      ListeningAddress(options_.view->Address(options_.view->own()), options_.bind_host);
  const std::lock_guard lock(mutex_);  // the first frame may be there before Listen returns
  auto listening = FrameServer::Listen(address, options_.tls, options_.transport, this);
  if (!listening.ok()) return Annotate(listening.status(), name_);
  frames_ = *std::move(listening);
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  if (!is_standing_) MUSTER_RETURN_IF_ERROR(StartShards());
  follower_.emplace(options_.view.get(), options_.bind_host, address,
                    [this](const std::string& moved_to) { return frames_->ListenAlso(moved_to); });
  return absl::OkStatus();
}

absl::Status Process::StartShards() {
  if (AsksForCheckpoints(options_)) {
    keeper_ = std::make_unique<CopyKeeper>(CopiesOf(options_), frames_.get());
  }
  const int count = static_cast<int>(options_.cluster.ps.size());
  std::vector<int> shards = {options_.shard_index};
  if (options_.replicated) shards.push_back((options_.shard_index + count - 1) % count);
  for (const int shard : shards) {
    MUSTER_ASSIGN_OR_RETURN(auto server, ShardServer::Start(options_, shard, frames_.get()));
    shards_.push_back(std::move(server));
  }
  return absl::OkStatus();
}

// Standing. Who asks too early, while the server turns to another job, say, is to ask again.
absl::Status Process::Admit(StreamId stream, const ps::ClientHeader& header, bool* begins) {
  const std::lock_guard lock(mutex_);
  if (shards_.empty()) {
    if (!header.has_join()) return Unavailable("%s waits for a job", name_);
    MUSTER_RETURN_IF_ERROR(BeginJob(stream, header.join()));
    *begins = is_beginning_ = true;
    return absl::OkStatus();
  }
  if (is_beginning_) return Unavailable("%s is just turning to job %d", name_, options_.generation);
  const uint64_t job = header.has_join()         ? header.join().generation()
                       : header.has_shard_join() ? header.shard_join().generation()
                                                 : 0;
  // Of two jobs without a number that one is another which comes when the first has ended.
  if (job == 0 && is_closing_ && header.has_join() && options_.generation == 0) {
    return Unavailable("%s turns to the next job", name_);
  }
  // A worker of an earlier one hears that there is a later one; its other servers the shards refuse.
  if (header.has_join() && job < latest_job_) return CheckJoin(stream, header.join());
  if (job <= options_.generation) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(header.has_join() ? CheckJoin(stream, header.join())
                                           : CheckShardJoin(stream, header.shard_join()));
  latest_job_ = std::max(latest_job_, job);
  is_over_ = false;
  is_superseded_ = true;
  for (const auto& shard : shards_) {
    shard->End(absl::AbortedError(absl::StrFormat(
        "job %d of the standing servers has come, which ends job %d", job, options_.generation)));
  }
  return Unavailable("%s turns from job %d to job %d", name_, options_.generation, job);
}

// Nothing begins, and nothing ends, because of a worker that could not take part. The mutex is held.
absl::Status Process::CheckJoin(StreamId stream, const ps::Join& join) const {
  const auto count = static_cast<uint32_t>(options_.cluster.ps.size());
  if (join.shard_index() != static_cast<uint32_t>(shard_index_) || join.shard_count() != count) {
    return FailedPrecondition("this is shard %d of %d, the worker wants shard %d of %d: compare --ps_hosts",
                              shard_index_, count, join.shard_index(), join.shard_count());
  }
  const uint32_t first = join.config().worker_count();
  const uint32_t workers = std::max(first, join.ranks().count());  // others may have joined the first ones
  if (first < 1 || workers > kMostWorkers || join.rank() >= workers) {
    return InvalidArgument("rank %d of %d workers: there can be 1 to %d", join.rank(), workers, kMostWorkers);
  }
  MUSTER_RETURN_IF_ERROR(UpdateOf(join.config()).status());
  MUSTER_RETURN_IF_ERROR(LayoutOf(join.config()).status());
  MUSTER_RETURN_IF_ERROR(TablesOf(join.config()).status());
  MUSTER_RETURN_IF_ERROR(OptimizersOf(join.config()).status());
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, TaskOfJoin(join)));
  if (join.generation() < latest_job_) {
    return FailedPrecondition("job %d has come to %s, which is later than job %d", latest_job_, name_,
                              join.generation());
  }
  if (join.generation() == 0 && !options_.checkpoint_dir.empty()) {
    return FailedPrecondition("%s keeps checkpoints, by the number of a job: give the workers --job_number",
                              name_);
  }
  return absl::OkStatus();
}

absl::Status Process::CheckShardJoin(StreamId stream, const ps::ShardJoin& join) const {
  const auto count = static_cast<uint32_t>(options_.cluster.ps.size());
  if (join.shard_index() >= count || join.shard_count() != count) {
    return FailedPrecondition("ps:%d of %d here, of %d there: compare --ps_hosts", join.shard_index(), count,
                              join.shard_count());
  }
  if (!options_.tls) return absl::OkStatus();
  return frames_->CheckPeer(stream, {Role::kPs, static_cast<int>(join.shard_index())});
}

// The mutex is held.
absl::Status Process::BeginJob(StreamId stream, const ps::Join& join) {
  MUSTER_RETURN_IF_ERROR(CheckJoin(stream, join));
  absl::Cleanup take_back = [this, before = options_] { options_ = before; };
  options_.generation = join.generation();
  const auto workers = static_cast<int>(join.config().worker_count());
  for (int rank = 0; rank < workers; ++rank) {
    const bool is_chief = rank == 0 && join.has_chief();
    auto& addresses = is_chief ? options_.cluster.chief : options_.cluster.workers;
    addresses.push_back(absl::StrFormat("rank-%d.invalid:1", rank));  // where they are nobody asks
  }
  if (!options_.checkpoint_dir.empty()) MUSTER_RETURN_IF_ERROR(UseFolderOfJob(&options_));
  MUSTER_RETURN_IF_ERROR(StartShards());
  std::move(take_back).Cancel();
  latest_job_ = options_.generation;
  is_over_ = false;
  spdlog::info("{}: job {}, of {} workers", name_, options_.generation, workers);
  has_begun_.notify_all();
  return absl::OkStatus();
}

// Until no shard is needed any more.
absl::Status Process::Wait() {
  if (is_standing_) {
    std::unique_lock lock(mutex_);
    has_begun_.wait(lock, [this] { return !shards_.empty() || is_killed_; });
    if (is_killed_) return absl::CancelledError(name_ + " has been ended");
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<absl::Status>> ends(shards_.size());  // guarded by the mutex
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < shards_.size(); ++i) {
    threads.emplace_back([&, i] {
      absl::Status end = shards_[i]->Serve();
      const std::lock_guard lock(mutex);
      ends[i] = std::move(end);
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  const auto has_ended = [&](const auto& end) { return end.has_value(); };
  const auto has_failed = [&](const auto& end) { return end.has_value() && !end->ok(); };
  std::optional<TimePoint> deadline;
  while (!std::all_of(ends.begin(), ends.end(), has_ended)) {
    if (std::any_of(ends.begin(), ends.end(), has_failed)) break;
    if (std::any_of(ends.begin(), ends.end(), has_ended)) {
      if (!deadline) deadline = Now() + kTakeOverTimeout;
      const auto is_needed = [](const auto& shard) { return shard->is_needed(); };
      if (std::none_of(shards_.begin(), shards_.end(), is_needed) || Now() >= *deadline) break;
    }
    changed.wait_for(lock, kLookEvery);
  }
  absl::Status end;
  for (const auto& of_shard : ends) {
    if (of_shard) end.Update(*of_shard);
  }
  lock.unlock();
  for (const auto& shard : shards_) shard->End(end);
  threads.clear();
  {
    const std::lock_guard state_lock(mutex_);
    is_closing_ = true;
    is_over_ = end.ok() && latest_job_ == options_.generation;
  }
  // The last answers are on their way; the others close their streams when they have them.
  if (AwaitClosed() && !is_killed_) {
    for (const auto& shard : shards_) shard->Close();
  }
  if (!end.ok()) return end;
  absl::Status last_checkpoint;
  for (const auto& shard : shards_) last_checkpoint.Update(shard->FinishCheckpoints());
  const std::lock_guard state_lock(mutex_);
  last_checkpoint_ = last_checkpoint;
  return end;
}

// False: some stream is open still. The next job does not wait for what may be left of this one.
bool Process::AwaitClosed() {
  const TimePoint deadline = Now() + kCloseTimeout;
  const auto is_superseded = [this] {
    const std::lock_guard lock(mutex_);
    return is_superseded_;
  };
  while (!frames_->AwaitClosed(std::min(deadline, Now() + kLookEvery))) {
    if (is_superseded() || Now() >= deadline) return false;
  }
  return true;
}

// The first frame says which one a stream is for. One that nobody has is the own one's to refuse.
ShardServer* Process::ShardOf(StreamId stream, const ps::ClientHeader& header) {
  const std::lock_guard lock(mutex_);
  ShardServer*& shard = streams_[stream];
  if (shard != nullptr) return shard;
  shard = shards_[0].get();
  if (shards_.size() == 1) return shard;
  replication::Message message;
  const uint32_t wanted = header.has_join() ? header.join().shard_index()
                          : message.ParseFromString(header.replication()) && message.has_hello()
                              ? message.hello().shard_index()
                              : 0;  // another shard, to the coordinator
  if (wanted != static_cast<uint32_t>(shard_index_)) shard = shards_[1].get();
  return shard;
}

// What memory was short for may be done by half, so this is the end.
void Process::OnFrame(StreamId stream, grpc::ByteBuffer* frame) {
  {
    const std::lock_guard lock(mutex_);
    if (shards_.empty() && !is_standing_) return;  // it could not be started
  }
  ps::ClientHeader header;
  try {
    ShardGradient gradient;
    absl::Status status = DecodeFrame(*frame, &header, &gradient.values);
    frame->Clear();
    if (status.ok() && header.version() != kWireVersion) {
      status = FailedPrecondition("this server speaks version %d of the protocol, the client version %d",
                                  kWireVersion, header.version());
    }
    if (!status.ok()) {
      spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
      return SendError(stream, header.request(), status);
    }
    bool begins = false;
    if (is_standing_) {
      if (IsOver(header)) return SendOver(stream, header);
      if (status = Admit(stream, header, &begins); !status.ok()) {
        if (!absl::IsUnavailable(status)) {
          spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
        }
        return SendError(stream, header.request(), status);
      }
    }
    if (header.has_checkpoint_copy()) {
      if (keeper_ != nullptr) return keeper_->OnRequest(stream, header.request(), header.checkpoint_copy());
      return SendError(
          stream, header.request(),
          FailedPrecondition("%s has no checkpoints: give all parameter servers the same flags", name_));
    }
    if (header.has_push()) {
      gradient.rows.Swap(header.mutable_push()->mutable_rows());
    }
    ShardServer* const shard = ShardOf(stream, header);
    shard->OnFrame(stream, header, std::move(gradient));
    if (begins) EndUnlessJoined(*shard);
  } catch (const std::bad_alloc&) {
    const absl::Status status = OutOfMemory();
    spdlog::error("{}: {}", name_, std::string(status.message()));
    {
      const std::lock_guard lock(mutex_);
      for (const auto& shard : shards_) shard->End(status);
    }
    SendError(stream, header.request(), status);
  }
}

// A job that nobody has joined would have no end.
void Process::EndUnlessJoined(ShardServer& shard) {
  const bool has_job = shard.has_job();
  {
    const std::lock_guard lock(mutex_);
    is_beginning_ = false;
    is_closing_ = !has_job;
  }
  if (!has_job) shard.End(Aborted("the job's first worker could not join"));
}

void Process::SendError(StreamId stream, uint64_t request, const absl::Status& status) {
  ps::ServerHeader answer;
  answer.set_version(kWireVersion);
  answer.set_request(request);
  SetError(status, answer.mutable_error());
  frames_->Send(stream, EncodeFrame(answer));
}

// Somebody has not heard the last answer of a job.
bool Process::IsOver(const ps::ClientHeader& header) {
  const std::lock_guard lock(mutex_);
  if (!is_over_ || latest_job_ == 0) return false;
  return (header.has_join() && header.join().generation() == latest_job_) ||
         (header.has_shard_join() && header.shard_join().generation() == latest_job_ && shards_.empty());
}

void Process::SendOver(StreamId stream, const ps::ClientHeader& header) {
  ps::ServerHeader answer;
  answer.set_version(kWireVersion);
  answer.set_request(header.request());
  if (header.has_join()) {
    answer.mutable_finish()->set_over(true);
  } else {
    answer.mutable_coordination()->set_ended(true);
  }
  frames_->Send(stream, EncodeFrame(answer));
}

void Process::OnClosed(StreamId stream) {
  ShardServer* shard = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.extract(stream);
    if (!found.empty()) shard = found.mapped();
    if (keeper_ != nullptr) keeper_->OnClosed(stream);
  }
  if (shard != nullptr) shard->OnClosed(stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(
    const ParameterServerOptions& options) {
  const int count = static_cast<int>(options.cluster.ps.size());
  MUSTER_CHECK(options.shard_index >= 0 && options.shard_index < count);
  if (options.replicated && count < 2) {
    return InvalidArgument("replicated shards need two parameter servers at least");
  }
  MUSTER_CHECK(!options.replicated || options.checkpoint_dir.empty());
  MUSTER_CHECK(!options.checkpoint_buddy || (count >= 2 && !options.checkpoint_dir.empty()));
  MUSTER_CHECK(!options.is_standing || (!options.replicated && !options.checkpoint_buddy));
  ParameterServerOptions with_view = options;
  if (with_view.view == nullptr) {
    with_view.view = std::make_shared<ClusterView>(options.cluster, TaskId{Role::kPs, options.shard_index});
  }
  auto server = std::make_unique<Process>(with_view);
  MUSTER_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status ServeJobs(ParameterServerOptions options,
                       const std::function<absl::Status(ParameterServer&)>& serve) {
  options.is_standing = true;
  const std::string name = TaskName({Role::kPs, options.shard_index});
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(auto server, ParameterServer::Start(options));
    const absl::Status end = serve(*server);
    if (absl::IsCancelled(end)) return end;
    const std::optional<uint64_t> job = server->job();
    if (!job) return end;  // nobody was served
    options.latest_job = server->latest_job();
    options.latest_job_is_over = end.ok() && options.latest_job == *job;
    if (end.ok()) {
      spdlog::info("{}: job {} is over", name, *job);
    } else {
      spdlog::warn("{}: job {} has ended: {}", name, *job, std::string(end.message()));
    }
    server = nullptr;
    ReturnFreeBlocks();  // the next job may be smaller, and long in coming
  }
}

}  // namespace muster
