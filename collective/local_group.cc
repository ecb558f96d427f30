#include "collective/local_group.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/local_socket.h"
#include "base/logging.h"
#include "base/random.h"
#include "collective/parts.h"
#include "kernels/elementwise.h"

namespace muster {
namespace {

// Measured: bench/RESULTS.md.
constexpr size_t kSlotBytes = 256 << 10;
constexpr size_t kSmallBytes = 16 << 10;  // times the ranks, is what each reads of a small range
constexpr Duration kLookAtOthers = std::chrono::milliseconds(20);
constexpr int kSecretLength = 31;  // characters of 5 bits

int Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                std::atomic<uint32_t>::is_always_lock_free);
  return static_cast<int>(
      ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0));
}

// Counters come round after 2^32.
bool IsBefore(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

std::string SocketName(const std::string& secret) { return "muster-group-" + secret; }

std::span<char> BytesOf(uint32_t& number) { return {reinterpret_cast<char*>(&number), sizeof number}; }

absl::Status AwaitSocket(int fd, TimePoint deadline, const Interrupt& interrupt) {
  pollfd fds[] = {{.fd = fd, .events = POLLIN, .revents = 0},
                  {.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
  int ready = 0;
  do {
    ready = ::poll(fds, 2, MillisecondsUntil(deadline));
  } while (ready < 0 && errno == EINTR);
  if (interrupt.is_set()) return Cancelled("the group was given up");
  if (ready > 0 && Now() < deadline) return absl::OkStatus();  // others may come all the time
  return DeadlineExceeded("not all ranks of this host have come");
}

}  // namespace

// Of the memory: this, a line for each rank, and two slots for each.
struct LocalGroup::Header {
  std::atomic<uint32_t> given_up;  // index + 1 of the first rank that has
};
struct alignas(128) LocalGroup::Line {  // two cache lines: processors fetch them in pairs
  std::atomic<uint32_t> phase;
  std::atomic<uint32_t> sleepers;              // who wait for it in the kernel
  alignas(64) std::atomic<uint32_t> progress;  // of what it does elsewhere between two phases
};

namespace {

constexpr size_t kLineBytes = 128;
// With room for a rank's part of a sum: of two ranks, half.
constexpr size_t kTurnBytes = kSlotBytes + kSlotBytes / 2 + kLineBytes;
size_t MemoryBytes(int ranks) { return kLineBytes + ranks * (kLineBytes + 2 * kTurnBytes); }

}  // namespace

LocalGroup::Header& LocalGroup::header() const { return *reinterpret_cast<Header*>(memory_->bytes().data()); }

LocalGroup::Line& LocalGroup::line(int index) const {
  static_assert(sizeof(Line) == kLineBytes);
  return *reinterpret_cast<Line*>(memory_->bytes().data() + kLineBytes * (1 + index));
}

std::byte* LocalGroup::Slot(int index, int turn) const {
  return memory_->bytes().data() + kLineBytes * (1 + size()) + (2 * index + turn) * kTurnBytes;
}

std::span<float> LocalGroup::SumOf(int index, int64_t size) const {
  return {reinterpret_cast<float*>(Slot(index) + kSlotBytes), static_cast<size_t>(size)};
}

LocalGroup::LocalGroup(LocalGroupOptions options, std::unique_ptr<SharedMemory> memory,
                       std::vector<UniqueFd> sockets, const Interrupt& interrupt)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      sockets_(std::move(sockets)),
      interrupt_(interrupt) {}

LocalGroup::~LocalGroup() {
  uint32_t nobody = 0;
  header().given_up.compare_exchange_strong(nobody, static_cast<uint32_t>(index()) + 1);
  (void)Futex(line(index()).phase, FUTEX_WAKE, INT32_MAX, nullptr);
}

absl::StatusOr<LocalMeetingPlace> MakeLocalMeetingPlace() {
  LocalMeetingPlace place{.secret = RandomName(kSecretLength)};
  MUSTER_ASSIGN_OR_RETURN(place.listening, ListenLocal(SocketName(place.secret)));
  return place;
}

absl::StatusOr<std::unique_ptr<LocalGroup>> LocalGroup::Lead(LocalGroupOptions options,
                                                             LocalMeetingPlace place, TimePoint deadline,
                                                             const Interrupt& interrupt) {
  const size_t others = options.names.size() - 1;
  MUSTER_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(MemoryBytes(static_cast<int>(others) + 1)));
  std::vector<UniqueFd> sockets(others + 1);
  bool has_refused = false;
  for (size_t come = 0; come < others;) {
    MUSTER_RETURN_IF_ERROR(AwaitSocket(place.listening.get(), deadline, interrupt));
    UniqueFd fd(::accept4(place.listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      const int error = errno;
      return ErrnoError(error, "taking connections of this host's ranks");
    }
    if (!IsOfSameUser(fd)) {
      if (!std::exchange(has_refused, true)) {
        spdlog::warn("a process of another user is hung up on that asks for the memory of this host's ranks");
      }
      continue;
    }
    MUSTER_RETURN_IF_ERROR(AwaitSocket(fd.get(), deadline, interrupt));
    uint32_t who = 0;
    const LocalMessage message = ReceiveLocal(fd, BytesOf(who));
    if (message.size != sizeof who || who == 0 || who > others || sockets[who].valid()) continue;
    if (const int error = SendLocal(fd, BytesOf(who), memory->fd()); error != 0) {
      return ErrnoError(error, "giving shared memory to " + options.names[who]);
    }
    sockets[who] = std::move(fd);
    ++come;
  }
  memory->CloseFd();
  return std::unique_ptr<LocalGroup>(
      new LocalGroup(std::move(options), std::move(memory), std::move(sockets), interrupt));
}

absl::StatusOr<std::unique_ptr<LocalGroup>> LocalGroup::Follow(LocalGroupOptions options,
                                                               const std::string& secret, TimePoint deadline,
                                                               const Interrupt& interrupt) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd socket, ConnectLocal(SocketName(secret)));
  auto who = static_cast<uint32_t>(options.index);
  if (const int error = SendLocal(socket, BytesOf(who)); error != 0) {
    return ErrnoError(error, "asking " + options.names[0] + " for memory");
  }
  MUSTER_RETURN_IF_ERROR(AwaitSocket(socket.get(), deadline, interrupt));
  LocalMessage message = ReceiveLocal(socket, BytesOf(who));
  if (message.size <= 0 || message.fds.size() != 1)
    return Unavailable("no memory came from %s", options.names[0]);
  const size_t bytes = MemoryBytes(static_cast<int>(options.names.size()));
  MUSTER_ASSIGN_OR_RETURN(auto memory, SharedMemory::Map(std::move(message.fds[0]), bytes, bytes));
  std::vector<UniqueFd> sockets(1);
  sockets[0] = std::move(socket);
  return std::unique_ptr<LocalGroup>(
      new LocalGroup(std::move(options), std::move(memory), std::move(sockets), interrupt));
}

