#include "launcher/content_transfer.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>

#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

// A host that cannot start a command by then is not there.
constexpr Duration kStartTimeout = std::chrono::seconds(10);

// The number that a line like "from 17" says; other lines are a login shell's.
template <typename Number>
bool ReadNumber(const std::string& line, std::string_view word, Number* number) {
  return line.starts_with(word) && absl::SimpleAtoi(line.substr(word.size()), number);
}

// Hands the lines that have arrived to `take`. TryRead once more after the end says if there is no exit code.
template <typename Take>
absl::Status ReadLines(CommandChannel& channel, LineBuffer& lines, const Take& take) {
  char bytes[4096];
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, channel.TryRead(bytes));
    if (n == 0) return absl::OkStatus();
    for (const std::string& line : lines.Append({bytes, n})) take(line);
  }
}

}  // namespace

ContentTransfer::ContentTransfer(const Transport& transport, Content content, TransferProgress progress)
    : host_(transport.host()), content_(std::move(content)), progress_(std::move(progress)) {}

absl::StatusOr<std::unique_ptr<ContentTransfer>> ContentTransfer::Upload(Transport& transport,
                                                                         const AgentPlace& place,
                                                                         const Content& content,
                                                                         TransferProgress progress,
                                                                         Duration silence_limit) {
  std::unique_ptr<ContentTransfer> transfer(new ContentTransfer(transport, content, std::move(progress)));
  transfer->silence_limit_ = silence_limit;
  transfer->deadline_ = Now() + silence_limit;
  transfer->rest_ = *transfer->content_.bytes;
  MUSTER_ASSIGN_OR_RETURN(
      transfer->channel_,
      transport.Start(absl::StrFormat("exec %s receive --root %s --sha256 %s --size %d", place.program,
                                      place.root, content.sha256, content.bytes->size()),
                      std::min(transfer->deadline_, Now() + kStartTimeout)));
  return transfer;
}

absl::StatusOr<std::unique_ptr<ContentTransfer>> ContentTransfer::Fetch(
    Transport& transport, const AgentPlace& place, const Content& content, const ContentSource& source,
    TransferProgress progress, TimePoint deadline) {
  std::unique_ptr<ContentTransfer> transfer(new ContentTransfer(transport, content, std::move(progress)));
  transfer->deadline_ = deadline;
  transfer->secret_ = source.secret + "\n";
  transfer->source_ = source.host;
  transfer->rest_ = transfer->secret_;
  transfer->total_ = content.bytes->size();
  transfer->has_begun_ = true;
  MUSTER_ASSIGN_OR_RETURN(
      transfer->channel_,
      transport.Start(absl::StrFormat("exec %s fetch --root %s --sha256 %s --size %d --address %s --port %d",
                                      place.program, place.root, content.sha256, content.bytes->size(),
                                      QuoteWord(source.address), source.port),
                      std::min(deadline, Now() + kStartTimeout)));
  return transfer;
}

PollItem ContentTransfer::poll_item() const {
  return {.channel = channel_.get(),
          .read = !channel_->end_of_output(),
          .write = has_begun_ && !all_sent_,
          .exit = all_sent_ && channel_->end_of_output()};
}

void ContentTransfer::Pump() {
  if (result_) return;
  absl::Status status = Listen();
  if (status.ok() && has_begun_) status = Send();
  if (!status.ok()) {
    result_ = status;
  } else if (all_sent_ && channel_->end_of_output() && channel_->exit_code()) {
    // sshd may send the exit code before the last words, but never the end of the output.
    result_ = Ended(*channel_->exit_code());
  } else if (Now() >= deadline_) {
    result_ = TooSlow();
  }
}

// The agent says first with which byte an upload is to begin: what one that was cut off has brought is there.
// It says nothing if it has all, or ends at once; its exit code says which. A fetch says how far it has come.
absl::Status ContentTransfer::Listen() {
  MUSTER_RETURN_IF_ERROR(ReadLines(*channel_, lines_, [&](const std::string& line) {
    uint64_t offset = 0;
    if (!has_begun_ && ReadNumber(line, "from ", &offset)) {
      rest_.remove_prefix(std::min<uint64_t>(offset, rest_.size()));
      total_ = rest_.size();
      has_begun_ = true;
    } else if (!source_.empty() && progress_ && ReadNumber(line, "at ", &offset)) {
      progress_(std::min(offset, total_), total_);
    }
  }));
  if (!has_begun_ && channel_->end_of_output()) {
    rest_ = {};
    has_begun_ = true;
  }
  return absl::OkStatus();
}

