#include "launcher/controller.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/archive.h"
#include "launcher/job_store.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

constexpr Duration kAskEvery = std::chrono::seconds(1);  // whether it is given up
// For all tasks to run, which may have to be started again.
constexpr Duration kDriveTimeout = std::chrono::minutes(5);
constexpr Duration kOrderTimeout = std::chrono::minutes(1);
constexpr Duration kExportTimeout = std::chrono::minutes(30);  // there may be a large model
constexpr size_t kMostNoise = 1 << 20;                         // of a login shell, bytes

absl::Status UploadTo(AgentConnection& connection, const Content& content, const GivingUp& giving_up = {}) {
  MUSTER_RETURN_IF_ERROR(connection.BeginUpload(content, {}, kUploadSilence));
  while (true) {
    if (giving_up.is_wanted && giving_up.is_wanted()) return Cancelled("%s is not sent", content.name);
    MUSTER_RETURN_IF_ERROR(connection.Receive(giving_up.wake_fd, Now() + kAskEvery).status());
    if (const auto result = connection.TakeTransferResult()) return *result;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> Controller::Connect(const record::Host& host,
                                                                const Content& program,
                                                                const ConnectOptions& options,
                                                                Duration connect_timeout) {
  MUSTER_ASSIGN_OR_RETURN(auto connection, AgentConnection::Connect(host, options, Now() + connect_timeout));
  MUSTER_RETURN_IF_ERROR(UploadTo(*connection, program));
  const std::string& root = connection->facts().root();
  const std::string command = absl::StrFormat("MUSTER_HOME=%s exec %s", QuoteWord(root + "/controller"),
                                              QuoteWord(root + "/store/" + program.sha256 + "/bin/muster"));
  return std::unique_ptr<Controller>(new Controller(host.name(), std::move(connection), command));
}

absl::StatusOr<HostCommandResult> Controller::Ask(const std::vector<std::string>& words,
                                                  std::string_view input, Duration timeout,
                                                  const std::function<absl::Status(std::string_view)>& take) {
  std::string line = command_;
  for (const std::string& word : words) line += " " + QuoteWord(word);
  return RunOnHost(connection_->transport(), line, input, Now() + timeout, take);
}

absl::Status Controller::Order(const std::vector<std::string>& words, std::string_view input,
                               Duration timeout) {
  MUSTER_ASSIGN_OR_RETURN(const HostCommandResult result,
                          Ask(words, input, timeout, [](std::string_view) { return absl::OkStatus(); }));
  return StatusOf(result);
}

absl::Status Controller::StatusOf(const HostCommandResult& result) const {
  if (result.exit_code == 0) return absl::OkStatus();
  const std::string said(absl::StripAsciiWhitespace(result.stderr_tail));
  if (result.exit_code == kNoSuchJobExitCode) return absl::NotFoundError(host_ + ": " + said);
  return FailedPrecondition("%s: %s", host_, said);
}

absl::Status Controller::Upload(const Contents& contents, const GivingUp& giving_up) {
  for (const auto& [sha256, content] : contents) {
    MUSTER_RETURN_IF_ERROR(UploadTo(*connection_, content, giving_up));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Controller::CheckLogins(const record::HandOver& job) {
  MUSTER_ASSIGN_OR_RETURN(const HostCommandResult result,
                          Ask({"controller", "check"}, job.SerializeAsString(), kOrderTimeout,
                              [](std::string_view) { return absl::OkStatus(); }));
  MUSTER_RETURN_IF_ERROR(StatusOf(result));
  return job.record().id().empty() ? "" : std::string(absl::StripAsciiWhitespace(result.stderr_tail));
}

absl::Status Controller::Drive(const record::HandOver& job) {
  return Order({"controller", "drive"}, job.SerializeAsString(), kDriveTimeout);
}

absl::Status Controller::Resume(const record::JobRecord& job) {
  record::HandOver asked;
  asked.mutable_record()->set_version(kJobRecordVersion);
  asked.mutable_record()->set_hand_overs(job.hand_overs());
  return Order({"controller", "resume", job.id()}, asked.SerializeAsString(), kDriveTimeout);
}

absl::StatusOr<Controller::State> Controller::AwaitEnd(const std::string& job,
                                                       std::optional<TimePoint> deadline) {
  const Duration timeout = deadline ? std::min(kOrderTimeout, *deadline - Now()) : kOrderTimeout;
  MUSTER_ASSIGN_OR_RETURN(
      const HostCommandResult result,
      Ask({"controller", "await", job}, "", timeout, [](std::string_view) { return absl::OkStatus(); }));
  if (result.exit_code == kUndrivenExitCode) return State::kUndriven;
  if (result.exit_code == kDrivenExitCode) return State::kDriven;
  MUSTER_RETURN_IF_ERROR(StatusOf(result));
  return State::kEnded;
}

absl::Status Controller::Export(const std::string& job, const std::filesystem::path& folder) {
  Unpacker unpacker(folder, Unpacker::Links::kNone);
  std::optional<std::string> before = "";  // the output, as far as it has come
  const auto take = [&](std::string_view bytes) {
    if (!before) return unpacker.Take(bytes);
    before->append(bytes);
    const size_t begin = before->find(kControllerOutput);
    if (begin == std::string::npos) {
      return before->size() <= kMostNoise ? absl::OkStatus() : DataLoss("%s: this is no job", host_);
    }
    const std::string output = *std::exchange(before, std::nullopt);
    return unpacker.Take(std::string_view(output).substr(begin + std::strlen(kControllerOutput)));
  };
  MUSTER_ASSIGN_OR_RETURN(const HostCommandResult result,
                          Ask({"controller", "export", job}, "", kExportTimeout, take));
  MUSTER_RETURN_IF_ERROR(StatusOf(result));
  return Annotate(unpacker.Finish(), host_);
}

absl::Status Controller::Release(const std::string& job) {
  return Order({"controller", "release", job}, "", kOrderTimeout);
}

absl::Status Controller::Forget(const std::string& job) {
  return Order({"controller", "forget", job}, "", kOrderTimeout);
}

}  // namespace muster
