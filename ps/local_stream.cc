#include "ps/local_stream.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/local_socket.h"
#include "base/logging.h"
#include "ps/shared_segment.h"

namespace muster {
namespace {

constexpr size_t kInlineBytes = 16 << 10;  // of a frame that is copied through the socket
constexpr size_t kMaxSegments = 8;         // of one direction
constexpr int kMaxKeptSegments = 4;        // of those, by who has received them
constexpr int kSegmentPollMs = 1;          // while the other end holds all of them
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kShortWait = std::chrono::microseconds(500);

enum class Kind : uint32_t {
  kInline = 1,   // the frame follows
  kSegment = 2,  // it lies in a segment, whose descriptor comes with its first frame
  kRetire = 3,   // a segment that is not used any more
};

// The beginning of each message through the socket, between processes of one machine and one wire version.
struct Datagram {
  Kind kind = Kind::kInline;
  uint32_t segment = 0;  // number
  uint64_t bytes = 0;    // of the frame
};

using Message = std::array<char, sizeof(Datagram) + kInlineBytes>;

void CopyFrame(const grpc::ByteBuffer& frame, char* out) {
  std::vector<grpc::Slice> slices;
  MUSTER_CHECK(frame.Dump(&slices).ok() || frame.Length() == 0);
  for (const grpc::Slice& slice : slices) {
    std::memcpy(out, slice.begin(), slice.size());
    out += slice.size();
  }
}

std::atomic<bool> is_usable = true;

class Stream final : public LocalStream {
 public:
  Stream(UniqueFd socket, UniqueFd wake, Copying copying, OnFrame on_frame)
      : socket_(std::move(socket)),
        wake_(std::move(wake)),
        copying_(copying),
        on_frame_(std::move(on_frame)),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {}

  ~Stream() override {
    thread_.request_stop();
    Break();  // which wakes the thread, too
  }

  size_t Send(grpc::ByteBuffer frame) override {
    size_t waiting = 0;
    {
      const std::lock_guard lock(mutex_);
      if (is_broken_) return 0;
      const bool later = copying_ == Copying::kLater && frame.Length() > kInlineBytes;
      if (outgoing_.empty() && !later) {
        const Sent sent = TrySend(frame);
        if (sent == Sent::kYes) return 0;
        if (sent == Sent::kBroken) {
          Break();
          return 0;
        }
      }
      outgoing_.push_back(std::move(frame));
      waiting = outgoing_.size();
      // Which looks, after the call that this is in.
      if (std::this_thread::get_id() == thread_id_) return waiting;
    }
    Wake();
    return waiting;
  }

  void Break() override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  enum class Sent { kYes, kSocketFull, kNoSegment, kBroken };
  struct Outgoing {
    uint32_t number = 0;
    std::unique_ptr<SharedSegment> segment;
    bool is_known = false;  // to the other end
  };

  void Run(const std::stop_token& stop);
  int AwaitAnything(Sent blocked);
  bool Receive();
  absl::StatusOr<grpc::ByteBuffer> Take(const Datagram& datagram, UniqueFd fd, std::span<const char> rest);
  Sent Flush();
  Sent TrySend(const grpc::ByteBuffer& frame);
  Sent SendMessage(std::span<const char> message, int fd = -1);
  absl::StatusOr<Outgoing*> FindSegment(size_t bytes, Sent* why_not);
  void Wake() { (void)::eventfd_write(wake_.get(), 1); }

  const UniqueFd socket_;
  const UniqueFd wake_;
  const Copying copying_;
  const OnFrame on_frame_;

  // The thread's.
  bool is_first_ = true;  // frame
  bool waits_are_short_ = false;
  Message incoming_;
  std::map<uint32_t, std::shared_ptr<SharedSegment>> received_;  // by number

  std::mutex mutex_;  // guards the following
  std::thread::id thread_id_;
  bool is_broken_ = false;
  std::deque<grpc::ByteBuffer> outgoing_;            // while it is not empty, the thread alone sends
  std::vector<std::unique_ptr<Outgoing>> segments_;  // of who may send
  uint32_t last_segment_ = 0;