std::atomic<uint32_t>* LocalGroup::progress() { return &line(index()).progress; }

uint32_t LocalGroup::Post() {
  Line& own = line(index());
  own.phase.store(++phase_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0)
    (void)Futex(own.phase, FUTEX_WAKE, INT32_MAX, nullptr);
  return phase_;
}

absl::Status LocalGroup::AwaitAll(uint32_t phase) {
  int waiting_for = 0;
  const auto all_there = [&] {
    while (waiting_for < size() && IsThere(waiting_for, phase)) ++waiting_for;
    return waiting_for == size();
  };
  struct {
    int index = -1;  // of the rank that is waited for
    uint32_t progress = 0;
    TimePoint deadline;
  } patience;
  while (!spin_.Await(all_there)) {
    const TimePoint start = Now();
    const uint32_t progress = line(waiting_for).progress.load(std::memory_order_relaxed);
    if (patience.index != waiting_for || patience.progress != progress) {
      patience = {waiting_for, progress, start + options_.timeout};
    }
    MUSTER_RETURN_IF_ERROR(Sleep(waiting_for, phase, patience.deadline));
    spin_.Slept(Now() - start);
  }
  return absl::OkStatus();
}

bool LocalGroup::IsThere(int index, uint32_t phase) const {
  return !IsBefore(line(index).phase.load(std::memory_order_acquire), phase);
}

