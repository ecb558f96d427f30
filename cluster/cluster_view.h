// ClusterView: where the tasks of a job are now, as one of them knows it. Hosts change their addresses while
// tasks run. Who the tasks are stays, but that of some jobs the last workers come and go.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "cluster/cluster_file.h"
#include "cluster/cluster_spec.h"

namespace muster {

/// What a task ends with that the cluster is without.
inline constexpr char kHasLeft[] = "this task has no part in the job any more";

/// Any thread.
class ClusterView {
 public:
  using Callback = std::function<void()>;

  /// As long as it lives, the callback is called; once the destructor has returned, it does not run any more.
  /// So whatever the destructor's thread holds, no callback may wait for.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept : view_(std::exchange(other.view_, nullptr)), place_(other.place_) {}
    Watch& operator=(Watch&&) = delete;
    ~Watch() {
      if (view_ != nullptr) view_->Forget(place_);
    }

   private:
    friend class ClusterView;
    using Place = std::list<Callback>::iterator;
    Watch(const ClusterView* view, Place place) : view_(view), place_(place) {}
    const ClusterView* view_ = nullptr;
    Place place_;
  };

  enum class Workers { kStay, kMayComeAndGo };

  /// `own`: the task that looks. What `cluster` says holds until the first Update, of any generation.
  ClusterView(ClusterSpec cluster, TaskId own, Workers workers = Workers::kStay)
      : own_(own), workers_(workers), cluster_(std::move(cluster)) {}

  TaskId own() const { return own_; }
  bool workers_may_come_and_go() const { return workers_ == Workers::kMayComeAndGo; }
  ClusterSpec cluster() const;
  /// The workers and the chief, as of which generation (0: before the first Update).
  struct Ranks {
    uint64_t generation = 0;
    int count = 0;
  };
  Ranks ranks() const;
  /// Empty: the task is not in the cluster, yet or any more.
  std::string Address(TaskId task) const;

  /// Grows with each change of an address, or of the number of workers; 0 at first.
  uint64_t version() const { return version_; }

  /// True: some address is another one now, and all callbacks have returned. False: none is, or the
  /// generation is not above that of the last Update. FailedPrecondition: it has another number of tasks that
  /// stay.
  absl::StatusOr<bool> Update(const ClusterFile& file);

  /// Calls `on_change` after each change, on the thread of Update, which may neither watch nor update.
  [[nodiscard]] Watch OnChange(Callback on_change) const;

 private:
  void Forget(Watch::Place place) const;

  const TaskId own_;
  const Workers workers_;
  std::atomic<uint64_t> version_ = 0;
  mutable std::mutex mutex_;  // guards the following
  ClusterSpec cluster_;
  std::optional<uint64_t> generation_;
  mutable std::mutex callbacks_mutex_;  // held while they run; before the other one
  mutable std::list<Callback> callbacks_;
};

/// The address of a task, and of the task that asks, at a moment: a connection between them lasts no longer
/// than both.
class Whereabouts {
 public:
  Whereabouts(const ClusterView& view, TaskId other)
      : other_(other), own_address_(view.Address(view.own())), address_(view.Address(other)) {}
  const std::string& address() const { return address_; }
  bool HaveChanged(const ClusterView& view) const {
    return view.Address(other_) != address_ || view.Address(view.own()) != own_address_;
  }

 private:
  TaskId other_;
  std::string own_address_;
  std::string address_;
};

}  // namespace muster
