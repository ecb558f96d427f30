// The records of jobs on this machine: ~/.muster/jobs/<id>/ with record.pb, and what came back from the job
// when it ended (result.json, metrics.jsonl, model.safetensors, model.onnx, events/).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/reconciler/messages.h"
#include "proto/job_record.pb.h"

namespace muster {

inline constexpr uint32_t kJobRecordVersion = 1;

/// In the folder of each job.
inline constexpr char kRecordFile[] = "record.pb";

/// DataLoss: damaged; FailedPrecondition: of another version, with both numbers.
absl::StatusOr<record::JobRecord> LoadJobRecord(const std::filesystem::path& path);

/// In the folder of a job whose chief wrote a result.
inline constexpr char kResultFile[] = "result.json";

/// The chief's files and its folder of event files, in its own folder on its host and in the job's here.
inline constexpr char kMetricsFile[] = "metrics.jsonl";
inline constexpr char kTaskMetricsFile[] = "metrics.prom";  // of each task, on its host
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOnnxFile[] = "model.onnx";
inline constexpr char kEventsFolder[] = "events";

/// In the folder of a job that was started with `run -d`: what its controller says.
inline constexpr char kControllerLog[] = "controller.log";

/// In the folder of a job whose driver lends its connections: where it listens (transport/guest_commands.h).
inline constexpr char kConnectionsSocket[] = "connections";

/// What happened to it (job_history.h).
inline constexpr char kHistoryFile[] = "history.jsonl";

/// All of these but the record: what another machine that drove the job may have.
inline constexpr const char* kJobFiles[] = {kHistoryFile, kControllerLog, kResultFile,  kMetricsFile,
                                            kModelFile,   kOnnxFile,      kEventsFolder};

/// Says that this process drives a job; freed with the object, or when the process dies.
class JobLock {
 public:
  explicit JobLock(UniqueFd fd) : fd_(std::move(fd)) {}
  JobLock(JobLock&&) = default;
  JobLock& operator=(JobLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~JobLock();

  /// Whether it does so in the background: whoever wants to drive the job instead may then end the process.
  absl::Status SetInBackground(bool in_background) const;

 private:
  UniqueFd fd_;
};

/// The process that drives a job.
struct JobDriver {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  bool in_background = false;

  bool operator==(const JobDriver&) const = default;
};

class JobStore {
 public:
  /// `folder` is ~/.muster (or MUSTER_HOME).
  explicit JobStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path JobFolder(const std::string& id) const { return folder_ / "jobs" / id; }

  /// Atomic and durable.
  absl::Status Save(const record::JobRecord& record) const;

  /// As Save would fail, because the disk is full say, and changes nothing: before whoever drives the job is
  /// sent away for one that could not.
  absl::Status CheckRoom(const record::JobRecord& record) const;

  /// As LoadJobRecord.
  absl::StatusOr<record::JobRecord> Load(const std::string& id) const {
    return LoadJobRecord(JobFolder(id) / kRecordFile);
  }

  /// All jobs that can be read, the newest first; what cannot is said in `problems`.
  std::vector<record::JobRecord> List(std::vector<absl::Status>* problems) const;

  /// By id, or of that name the one that has not ended, else the newest. InvalidArgument names what there is.
  /// Another error: a record cannot be read that is, or may be, the one.
  absl::StatusOr<record::JobRecord> Find(const std::string& id_or_name) const;

  /// Where drivers may listen that lend their connections.
  std::vector<std::filesystem::path> ConnectionsSockets() const;

  /// FailedPrecondition, with the process id of its holder, if another muster drives the job.
  absl::StatusOr<JobLock> Lock(const std::string& id) const;

  /// The same, but one that drives it in the background is ended first, which leaves the job as it is. Where
  /// others' commands go through its connections, it lives on for those, without the job; it is killed if it
  /// does not let go of that in ten seconds.
  absl::StatusOr<JobLock> TakeOver(const std::string& id) const;

  /// Nothing: nobody drives it, or somebody has only just begun.
  std::optional<JobDriver> DriverOf(const std::string& id) const;

  /// Leaves a word for whoever drives the job, who is to stop it: while it brings the job about, or watches
  /// over it, it looks at IsToStop once a second. Whoever drives it next (Lock, TakeOver) knows nothing of
  /// it.
  absl::Status AskToStop(const std::string& id) const;
  bool IsToStop(const std::string& id) const;

  /// Held by who decides whether a job of some name goes on or a new one begins. Waits for the other to have
  /// decided, which takes no longer than its files do; Unavailable if it does.
  absl::StatusOr<JobLock> LockDecision() const;

 private:
  // Records, the newest first, and by id why others cannot be read.
  struct Listing {
    std::vector<record::JobRecord> records;
    std::map<std::string, absl::Status> unreadable;
  };
  absl::StatusOr<Listing> ListAll() const;

  // Of a job that has no record, and of which nobody would know.
  void RemoveUnrecorded(const std::string& id) const;

  const std::filesystem::path folder_;
};

/// What a job's record says of its state: "Running", "Succeeded", "Stopping", ...
std::string RecordedState(const record::JobRecord& record);

reconcile::Record FromProto(const record::ClusterRecord& proto);
record::ClusterRecord ToProto(const reconcile::Record& record);

}  // namespace muster