// Until rank `index` may be there, or it is time to look at what else could have happened.
absl::Status LocalGroup::Sleep(int index, uint32_t phase, TimePoint deadline) {
  Line& awaited = line(index);
  awaited.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = awaited.phase.load(std::memory_order_seq_cst);
  if (IsBefore(seen, phase)) {
    const timespec timeout{.tv_sec = 0, .tv_nsec = kLookAtOthers.count()};
    (void)Futex(awaited.phase, FUTEX_WAIT, seen, &timeout);
  }
  awaited.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (IsThere(index, phase)) return absl::OkStatus();
  if (interrupt_.is_set()) return Cancelled("the group was given up");
  // Whoever ends does so behind its last phase.
  if (const absl::Status status = CheckOthers(); !status.ok() && !IsThere(index, phase)) return status;
  if (Now() < deadline) return absl::OkStatus();
  return DeadlineExceeded("%s has not done its part for %s", options_.names[index],
                          FormatAge(options_.timeout));
}

absl::Status LocalGroup::CheckOthers() {
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (!sockets_[i].valid()) continue;
    pollfd fd{.fd = sockets_[i].get(), .events = 0, .revents = 0};
    if (::poll(&fd, 1, 0) <= 0) continue;
    uint32_t nobody = 0;  // the others hear it, too
    header().given_up.compare_exchange_strong(nobody, static_cast<uint32_t>(i) + 1);
  }
  const uint32_t who = header().given_up.load();
  return who == 0
             ? absl::OkStatus()
             : Unavailable("%s has gone, or given up", options_.names[(who - 1) % options_.names.size()]);
}

absl::Status LocalGroup::AllReduce(std::span<const float> input, std::span<float> output) {
  return input.size_bytes() <= kSmallBytes ? SumSmall(input, output) : SumLarge(input, output);
}

absl::Status LocalGroup::SumSmall(std::span<const float> input, std::span<float> output) {
  static_assert(kSmallBytes <= kSlotBytes);
  std::copy(input.begin(), input.end(), reinterpret_cast<float*>(Slot(index())));
  traffic_.sent_bytes += input.size_bytes();
  traffic_.received_bytes += input.size_bytes() * (options_.names.size() - 1);
  MUSTER_RETURN_IF_ERROR(AwaitAll(Post()));
  const auto slot = [&](int i) {
    return std::span<const float>(reinterpret_cast<const float*>(Slot(i)), input.size());
  };
  Sum(slot(0), slot(1), output);
  for (int i = 2; i < size(); ++i) Sum(output, slot(i), output);
  turn_ ^= 1;
  return absl::OkStatus();
}

// A slot, and a sum, is written again two turns later. By then everybody has posted a phase behind reading
// it, and that one has been waited for.
absl::Status LocalGroup::SumLarge(std::span<const float> input, std::span<float> output) {
  static constexpr size_t kChunk = kSlotBytes / sizeof(float);
  const auto chunk = [](auto range, size_t begin) {
    return range.subspan(begin, std::min(kChunk, range.size() - begin));
  };
  WriteForOthers(chunk(input, 0), turn_);
  uint32_t written = Post();
  for (size_t begin = 0; begin < input.size(); begin += kChunk) {
    MUSTER_RETURN_IF_ERROR(AwaitAll(written));
    SumOwnPart(chunk(input, begin), chunk(output, begin));
    const uint32_t summed = Post();
    if (begin + kChunk < input.size()) {  // while the others sum
      WriteForOthers(chunk(input, begin + kChunk), turn_ ^ 1);
      written = Post();
    }
    MUSTER_RETURN_IF_ERROR(AwaitAll(summed));
    ReadFromOthers(chunk(output, begin));
    turn_ ^= 1;
  }
  return absl::OkStatus();
}

