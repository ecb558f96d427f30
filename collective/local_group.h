// LocalGroup: collective operations between the ranks of one host, through memory that they share.
//
// Each rank has two slots there, used in turn, with room for a sum beside each, and a counter of the phases
// that it is through with. Small
// ranges: everybody writes its own into its slot, waits for the others, and adds all up, in order of rank.
// Large ones, a slot at a time: everybody writes what others add up, adds up its own part of what the others
// wrote, and takes the other parts of the sum from those who made them. So each rank reads and writes the
// range about twice, whatever their number, in cache.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "collective/collective.h"
#include "collective/interrupt.h"
#include "collective/spin.h"

namespace muster {

/// Where the first rank of a host waits for the others, under a name that they have to be told.
struct LocalMeetingPlace {
  std::string secret;
  UniqueFd listening;
};
absl::StatusOr<LocalMeetingPlace> MakeLocalMeetingPlace();

struct LocalGroupOptions {
  int index = 0;                                // of this rank in the group
  std::vector<std::string> names;               // of all, for messages
  Duration timeout = std::chrono::seconds(60);  // for a rank that does not get on
};

/// One thread at a time. Unavailable: a rank that the text names has gone, or given up; DeadlineExceeded: it
/// names who was waited for.
class LocalGroup {
 public:
  /// The first rank waits at its place for the others of this host and user, who have been told its secret:
  /// it makes the memory, and gives it to them. `interrupt` lives longer. Fails where memory cannot be
  /// shared, and when `deadline` has passed; the place is closed then, so that the others fail, too.
  static absl::StatusOr<std::unique_ptr<LocalGroup>> Lead(LocalGroupOptions options, LocalMeetingPlace place,
                                                          TimePoint deadline, const Interrupt& interrupt);
  static absl::StatusOr<std::unique_ptr<LocalGroup>> Follow(LocalGroupOptions options,
                                                            const std::string& secret, TimePoint deadline,
                                                            const Interrupt& interrupt);

  /// The others' operations fail.
  ~LocalGroup();

  absl::Status AllReduce(std::span<const float> input, std::span<float> output);
  /// `root`: an index.
  absl::Status Broadcast(std::span<std::byte> data, int root);
  absl::Status AllGather(std::span<const std::byte> input, std::span<std::byte> output);

  /// Of this rank, for the others: while it grows they go on waiting for it. Valid as long as this.
  std::atomic<uint32_t>* progress();

  int index() const { return options_.index; }
  int size() const { return static_cast<int>(options_.names.size()); }
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Header;
  struct Line;

  LocalGroup(LocalGroupOptions options, std::unique_ptr<SharedMemory> memory, std::vector<UniqueFd> sockets,
             const Interrupt& interrupt);

  Header& header() const;
  Line& line(int index) const;
  std::byte* Slot(int index, int turn) const;
  std::byte* Slot(int index) const { return Slot(index, turn_); }
  std::span<float> SumOf(int index, int64_t size) const;
  uint32_t Post();
  absl::Status AwaitAll(uint32_t phase);
  absl::Status Sleep(int index, uint32_t phase, TimePoint deadline);
  bool IsThere(int index, uint32_t phase) const;
  absl::Status CheckOthers();
  absl::Status SumSmall(std::span<const float> input, std::span<float> output);
  absl::Status SumLarge(std::span<const float> input, std::span<float> output);
  void WriteForOthers(std::span<const float> chunk, int turn);
  void SumOwnPart(std::span<const float> input, std::span<float> output);
  void ReadFromOthers(std::span<float> chunk);
  /// In pieces: `write` fills this rank's slot, `read` sees everybody's.
  absl::Status InPieces(size_t bytes, const std::function<void(size_t begin, size_t size, std::byte*)>& write,
                        const std::function<void(size_t begin, size_t size)>& read);

  const LocalGroupOptions options_;
  const std::unique_ptr<SharedMemory> memory_;
  // By index, to the first, or from there to all others: they tell when a process is gone.
  const std::vector<UniqueFd> sockets_;
  const Interrupt& interrupt_;
  Spin spin_;
  uint32_t phase_ = 0;  // of this rank
  int turn_ = 0;        // which of the two slots
  Traffic traffic_;
};

}  // namespace muster
