#include "launcher/transport/guest_commands.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/local_socket.h"

namespace muster {
namespace {

constexpr size_t kMostPerConnection = 4;  // of the ten that sshd has room for (MaxSessions)
constexpr Duration kTimeToAsk = std::chrono::seconds(10);
constexpr Duration kTimeToStart = std::chrono::seconds(3);  // the conversation waits meanwhile
constexpr size_t kOutputBytes = 32 << 10;
constexpr size_t kMostErrors = 1 << 20;          // of a command whose guest reads none
constexpr size_t kMostRequestBytes = 256 << 10;  // more than the kernel takes as one message
constexpr int kTurn = 32;                        // so many messages at a time, so that all get their turn

// Nothing: it has not come yet. An error: the guest is gone, or says what nobody understands.
std::optional<absl::StatusOr<shared::Request>> ReceiveRequest(const UniqueFd& socket) {
  const auto room = std::make_unique_for_overwrite<char[]>(kMostRequestBytes);
  const LocalMessage message = ReceiveLocal(socket, {room.get(), kMostRequestBytes});
  if (message.size < 0 && message.error_number == EAGAIN) return std::nullopt;
  shared::Request request;
  if (message.size <= 0) return Unavailable("it has gone");
  if (!message.is_whole || !request.ParseFromArray(room.get(), static_cast<int>(message.size)))
    return DataLoss("it said something that is no request");
  return request;
}

// Though what it has said before is still to be read.
bool HasHungUp(const UniqueFd& socket) {
  pollfd fd{.fd = socket.get(), .events = 0, .revents = 0};
  return ::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

std::string EndWithError(const absl::Status& status) {
  shared::Answer answer;
  answer.mutable_end()->set_error(std::string(status.message()));
  return answer.SerializeAsString();
}

}  // namespace

void Guest::Refuse(const std::string& why) const {
  shared::Answer answer;
  answer.set_refused(why);
  (void)SendLocal(socket, answer.SerializeAsString());
}

void GuestCommands::Add(Guest guest) {
  if (commands_.size() >= kMostPerConnection) return guest.Refuse("it runs others' commands already");
  shared::Answer answer;
  answer.set_ready(true);
  commands_.push_back(std::make_unique<Command>(Command{.socket = std::move(guest.socket),
                                                        .deadline = Now() + kTimeToAsk,
                                                        .answer = answer.SerializeAsString()}));
  ++count_;
}

void GuestCommands::AddPollItems(std::vector<PollItem>* items) const {
  for (const auto& command : commands_) {
    const bool writes = !command->answer.empty(), reads = command->input.empty() && !command->is_last;
    if (reads || writes) items->push_back({.fd = command->socket.get(), .read = reads, .write = writes});
    // Whoever waits for a channel takes in its errors, of which there may be no end.
    const bool is_full = writes && (command->input.empty() || command->errors.size() > kMostErrors);
    if (command->channel == nullptr || command->is_last || is_full) continue;
    const bool has_ended = command->channel->end_of_output();
    items->push_back({.channel = command->channel.get(),
                      .read = !writes && !has_ended,
                      .write = !command->input.empty(),
                      .exit = !writes && has_ended,
                      .errors_beyond = writes ? UINT64_MAX : command->channel->error_bytes()});
  }
}

TimePoint GuestCommands::deadline() const {
  TimePoint deadline = TimePoint::max();
  for (const auto& command : commands_) {
    if (command->channel == nullptr && !command->is_last) deadline = std::min(deadline, command->deadline);
  }
  return deadline;
}

void GuestCommands::Pump() {
  bool may_begin = true;
  const size_t erased =
      std::erase_if(commands_, [&](const auto& command) { return !Pump(*command, &may_begin); });
  count_ -= static_cast<int>(erased);
}

void GuestCommands::End(const absl::Status& why) {
  for (const auto& command : commands_) (void)SendLocal(command->socket, EndWithError(why));
  count_ -= static_cast<int>(commands_.size());
  commands_.clear();
}

// False: it is over.
bool GuestCommands::Pump(Command& command, bool* may_begin) {
  for (int message = 0; message < kTurn; ++message) {
    bool moved = false;
    if (!SendAnswer(command, &moved) || !TakeRequest(command, may_begin, &moved)) return false;
    if (command.channel != nullptr && !command.is_last) {
      PassInput(command, &moved);
      PassOutput(command, &moved);
    } else if (command.channel == nullptr && !command.is_last && Now() > command.deadline) {
      return false;
    }
    if (!moved) break;
  }
  return true;
}

bool GuestCommands::SendAnswer(Command& command, bool* moved) {
  if (command.answer.empty()) return true;
  const int error = SendLocal(command.socket, command.answer);
  if (error == EAGAIN) return true;
  command.answer.clear();
  *moved = true;
  return error == 0 && !command.is_last;
}

bool GuestCommands::TakeRequest(Command& command, bool* may_begin, bool* moved) {
  // A guest whose last answer is on its way may hang up, once that is there.
  if (!command.input.empty() || command.is_last || (command.channel == nullptr && !*may_begin)) return true;
  auto request = ReceiveRequest(command.socket);
  if (!request) return true;
  if (!request->ok()) return false;
  *moved = true;
  switch ((*request)->kind_case()) {
    case shared::Request::kCommand:
      if (command.channel != nullptr || !command.answer.empty() || HasHungUp(command.socket)) return false;
      *may_begin = false;
      Begin(command, (*request)->command());
      return true;
    case shared::Request::kInput:
      command.input = (*request)->input();
      return command.channel != nullptr && !command.input_ends;
    case shared::Request::kEndOfInput:
      command.input_ends = true;
      return command.channel != nullptr;
    default:
      return false;
  }
}

void GuestCommands::Begin(Command& command, const std::string& line) {
  shared::Answer answer;
  if (line.find_first_of(std::string_view("\n\r\0", 3)) != std::string::npos) {
    answer.set_refused("a line break, or a zero, in a command");
    command.is_last = true;
  } else if (auto channel = transport_.Start(line, Now() + kTimeToStart); channel.ok()) {
    answer.set_started(true);
    command.channel = *std::move(channel);
    command.channel->SetErrorSink([&command](std::string_view bytes) { command.errors += bytes; });
  } else {
    // Of a host that is there and has not answered, nobody knows what it does.
    const bool is_there = absl::IsDeadlineExceeded(transport_.Poll({}, -1, Now()));
    if (is_there && !absl::IsDeadlineExceeded(channel.status())) {
      answer.set_refused(std::string(channel.status().message()));
    } else {
      answer.mutable_end()->set_error(std::string(channel.status().message()));
    }
    command.is_last = true;
  }
  command.answer = answer.SerializeAsString();
}

void GuestCommands::PassInput(Command& command, bool* moved) {
  if (!command.input.empty()) {
    const auto sent = command.channel->TryWrite(command.input);
    // One that wants no more of it gets no more; that the connection is lost, reading says too.
    const size_t done = sent.ok() ? *sent : command.input.size();
    command.input.erase(0, done);
    *moved |= done > 0;
  }
  if (command.input.empty() && command.input_ends) (void)command.channel->CloseInput();
}

void GuestCommands::PassOutput(Command& command, bool* moved) {
  if (!command.answer.empty()) return;
  std::string bytes(kOutputBytes, '\0');
  // Which takes in errors, too: not while there are some.
  const auto n = command.errors.empty() ? command.channel->TryRead(bytes) : absl::StatusOr<size_t>(0);
  shared::Answer answer;
  if (n.ok() && *n == 0 && !command.errors.empty()) {
    answer.set_errors(command.errors.substr(0, kOutputBytes));
    command.errors.erase(0, kOutputBytes);
  } else if (!n.ok()) {
    answer.mutable_end()->set_error(std::string(n.status().message()));
    command.is_last = true;
  } else if (*n > 0) {
    bytes.resize(*n);
    answer.set_output(std::move(bytes));
  } else if (command.channel->end_of_output() && command.channel->exit_code()) {
    answer.mutable_end()->set_exit_code(*command.channel->exit_code());
    command.is_last = true;
  } else {
    return;
  }
  command.answer = answer.SerializeAsString();
  *moved = true;
}

absl::StatusOr<std::unique_ptr<GuestListener>> GuestListener::Open(const std::filesystem::path& path,
                                                                   std::function<void(Guest)> take) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd listener, ListenLocalAt(path));
  return std::unique_ptr<GuestListener>(new GuestListener(path, std::move(listener), std::move(take)));
}