absl::Status ContentTransfer::Send() {
  // So many bytes at a time, so that the conversation gets its turn.
  constexpr size_t kTurnBytes = 1 << 20;
  size_t turn = 0;
  while (!rest_.empty() && turn < kTurnBytes) {
    const auto sent = channel_->TryWrite(rest_);
    // It has ended early; its exit code says why.
    if (absl::IsFailedPrecondition(sent.status())) rest_ = {};
    if (rest_.empty()) break;
    MUSTER_RETURN_IF_ERROR(sent.status());
    if (*sent == 0) break;
    rest_.remove_prefix(*sent);
    turn += *sent;
    if (!source_.empty()) continue;
    deadline_ = Now() + silence_limit_;
    if (progress_) progress_(total_ - rest_.size(), total_);
  }
  if (!rest_.empty() || all_sent_) return absl::OkStatus();
  all_sent_ = true;
  if (!source_.empty()) return absl::OkStatus();
  // Of one that has ended, there is nothing to close.
  const absl::Status closed = channel_->CloseInput();
  return absl::IsUnavailable(closed) ? closed : absl::OkStatus();
}

absl::Status ContentTransfer::Ended(int exit_code) const {
  if (exit_code == 0) return absl::OkStatus();
  if (source_.empty()) {
    return FailedPrecondition("%s: the upload of %s failed: %s", host_, content_.name,
                              absl::StripAsciiWhitespace(channel_->StderrTail()));
  }
  const std::string text = absl::StrFormat("%s could not get %s from %s: %s", host_, content_.name, source_,
                                           absl::StripAsciiWhitespace(channel_->StderrTail()));
  return exit_code == ExitCodeFor(absl::UnavailableError("")) ? Aborted("%s", text)
                                                              : FailedPrecondition("%s", text);
}

absl::Status ContentTransfer::TooSlow() const {
  if (!source_.empty()) return Aborted("%s gets %s from %s too slowly", host_, content_.name, source_);
  return DeadlineExceeded("%s: the upload of %s has got nowhere for %s", host_, content_.name,
                          FormatAge(silence_limit_));
}

ContentServer::ContentServer(const Transport& transport, std::string input, TimePoint deadline)
    : host_(transport.host()), deadline_(deadline), input_(std::move(input)) {}

absl::StatusOr<std::unique_ptr<ContentServer>> ContentServer::Start(Transport& transport,
                                                                    const AgentPlace& place,
                                                                    const ContentSource& as,
                                                                    TimePoint deadline) {
  std::unique_ptr<ContentServer> server(
      new ContentServer(transport, as.secret + "\n" + as.ticket + "\n", deadline));
  MUSTER_ASSIGN_OR_RETURN(
      server->channel_, transport.Start(absl::StrFormat("exec %s serve --root %s --address %s", place.program,
                                                        place.root, QuoteWord(as.address)),
                                        deadline));
  return server;
}

PollItem ContentServer::poll_item() const {
  return {.channel = channel_.get(), .read = true, .write = !input_.empty()};
}

void ContentServer::Pump() {
  if (news_) return;
  if (const absl::Status advanced = Advance(); !advanced.ok()) {
    news_ = advanced;
  } else if (!is_known_ && Now() >= deadline_) {
    news_ = DeadlineExceeded("%s: what passes on its contents did not start in time", host_);
  }
}

absl::Status ContentServer::Advance() {
  if (!input_.empty()) {
    const auto sent = channel_->TryWrite(input_);
    // It has ended early; its last words say why.
    if (!sent.ok() && !absl::IsFailedPrecondition(sent.status())) return sent.status();
    input_.erase(0, sent.ok() ? *sent : input_.size());
  }
  MUSTER_RETURN_IF_ERROR(ReadLines(*channel_, lines_, [&](const std::string& line) {
    uint32_t port = 0;
    if (is_known_ || !ReadNumber(line, "serving ", &port)) return;
    is_known_ = true;
    news_ = port;
  }));
  if (!channel_->end_of_output()) return absl::OkStatus();
  return Aborted("%s passes nothing on: %s", host_, absl::StripAsciiWhitespace(channel_->StderrTail()));
}

std::optional<absl::StatusOr<uint32_t>> ContentServer::TakeNews() {
  return std::exchange(news_, std::nullopt);
}

}  // namespace muster
