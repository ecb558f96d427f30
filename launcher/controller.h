// A controller on a host: muster itself, which drives a job there in place of this machine. It is sent as the
// trainer is and asked over SSH; what it keeps is in a folder beside the agent's, not in that account's
// ~/.muster. It must be able to log in to the job's hosts with the keys that it has there.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/agent_connection.h"
#include "launcher/contents.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Of the commands there: there is no such job; it has not ended, and somebody drives it, or nobody.
inline constexpr int kNoSuchJobExitCode = 66, kDrivenExitCode = 67, kUndrivenExitCode = 68;

/// Stands before what Export prints: a login shell may have printed something before.
inline constexpr char kControllerOutput[] = "\nmuster-controller\n";

/// What ends a wait early: `is_wanted` is asked once a second, and when `wake_fd` (-1: none) is readable,
/// which it stays then.
struct GivingUp {
  std::function<bool()> is_wanted;
  int wake_fd = -1;
};

/// One thread at a time. Errors name the host. Unavailable: it is not reached, or not any more; whether what
/// was asked has been done is not known then.
class Controller {
 public:
  /// Connects, and brings `program` (the launcher's bundle) there if it is missing.
  static absl::StatusOr<std::unique_ptr<Controller>> Connect(const record::Host& host, const Content& program,
                                                             const ConnectOptions& options,
                                                             Duration connect_timeout);

  /// FailedPrecondition, with each of them, where the host cannot log in to some of the job's hosts. Of a job
  /// that runs already (its record has an id), those that are not reached are no reason, and returned as
  /// text.
  absl::StatusOr<std::string> CheckLogins(const record::HandOver& job);

  /// Brings what a job's hosts may need there, from where they get it once this machine is gone. Cancelled:
  /// it was given up, and this object is of no use any more.
  absl::Status Upload(const Contents& contents, const GivingUp& giving_up = {});

  /// It drives the job from now on, and does so in the background once this returns. FailedPrecondition: it
  /// cannot, and does not; why. A job may have ended meanwhile: Export tells.
  absl::Status Drive(const record::HandOver& job);

  /// It is driven in the background once this returns, unless it has ended. NotFound: it has none of the job,
  /// or has a record of an earlier hand-over than that of `job`.
  absl::Status Resume(const record::JobRecord& job);

  /// What has become of it; for a few seconds its end is waited for, but not beyond `deadline`, after which
  /// this object is of no use any more (DeadlineExceeded). NotFound: it has none.
  enum class State { kEnded, kDriven, kUndriven };
  absl::StatusOr<State> AwaitEnd(const std::string& job, std::optional<TimePoint> deadline);

  /// What it has of a job, unpacked into `folder`, which must be empty: the files of JobStore::JobFolder.
  /// NotFound: it has none.
  absl::Status Export(const std::string& job, const std::filesystem::path& folder);

  /// Nobody drives the job there from now on; what Export gives stays as it is. NotFound: it has none.
  absl::Status Release(const std::string& job);

  /// Removes what it has of a job that nobody drives there.
  absl::Status Forget(const std::string& job);

  /// How far its clock is ahead: AgentConnection.
  int64_t clock_offset_micros() const { return connection_->clock_offset_micros(); }

  /// record::Host::agent_id of the host, by which the controller there finds its agent without SSH.
  std::string agent_id() const {
    return std::filesystem::path(connection_->facts().root()).filename().string();
  }

 private:
  Controller(std::string host, std::unique_ptr<AgentConnection> connection, std::string command)
      : host_(std::move(host)), connection_(std::move(connection)), command_(std::move(command)) {}

  absl::StatusOr<HostCommandResult> Ask(const std::vector<std::string>& words, std::string_view input,
                                        Duration timeout,
                                        const std::function<absl::Status(std::string_view)>& take);
  absl::Status Order(const std::vector<std::string>& words, std::string_view input, Duration timeout);
  absl::Status StatusOf(const HostCommandResult& result) const;

  const std::string host_;
  const std::unique_ptr<AgentConnection> connection_;
  const std::string command_;  // for sh: muster with its surroundings
};

}  // namespace muster
