#include "launcher/cluster_texts.h"

#include <absl/strings/str_split.h>

#include <utility>

#include "cluster/cluster_file.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

// The texts of all tasks but for what names the task are the same: made for this one.
constexpr TaskId kAnyTask{Role::kWorker, 0};

void FillGaps(std::vector<std::string>* workers) {
  for (size_t i = 0; i < workers->size(); ++i) {
    std::string& address = (*workers)[i];
    if (address.empty()) address = AddressOfAbsent({Role::kWorker, static_cast<int>(i)});
  }
}

}  // namespace

absl::StatusOr<TaskId> ParseTaskId(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  MUSTER_CHECK(parts.size() == 2, text);
  MUSTER_ASSIGN_OR_RETURN(const Role role, ParseRole(parts[0]));
  return TaskId{role, std::stoi(parts[1])};
}

absl::Status ClusterTexts::MakeCluster(const reconcile::Cluster& members) {
  cluster_ = {};
  local_ranks_.clear();
  std::map<std::string, int> tasks_on_host;
  for (const reconcile::Member& member : members) {
    MUSTER_ASSIGN_OR_RETURN(const TaskId id, ParseTaskId(member.task));
    auto& addresses = id.role == Role::kPs      ? cluster_.ps
                      : id.role == Role::kChief ? cluster_.chief
                                                : cluster_.workers;
    if (static_cast<int>(addresses.size()) <= id.index) addresses.resize(id.index + 1);
    addresses[id.index] = reconcile::Address(member);
    if (id.role != Role::kPs) local_ranks_[member.task] = tasks_on_host[member.host]++;
  }
  FillGaps(&cluster_.workers);
  cluster_.ps.insert(cluster_.ps.end(), servers_.begin(), servers_.end());
  return absl::OkStatus();
}

absl::Status ClusterTexts::Follow(const record::JobRecord& record, const reconcile::StartTask& start) {
  std::vector<std::string> servers;
  for (const auto& member : record.servers().members()) servers.push_back(AddressOfMember(member));
  if (members_ == start.cluster && generation_ == start.generation && servers_ == servers) {
    return absl::OkStatus();
  }
  members_ = nullptr;
  servers_ = std::move(servers);
  generation_ = start.generation;
  MUSTER_RETURN_IF_ERROR(MakeCluster(*start.cluster));
  const size_t naming_flags = ToFlags({}, kAnyTask).size();
  flags_ = ToFlags(cluster_, kAnyTask);
  flags_.erase(flags_.begin(), flags_.begin() + static_cast<std::ptrdiff_t>(naming_flags));
  tf_config_ = ToTfConfig(cluster_, kAnyTask);
  tf_config_.resize(tf_config_.size() - (ToTfConfig({}, kAnyTask).size() - 1));
  file_ = FormatClusterFile({.generation = generation_, .cluster = cluster_});
  members_ = start.cluster;
  return absl::OkStatus();
}

int ClusterTexts::LocalRankOf(const std::string& task) const {
  const auto rank = local_ranks_.find(task);
  return rank == local_ranks_.end() ? 0 : rank->second;
}

std::vector<std::string> ClusterTexts::FlagsOf(TaskId task) const {
  std::vector<std::string> flags = ToFlags({}, task);
  flags.insert(flags.end(), flags_.begin(), flags_.end());
  return flags;
}

std::string ClusterTexts::TfConfigOf(TaskId task) const {
  return tf_config_ + ToTfConfig({}, task).substr(1);  // without its brace
}

}  // namespace muster
