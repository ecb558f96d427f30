// For the agent's tests: a root of its own, and a launcher's end of real bridges to it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/framing.h"
#include "base/process.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// Long enough for a loaded machine with sanitizers; no test waits for it unless it fails.
inline TimePoint TestDeadline() { return Now() + std::chrono::seconds(60); }

/// A running `muster-agent bridge` and the connection through it. Ends the bridge when destroyed.
class AgentClient {
 public:
  explicit AgentClient(const std::filesystem::path& root, int version = kAgentProtocolVersion);

  uint64_t Send(const agent::Request& request);
  /// The next answer to `id`, whatever comes between. NotFound when the connection has ended.
  absl::StatusOr<agent::Response> Receive(uint64_t id);
  /// Send and Receive; the answer's Error becomes the status.
  absl::StatusOr<agent::Response> Call(const agent::Request& request);
  /// Bytes as they are.
  void SendRaw(std::string_view bytes);

  /// Closes stdin and waits; the exit code.
  int Close();
  absl::StatusOr<int> WaitForExit() { return bridge_->Wait(TestDeadline()); }
  pid_t bridge_pid() const { return bridge_->pid(); }
  std::string stderr_text() const;

  /// Watches until a task's status fits.
  absl::StatusOr<agent::TaskStatus> WaitFor(const std::string& job, const std::string& task,
                                            const std::function<bool(const agent::TaskStatus&)>& fits);
  /// Waits until the task is neither pending, running nor restarting.
  absl::StatusOr<agent::TaskStatus> WaitForEnd(const std::string& job, const std::string& task);
  /// A whole file of a task's folder from `offset`, with follow; until `enough` says so, or its end.
  absl::StatusOr<std::string> Follow(const std::string& job, const std::string& task, uint64_t offset,
                                     const std::function<bool(const std::string&)>& enough = {});

 private:
  absl::StatusOr<std::string> ReadSome();

  TemporaryDirectory scratch_;
  UniqueFd to_, from_;
  std::optional<Process> bridge_;
  HelloScanner hello_;
  bool greeted_ = false;
  FrameDecoder frames_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::vector<agent::Response>> waiting_;
};

agent::Request StartRequest(const std::string& job, const std::string& task,
                            const std::vector<std::string>& argv);
agent::Request StopRequest(const std::string& job, uint32_t grace_ms = 5000);

/// The process that listens on root/daemon.sock, or -1.
pid_t DaemonPid(const std::filesystem::path& root);

/// Waits for the end of any process of this account.
absl::Status WaitForProcessEnd(pid_t pid);

}  // namespace muster