void LocalGroup::WriteForOthers(std::span<const float> chunk, int turn) {
  float* const slot = reinterpret_cast<float*>(Slot(index(), turn));
  const LayoutRange own = PartOf(chunk.size(), index(), size());
  std::copy_n(chunk.begin(), own.begin, slot);
  std::copy(chunk.begin() + own.end, chunk.end(), slot + own.end);
  traffic_.sent_bytes += chunk.size_bytes();  // the others' parts, and later the sum of its own
  traffic_.received_bytes += (own.size() * (size() - 2) + static_cast<int64_t>(chunk.size())) * sizeof(float);
}

void LocalGroup::SumOwnPart(std::span<const float> input, std::span<float> output) {
  const LayoutRange own = PartOf(input.size(), index(), size());
  const auto part = [&](int i) -> std::span<const float> {
    if (i == index()) return input.subspan(own.begin, own.size());
    return {reinterpret_cast<const float*>(Slot(i)) + own.begin, static_cast<size_t>(own.size())};
  };
  const std::span<float> sum = SumOf(index(), own.size());
  Sum(part(0), part(1), sum);
  for (int i = 2; i < size(); ++i) Sum(sum, part(i), sum);
  std::copy(sum.begin(), sum.end(), output.begin() + own.begin);
}

void LocalGroup::ReadFromOthers(std::span<float> chunk) {
  for (int i = 0; i < size(); ++i) {
    if (i == index()) continue;
    const LayoutRange part = PartOf(chunk.size(), i, size());
    const std::span<const float> sum = SumOf(i, part.size());
    std::copy(sum.begin(), sum.end(), chunk.begin() + part.begin);
  }
}

absl::Status LocalGroup::InPieces(size_t bytes, const std::function<void(size_t, size_t, std::byte*)>& write,
                                  const std::function<void(size_t, size_t)>& read) {
  for (size_t begin = 0; begin < bytes; begin += kSlotBytes) {
    const size_t size = std::min(kSlotBytes, bytes - begin);
    write(begin, size, Slot(index()));
    MUSTER_RETURN_IF_ERROR(AwaitAll(Post()));
    read(begin, size);
    turn_ ^= 1;
  }
  return absl::OkStatus();
}

absl::Status LocalGroup::Broadcast(std::span<std::byte> data, int root) {
  return InPieces(
      data.size(),
      [&](size_t begin, size_t size, std::byte* slot) {
        if (index() != root) return;
        std::memcpy(slot, data.data() + begin, size);
        traffic_.sent_bytes += size;
      },
      [&](size_t begin, size_t size) {
        if (index() == root) return;
        std::memcpy(data.data() + begin, Slot(root), size);
        traffic_.received_bytes += size;
      });
}

absl::Status LocalGroup::AllGather(std::span<const std::byte> input, std::span<std::byte> output) {
  MUSTER_CHECK(output.size() == input.size() * options_.names.size());
  return InPieces(
      input.size(),
      [&](size_t begin, size_t size, std::byte* slot) {
        std::memcpy(slot, input.data() + begin, size);
        traffic_.sent_bytes += size;
      },
      [&](size_t begin, size_t size) {
        for (int i = 0; i < this->size(); ++i) {
          std::memcpy(output.data() + i * input.size() + begin, Slot(i), size);
        }
        traffic_.received_bytes += size * (options_.names.size() - 1);
      });
}

}  // namespace muster
