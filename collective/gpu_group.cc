#include "collective/gpu_group.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/boot_id.h"
#include "base/logging.h"
#include "collective/queued_collective.h"

namespace muster {
namespace {

constexpr size_t kTextBytes = 240;

// As they travel; all ranks are of one build.
struct WireCard {
  uint8_t choice = 0, has_gpu = 0, may_be_read = 0;
  std::array<char, 64> host{}, gpu{};
  std::array<char, kTextBytes> why_none{};
};
struct WireId {
  uint8_t is_there = 0;
  GpuGroupId id{};
};
struct WireOutcome {
  uint8_t has_met = 0, has_waited = 0;  // the latter: for others, until its deadline
  std::array<char, kTextBytes> why_not{};
};

// The rest of a text that is too long is left out.
template <size_t kSize>
void Write(const std::string& text, std::array<char, kSize>& out) {
  text.copy(out.data(), kSize);
}

template <size_t kSize>
std::string Read(const std::array<char, kSize>& text) {
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

template <typename T>
absl::StatusOr<std::vector<T>> Gather(Collective& group, const T& own) {
  std::vector<T> all(group.size());
  MUSTER_RETURN_IF_ERROR(
      group.Run(AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)))));
  return all;
}

absl::StatusOr<std::vector<GpuCard>> ExchangeCards(Collective& group, const GpuPreference& preference) {
  WireCard own{.choice = static_cast<uint8_t>(preference.choice),
               .has_gpu = preference.gpus != nullptr,
               .may_be_read = preference.may_be_read};
  // Who does not know its host is on one of its own.
  Write(BootId().empty() ? absl::StrFormat("rank %d", group.rank()) : BootId(), own.host);
  if (preference.gpus != nullptr) Write(preference.gpus->gpu(), own.gpu);
  Write(preference.why_none, own.why_none);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<WireCard> all, Gather(group, own));
  std::vector<GpuCard> cards;
  for (const WireCard& card : all) {
    cards.push_back({.choice = static_cast<CollectiveChoice>(card.choice),
                     .has_gpu = card.has_gpu != 0,
                     .may_be_read = card.may_be_read != 0,
                     .host = Read(card.host),
                     .gpu = Read(card.gpu),
                     .why_none = Read(card.why_none)});
  }
  return cards;
}

// Sums by GPUs, of ranks that met in another way. That group stays, so that nobody who is still busy with its
// last operation finds another one gone.
class GpuGroup final : public CollectiveBackend {
 public:
  GpuGroup(std::unique_ptr<Collective> met, std::unique_ptr<CollectiveBackend> gpus)
      : met_(std::move(met)), gpus_(std::move(gpus)) {}

  int rank() const override { return met_->rank(); }
  int size() const override { return met_->size(); }
  Traffic traffic() const override {
    const Traffic meeting = met_->traffic(), sums = gpus_->traffic();
    return {.sent_bytes = meeting.sent_bytes + sums.sent_bytes,
            .received_bytes = meeting.received_bytes + sums.received_bytes};
  }
  absl::Status Perform(const Operation& operation) override { return gpus_->Perform(operation); }
  void Stop() override { gpus_->Stop(); }

 private:
  const std::unique_ptr<Collective> met_;
  const std::unique_ptr<CollectiveBackend> gpus_;
};

