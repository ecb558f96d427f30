// EarlyUpdate: which part of a synchronous step can be made while its gradients are still on their way.
//
// A step needs all of its gradients, but the first parameters only the first part of each. So a shard makes
// them as soon as all have brought that part, and sends them back while the rest still comes: links carry
// both directions at the same time. Nothing of that counts before the whole step is made, of the very
// gradients that the parts were of. If it is made of others, because a worker was lost in between, what was
// made early is dropped, and the answers bring everything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/parameter_layout.h"
#include "ps/wire.h"

namespace muster {

/// One thread at a time.
class EarlyUpdate {
 public:
  /// Who waits for the answer to a push.
  struct Recipient {
    uint64_t stream = 0;
    uint64_t request = 0;
    friend auto operator<=>(const Recipient&, const Recipient&) = default;
  };

  /// A push of which not everything may have come.
  struct Push {
    uint64_t arrival = 0;  // its number; never used twice
    int rank = 0;
    uint64_t samples = 0;
    std::optional<Recipient> recipient;  // who takes its answer in parts
  };

  /// The floats that can be made, and the gradients of those ([range.size()]) in order of rank.
  struct Part {
    LayoutRange range;
    std::vector<FloatPayload> gradients;
    uint64_t samples = 0;  // of the step
  };

  /// `size`: floats of the shard.
  explicit EarlyUpdate(int64_t size) : size_(size) {}

  /// Forgets all, and waits for gradients of `step` of these ranks, ascending.
  void Begin(uint64_t step, std::vector<int> ranks);
  std::optional<uint64_t> step() const { return step_; }  // of the last Begin

  /// The next floats of a push of this step, from `begin` on. Of another push of the same rank than before,
  /// or not the next ones: nothing more is made early.
  void Add(const Push& push, int64_t begin, const FloatPayload& values);

  /// What can be made now; from then on it is taken as made. Nothing as long as nobody takes parts.
  std::optional<Part> Next();

  /// Floats that are made.
  int64_t made() const { return made_; }

  /// Whether what is made is of these pushes, in order of rank.
  bool IsOf(std::span<const uint64_t> arrivals) const;

  /// What is made counts no more, and until the next Begin no more is made.
  void GiveUp();

  /// The step is made as a whole; gradients are not needed any more.
  void End();

  /// Who takes parts, and how many floats this one has been sent: all that are made.
  std::vector<Recipient> recipients() const;
  int64_t SentTo(const Recipient& recipient) const;

 private:
  struct Arriving {
    Push push;
    int64_t floats = 0;                                    // that have come
    std::vector<std::pair<int64_t, FloatPayload>> pieces;  // and where they begin, ascending; from made_ on
  };

  FloatPayload Take(Arriving& arriving, LayoutRange range) const;

  const int64_t size_;
  std::optional<uint64_t> step_;
  bool is_given_up_ = true;
  std::vector<int> ranks_;
  std::map<int, Arriving> arriving_;  // by rank
  int64_t made_ = 0;
};

}  // namespace muster
