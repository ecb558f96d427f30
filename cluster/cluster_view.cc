#include "cluster/cluster_view.h"

namespace muster {

ClusterSpec ClusterView::cluster() const {
  const std::lock_guard lock(mutex_);
  return cluster_;
}

ClusterView::Ranks ClusterView::ranks() const {
  const std::lock_guard lock(mutex_);
  return {.generation = generation_.value_or(0), .count = cluster_.rank_count()};
}

std::string ClusterView::Address(TaskId task) const {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string>& addresses = cluster_.addresses(task.role);
  return task.index < static_cast<int>(addresses.size()) ? addresses[task.index] : "";
}

absl::StatusOr<bool> ClusterView::Update(const ClusterFile& file) {
  const std::lock_guard callbacks(callbacks_mutex_);
  {
    const std::lock_guard lock(mutex_);
    for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
      const size_t ours = cluster_.addresses(role).size(), theirs = file.cluster.addresses(role).size();
      if (ours == theirs || (role == Role::kWorker && workers_ == Workers::kMayComeAndGo)) continue;
      return FailedPrecondition("it has %d %s tasks, this job %d", theirs, RoleName(role), ours);
    }
    if (generation_ && file.generation <= *generation_) return false;
    generation_ = file.generation;
    if (cluster_ == file.cluster) return false;
    cluster_ = file.cluster;
    ++version_;
  }
  for (const Callback& callback : callbacks_) callback();
  return true;
}

ClusterView::Watch ClusterView::OnChange(Callback on_change) const {
  const std::lock_guard lock(callbacks_mutex_);
  return Watch(this, callbacks_.insert(callbacks_.end(), std::move(on_change)));
}

void ClusterView::Forget(Watch::Place place) const {
  const std::lock_guard lock(callbacks_mutex_);
  callbacks_.erase(place);
}

}  // namespace muster