  std::jthread thread_;  // the last member: it uses the others
};

void Stream::Run(const std::stop_token& stop) {
  {
    const std::lock_guard lock(mutex_);
    thread_id_ = std::this_thread::get_id();
  }
  while (!stop.stop_requested()) {
    const Sent sent = Flush();
    if (sent == Sent::kBroken || AwaitAnything(sent) < 0 || stop.stop_requested() || !Receive()) break;
  }
  {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    outgoing_.clear();
    segments_.clear();
  }
  received_.clear();
  Break();
  if (!stop.stop_requested()) (void)on_frame_(std::nullopt);
}

int Stream::AwaitAnything(Sent blocked) {
  std::array<pollfd, 2> fds = {{{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                {.fd = wake_.get(), .events = POLLIN, .revents = 0}}};
  if (blocked == Sent::kSocketFull) fds[0].events |= POLLOUT;
  const TimePoint start = Now();
  int ready = 0;
  // To be woken up costs more than many a wait is long. Who else wants the processor has it between two
  // looks.
  while (waits_are_short_ && ready == 0 && Now() < start + kSpin) {
    ready = ::poll(fds.data(), fds.size(), 0);
    if (ready == 0) std::this_thread::yield();
  }
  while (ready == 0 || (ready < 0 && errno == EINTR)) {
    ready = ::poll(fds.data(), fds.size(), blocked == Sent::kNoSegment ? kSegmentPollMs : -1);
    if (ready == 0) break;  // time to look for a segment
  }
  waits_are_short_ = Now() - start < kShortWait;
  eventfd_t ignored;
  if (fds[1].revents != 0) (void)::eventfd_read(wake_.get(), &ignored);
  return ready;
}

// What is there, with what follows from it. False: the stream is over.
bool Stream::Receive() {
  while (true) {
    LocalMessage message = ReceiveLocal(socket_, incoming_);
    if (message.size < 0 && (message.error_number == EAGAIN || message.error_number == EWOULDBLOCK))
      return true;
    if (message.size <= 0) return false;
    const auto size = static_cast<size_t>(message.size);
    Datagram datagram;
    absl::StatusOr<grpc::ByteBuffer> frame = InvalidArgument("a message of %d bytes", size);
    if (size >= sizeof datagram && message.is_whole && message.fds.size() <= 1) {
      std::memcpy(&datagram, incoming_.data(), sizeof datagram);
      frame = Take(datagram, message.fds.empty() ? UniqueFd() : std::move(message.fds[0]),
                   std::span(incoming_).first(size).subspan(sizeof datagram));
    }
    if (!frame.ok()) {
      spdlog::warn("a process of this host is hung up on: {}", std::string(frame.status().message()));
      return false;
    }
    if (datagram.kind == Kind::kRetire) continue;
    is_first_ = false;
    if (!on_frame_(*std::move(frame)) || Flush() == Sent::kBroken) return false;
  }
}

absl::StatusOr<grpc::ByteBuffer> Stream::Take(const Datagram& datagram, UniqueFd fd,
                                              std::span<const char> rest) {
  const auto known = received_.find(datagram.segment);
  switch (datagram.kind) {
    case Kind::kInline: {
      if (datagram.bytes != rest.size()) break;
      const grpc::Slice copy(rest.data(), rest.size());
      return grpc::ByteBuffer(&copy, 1);
    }
    case Kind::kRetire:
      if (known == received_.end()) break;
      received_.erase(known);
      return grpc::ByteBuffer();
    case Kind::kSegment: {
      const bool is_new = known == received_.end();
      if (is_first_ || fd.valid() != is_new || (is_new && received_.size() == kMaxSegments)) break;
      std::shared_ptr<SharedSegment>& segment = received_[datagram.segment];
      if (fd.valid()) {
        MUSTER_ASSIGN_OR_RETURN(segment, SharedSegment::Map(std::move(fd)));
      }
      if (datagram.bytes > segment->bytes().size()) break;
      // Whoever keeps many frames, for a step that is to be made, keeps copies: what makes the step may come
      // over this stream, too.
      const auto is_kept = [](const auto& known) { return !known.second->is_free(); };
      if (std::count_if(received_.begin(), received_.end(), is_kept) > kMaxKeptSegments) {
        const grpc::Slice copy(segment->bytes().data(), datagram.bytes);
        segment->Release();
        return grpc::ByteBuffer(&copy, 1);
      }
      // Through its whole life a frame keeps the memory, whatever becomes of the stream.
      using Owner = std::shared_ptr<SharedSegment>;
      const grpc::Slice slice(
          segment->bytes().data(), datagram.bytes,
          [](void* user_data) {
            const std::unique_ptr<Owner> owner(static_cast<Owner*>(user_data));
            (*owner)->Release();
          },
          new Owner(segment));
      return grpc::ByteBuffer(&slice, 1);
    }
  }
  return InvalidArgument("a message of kind %d, segment %d, %d bytes", static_cast<uint32_t>(datagram.kind),
                         datagram.segment, datagram.bytes);
}

// What waits, by the thread: without the mutex, so that others can add to it meanwhile.
Stream::Sent Stream::Flush() {
  std::unique_lock lock(mutex_);
  while (!outgoing_.empty()) {
    const grpc::ByteBuffer frame = outgoing_.front();
    lock.unlock();
    const Sent sent = TrySend(frame);
    lock.lock();
    if (sent != Sent::kYes) return sent;
    outgoing_.pop_front();
  }
  return Sent::kYes;
}

// By who holds the mutex while nothing waits, or by the thread while something does.
Stream::Sent Stream::TrySend(const grpc::ByteBuffer& frame) {
  Datagram datagram{.bytes = frame.Length()};
  if (datagram.bytes <= kInlineBytes) {
    Message message;
    std::memcpy(message.data(), &datagram, sizeof datagram);
    CopyFrame(frame, message.data() + sizeof datagram);
    return SendMessage(std::span(message).first(sizeof datagram + datagram.bytes));
  }
  Sent why_not = Sent::kYes;
  const auto found = FindSegment(datagram.bytes, &why_not);
  if (!found.ok()) {
    spdlog::warn("from now on over TCP: {}", std::string(found.status().message()));
    is_usable = false;
    return Sent::kBroken;
  }
  if (why_not != Sent::kYes) return why_not;
  Outgoing& outgoing = **found;
  outgoing.segment->Acquire();
  CopyFrame(frame, outgoing.segment->bytes().data());
  datagram.kind = Kind::kSegment;
  datagram.segment = outgoing.number;
  const Sent sent = SendMessage({reinterpret_cast<const char*>(&datagram), sizeof datagram},
                                outgoing.is_known ? -1 : outgoing.segment->fd());
  if (sent == Sent::kYes) {
    outgoing.is_known = true;
    outgoing.segment->CloseFd();
  } else {
    outgoing.segment->Release();
  }
  return sent;
}

Stream::Sent Stream::SendMessage(std::span<const char> bytes, int fd) {
  switch (SendLocal(socket_, bytes, fd)) {
    case 0:
      return Sent::kYes;
    case ENOBUFS:
    case ENOMEM:
      return Sent::kNoSegment;  // to be tried again after a while
    case EAGAIN:
      return Sent::kSocketFull;
    default:
      return Sent::kBroken;
  }
}

// The smallest one that is free and large enough, or a new one.
absl::StatusOr<Stream::Outgoing*> Stream::FindSegment(size_t bytes, Sent* why_not) {
  Outgoing *fits = nullptr, *smallest = nullptr;
  for (const auto& outgoing : segments_) {
    const size_t size = outgoing->segment->bytes().size();
    if (!outgoing->segment->is_free()) continue;
    if (size >= bytes && (fits == nullptr || size < fits->segment->bytes().size())) fits = outgoing.get();
    if (smallest == nullptr || size < smallest->segment->bytes().size()) smallest = outgoing.get();
  }
  if (fits != nullptr) return fits;
  if (segments_.size() == kMaxSegments) {
    if (smallest == nullptr) {
      *why_not = Sent::kNoSegment;
      return nullptr;
    }
    const Datagram retire{.kind = Kind::kRetire, .segment = smallest->number};
    *why_not = SendMessage({reinterpret_cast<const char*>(&retire), sizeof retire});
    if (*why_not != Sent::kYes) return nullptr;
    std::erase_if(segments_, [&](const auto& outgoing) { return outgoing.get() == smallest; });
  }
  MUSTER_ASSIGN_OR_RETURN(auto segment, SharedSegment::Create(bytes + bytes / 8));  // rows come and go
  segments_.push_back(
      std::make_unique<Outgoing>(Outgoing{.number = ++last_segment_, .segment = std::move(segment)}));
  return segments_.back().get();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalStream>> LocalStream::Open(UniqueFd socket, Copying copying,
                                                               OnFrame on_frame) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    const int error = errno;
    return ErrnoError(error, "eventfd");
  }
  return std::make_unique<Stream>(std::move(socket), std::move(wake), copying, std::move(on_frame));
}

bool LocalStream::IsUsable() {
  if (is_usable && !SharedSegment::Create(1).ok()) is_usable = false;
  return is_usable;
}

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Listen(
    const std::string& name, std::function<void(UniqueFd)> on_connect) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, ListenLocal(name));
  return std::unique_ptr<LocalListener>(new LocalListener(std::move(fd), std::move(on_connect)));
}

LocalListener::LocalListener(UniqueFd socket, std::function<void(UniqueFd)> on_connect)
    : socket_(std::move(socket)),
      on_connect_(std::move(on_connect)),
      thread_([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
          if (fd.valid()) {
            if (IsOfSameUser(fd)) on_connect_(std::move(fd));
          } else if (!stop.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptors left, for now
          }
        }
      }) {}

LocalListener::~LocalListener() {
  thread_.request_stop();
  ::shutdown(socket_.get(), SHUT_RDWR);  // which ends accept
}

}  // namespace muster