GuestListener::GuestListener(std::filesystem::path path, UniqueFd listener, std::function<void(Guest)> take)
    : path_(std::move(path)), listener_(std::move(listener)), take_(std::move(take)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

GuestListener::~GuestListener() {
  thread_.request_stop();
  wake_.Set();
  thread_.join();
  (void)::unlink(path_.c_str());
}

void GuestListener::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> fds = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                               {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    TimePoint deadline = TimePoint::max();
    for (const Arrival& arrival : arrivals_) {
      fds.push_back({.fd = arrival.socket.get(), .events = POLLIN, .revents = 0});
      deadline = std::min(deadline, arrival.deadline);
    }
    (void)::poll(fds.data(), fds.size(), MillisecondsUntil(deadline));
    std::erase_if(arrivals_, [&](Arrival& arrival) { return Hear(arrival) || Now() > arrival.deadline; });
    if (fds[1].revents != 0) Accept();
  }
}

void GuestListener::Accept() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // With too many open files, say, there would be no end of trying: those who wait find another way.
      pollfd wake{.fd = wake_.fd(), .events = POLLIN, .revents = 0};
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) (void)::poll(&wake, 1, 50);
      return;
    }
    if (IsOfSameUser(socket)) {
      arrivals_.push_back({.socket = std::move(socket), .deadline = Now() + kTimeToAsk});
    }
  }
}

// True: it has been handed on, or is gone.
bool GuestListener::Hear(Arrival& arrival) {
  auto request = ReceiveRequest(arrival.socket);
  if (!request) return false;
  if (!request->ok() || !(*request)->has_open()) return true;
  Guest guest{.socket = std::move(arrival.socket), .wanted = (*request)->open()};
  if (guest.wanted.version() == kSharedConnectionVersion) {
    take_(std::move(guest));
  } else {
    guest.Refuse("it is another version of muster");
  }
  return true;
}

void GuestKeeper::Keep(std::unique_ptr<Transport> transport, std::unique_ptr<GuestCommands> guests) {
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([transport = std::move(transport), guests = std::move(guests)]() mutable {
    while (!guests->empty()) {
      std::vector<PollItem> items;
      guests->AddPollItems(&items);
      const absl::Status polled = transport->Poll(items, -1, guests->deadline());
      if (!polled.ok() && !absl::IsDeadlineExceeded(polled)) guests->End(polled);
      guests->Pump();
    }
    guests = nullptr;  // before its transport
  });
}

}  // namespace muster