// Null, with the reason: it did not work on at least one rank.
absl::StatusOr<std::unique_ptr<CollectiveBackend>> MeetByGpus(Collective& met, GpuCollectives& gpus,
                                                              const GpuGroupOptions& options,
                                                              const Interrupt& interrupt,
                                                              std::string* why_not) {
  WireId id;
  absl::Status status = absl::OkStatus();
  if (met.rank() == 0) {
    const absl::StatusOr<GpuGroupId> made = gpus.MakeGroupId();
    status = made.status();
    if (made.ok()) id = {.is_there = 1, .id = *made};
  }
  MUSTER_RETURN_IF_ERROR(met.Run(Broadcast(std::as_writable_bytes(std::span(&id, 1)), 0)));
  std::unique_ptr<CollectiveBackend> backend;
  if (id.is_there != 0) {
    absl::StatusOr<std::unique_ptr<CollectiveBackend>> made = gpus.Meet(options, id.id, interrupt);
    if (absl::IsCancelled(made.status())) return made.status();
    status = made.status();
    if (made.ok()) backend = *std::move(made);
  }
  WireOutcome own{.has_met = backend != nullptr, .has_waited = absl::IsDeadlineExceeded(status)};
  Write(std::string(status.message()), own.why_not);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<WireOutcome> outcomes, Gather(met, own));
  // The cause is with who has not only waited for others; of several, rank 0 comes first, without whose id
  // the others could do nothing.
  for (const bool has_waited : {false, true}) {
    for (size_t i = 0; i < outcomes.size() && why_not->empty(); ++i) {
      if (outcomes[i].has_met != 0 || (outcomes[i].has_waited != 0) != has_waited) continue;
      *why_not = absl::StrFormat("%s: %s", options.names[i], Read(outcomes[i].why_not));
    }
  }
  if (!why_not->empty()) backend = nullptr;
  return backend;
}

}  // namespace

std::string WhyNotNccl(std::span<const GpuCard> cards, std::span<const std::string> names) {
  std::set<std::string> hosts;
  for (size_t i = 0; i < cards.size(); ++i) {
    const GpuCard& card = cards[i];
    if (card.choice == CollectiveChoice::kNative) return names[i] + " was started with --collective=native";
    if (!card.has_gpu) {
      return absl::StrFormat("%s has no GPU for it: %s", names[i],
                             card.why_none.empty() ? "its work is done" : card.why_none);
    }
    hosts.insert(card.host);
    for (size_t other = 0; other < i; ++other) {
      if (cards[other].host != card.host || cards[other].gpu != card.gpu) continue;
      return absl::StrFormat(
          "%s and %s are on one GPU (%s), of which NCCL takes one rank: give each its own with "
          "--device=cuda:N or CUDA_VISIBLE_DEVICES",
          names[other], names[i], card.gpu);
    }
  }
  const bool may_be_read =
      std::all_of(cards.begin(), cards.end(), [](const GpuCard& card) { return card.may_be_read; });
  if (hosts.size() > 1 && !may_be_read) {
    return "NCCL has no encryption, and the ranks are on several hosts: --trusted_network (`trusted_network: "
           "true` in the job file) allows it where nobody else can listen";
  }
  return "";
}

absl::StatusOr<ChosenGroup> PreferGpus(std::unique_ptr<Collective> met, GpuPreference& preference,
                                       const GpuGroupOptions& options, const Interrupt& interrupt) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<GpuCard> cards, ExchangeCards(*met, preference));
  const auto any = [&](const auto& is_so) { return std::any_of(cards.begin(), cards.end(), is_so); };
  // Who is here only to hear that all is done should not end the others' work.
  const bool is_insisted_on =
      any([](const GpuCard& card) { return card.choice == CollectiveChoice::kNccl; }) &&
      !any([](const GpuCard& card) { return !card.has_gpu && card.why_none.empty(); });
  if (cards.size() == 1 && !is_insisted_on) return ChosenGroup{.group = std::move(met)};
  std::string why_not = WhyNotNccl(cards, options.names);
  if (why_not.empty()) {
    MUSTER_ASSIGN_OR_RETURN(auto backend, MeetByGpus(*met, *preference.gpus, options, interrupt, &why_not));
    if (backend != nullptr) {
      if (met->rank() == 0)
        spdlog::info("gradients are summed by NCCL, {} ranks with a GPU each", met->size());
      return ChosenGroup{.group = MakeQueued(std::make_unique<GpuGroup>(std::move(met), std::move(backend))),
                         .is_by_gpus = true};
    }
    preference.GiveUp(why_not);  // to try again would cost each group the time
  }
  if (is_insisted_on) return FailedPrecondition("--collective=nccl is not possible: %s", why_not);
  if (met->rank() == 0 && any([](const GpuCard& card) { return card.has_gpu; })) {
    spdlog::info("gradients are summed without NCCL: {}", why_not);
  }
  return ChosenGroup{.group = std::move(met)};
}

}  // namespace muster
