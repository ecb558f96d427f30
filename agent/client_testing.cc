#include "agent/client_testing.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "agent/proc_scan.h"
#include "base/process.h"
#include "tests/support/checkout.h"

namespace muster {

AgentClient::AgentClient(const std::filesystem::path& root, int version) {
  ::signal(SIGPIPE, SIG_IGN);
  int in[2], out[2];
  MUSTER_CHECK(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0);
  UniqueFd child_in(in[0]), child_out(out[1]);
  to_ = UniqueFd(in[1]);
  from_ = UniqueFd(out[0]);
  UniqueFd child_err(::open((scratch_.path() / "stderr").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  absl::StatusOr<Process> bridge =
      Process::Spawn({.argv = {BuildPath("bin/muster-agent"), "bridge", "--root", root.string()},
                      .stdin_fd = child_in.get(),
                      .stdout_fd = child_out.get(),
                      .stderr_fd = child_err.get()});
  MUSTER_CHECK(bridge.ok(), bridge.status().ToString());
  bridge_ = *std::move(bridge);
  SendRaw(HelloLine(version));
}

void AgentClient::SendRaw(std::string_view bytes) { (void)WriteAll(to_.get(), bytes); }

uint64_t AgentClient::Send(const agent::Request& request) {
  agent::Envelope envelope;
  envelope.set_id(next_id_++);
  *envelope.mutable_request() = request;
  std::string frame;
  AppendFrame(frame, envelope.SerializeAsString());
  SendRaw(frame);
  return envelope.id();
}

absl::StatusOr<std::string> AgentClient::ReadSome() {
  pollfd event{.fd = from_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&event, 1, MillisecondsUntil(TestDeadline())) <= 0)
    return DeadlineExceeded("no answer; stderr: %s", stderr_text());
  std::string bytes(1 << 20, '\0');
  const ssize_t n = ::read(from_.get(), bytes.data(), bytes.size());
  if (n <= 0) return NotFound("the bridge closed; stderr: %s", stderr_text());
  bytes.resize(n);
  return bytes;
}

absl::StatusOr<agent::Response> AgentClient::Receive(uint64_t id) {
  while (waiting_[id].empty()) {
    MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadSome());
    if (!greeted_) {
      MUSTER_ASSIGN_OR_RETURN(greeted_, hello_.Feed(bytes));
      if (greeted_) frames_.Feed(hello_.TakeRest());
    } else {
      frames_.Feed(bytes);
    }
    while (true) {
      MUSTER_ASSIGN_OR_RETURN(const std::optional<std::string> frame, frames_.Next());
      if (!frame) break;
      agent::Envelope envelope;
      if (!envelope.ParseFromString(*frame)) return DataLoss("no Envelope");
      waiting_[envelope.id()].push_back(envelope.response());
    }
  }
  std::vector<agent::Response>& answers = waiting_[id];
  agent::Response answer = answers.front();
  answers.erase(answers.begin());
  return answer;
}

absl::StatusOr<agent::Response> AgentClient::Call(const agent::Request& request) {
  MUSTER_ASSIGN_OR_RETURN(const agent::Response response, Receive(Send(request)));
  if (response.has_error()) {
    return absl::Status(static_cast<absl::StatusCode>(response.error().code()), response.error().message());
  }
  return response;
}

int AgentClient::Close() {
  to_.reset();
  return WaitForExit().value_or(-1);
}

std::string AgentClient::stderr_text() const { return ReadFile(scratch_.path() / "stderr").value_or(""); }

absl::StatusOr<agent::TaskStatus> AgentClient::WaitFor(
    const std::string& job, const std::string& task,
    const std::function<bool(const agent::TaskStatus&)>& fits) {
  agent::Request request;
  request.mutable_watch()->set_job(job);
  const uint64_t id = Send(request);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const agent::Response response, Receive(id));
    for (const agent::TaskStatus& status : response.watch().tasks()) {
      if (status.task() == task && fits(status)) return status;
    }
  }
}

absl::StatusOr<agent::TaskStatus> AgentClient::WaitForEnd(const std::string& job, const std::string& task) {
  return WaitFor(job, task, [](const agent::TaskStatus& status) {
    return status.state() == agent::TASK_STATE_SUCCEEDED || status.state() == agent::TASK_STATE_FAILED ||
           status.state() == agent::TASK_STATE_LOST;
  });
}

absl::StatusOr<std::string> AgentClient::Follow(const std::string& job, const std::string& task,
                                                uint64_t offset,
                                                const std::function<bool(const std::string&)>& enough) {
  agent::Request request;
  request.mutable_read_file()->set_job(job);
  request.mutable_read_file()->set_task(task);
  request.mutable_read_file()->set_path("log");
  request.mutable_read_file()->set_offset(offset);
  request.mutable_read_file()->set_follow(true);
  const uint64_t id = Send(request);
  std::string text;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const agent::Response response, Receive(id));
    if (response.has_error()) return Internal("%s", response.error().message());
    if (response.read_file().offset() != offset + text.size()) return DataLoss("a gap at %d", text.size());
    text += response.read_file().data();
    if (response.last() || (enough && enough(text))) return text;
  }
}

agent::Request StartRequest(const std::string& job, const std::string& task,
                            const std::vector<std::string>& argv) {
  agent::Request request;
  agent::StartTaskRequest* start = request.mutable_start_task();
  start->set_job(job);
  start->set_task(task);
  start->set_generation(1);
  start->set_spec_hash("spec");
  start->mutable_argv()->Assign(argv.begin(), argv.end());
  return request;
}

agent::Request StopRequest(const std::string& job, uint32_t grace_ms) {
  agent::Request request;
  request.mutable_stop_tasks()->set_job(job);
  request.mutable_stop_tasks()->set_grace_ms(grace_ms);
  return request;
}

pid_t DaemonPid(const std::filesystem::path& root) {
  UniqueFd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrFormat("/proc/self/fd/%d/daemon.sock", folder.get());
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return -1;
  return peer.pid;
}

absl::Status WaitForProcessEnd(pid_t pid) {
  const absl::StatusOr<UniqueFd> pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) return absl::OkStatus();
  pollfd event{.fd = pidfd->get(), .events = POLLIN, .revents = 0};
  if (::poll(&event, 1, MillisecondsUntil(TestDeadline())) > 0) return absl::OkStatus();
  return DeadlineExceeded("process %d still runs", pid);
}

}  // namespace muster
