#include "trainer/cluster_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>

#include "base/connections.h"
#include "base/file.h"
#include "base/logging.h"

namespace muster {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);

}  // namespace

ClusterWatch::ClusterWatch(std::string path, ClusterView* view) : path_(std::move(path)), view_(view) {
  Look();
  before_ = view_->cluster();
  // The first to be called: who then connects anew does so after it.
  watch_.emplace(view_->OnChange([this] { EndOldConnections(); }));
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void ClusterWatch::Run(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, stop, kLookEvery, [&] { return stop.stop_requested(); })) Look();
}

void ClusterWatch::Look() {
  struct stat now {};
  if (::stat(path_.c_str(), &now) != 0) {
    const int error = errno;
    if (error != ENOENT) Complain(ErrnoError(error, "looking at it"));
    return;
  }
  const Identity identity{.device = now.st_dev,
                          .inode = now.st_ino,
                          .size = now.st_size,
                          .changed_ns = int64_t{now.st_ctim.tv_sec} * 1'000'000'000 + now.st_ctim.tv_nsec};
  if (identity == known_) return;
  const absl::StatusOr<std::string> text = ReadFile(path_);
  if (!text.ok()) return Complain(text.status());  // and look again
  known_ = identity;
  const absl::StatusOr<ClusterFile> file = ParseClusterFile(*text);
  if (!file.ok()) return Complain(file.status());
  const absl::StatusOr<bool> updated = view_->Update(*file);
  if (!updated.ok()) return Complain(updated.status());
  complaint_.clear();
  if (*updated) {
    spdlog::info("{}: generation {} of the cluster has other addresses", path_, file->generation);
  }
}

// To all who wait for them they look alive, and those inside of gRPC, with what they are to send, nobody else
// can end.
void ClusterWatch::EndOldConnections() {
  const ClusterSpec now = view_->cluster();
  std::set<std::string> left;
  for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
    // Who is in one of both only has not moved.
    const size_t stay = std::min(before_.addresses(role).size(), now.addresses(role).size());
    for (size_t i = 0; i < stay; ++i) {
      const std::string host = HostOfAddress(before_.addresses(role)[i]);
      if (host != HostOfAddress(now.addresses(role)[i])) left.insert(host);
    }
  }
  before_ = now;
  (void)ShutDownConnections(left);
}

void ClusterWatch::Complain(const absl::Status& status) {
  std::string complaint(status.message());
  if (complaint == complaint_) return;
  complaint_ = std::move(complaint);
  spdlog::warn("{} is ignored: {}", path_, complaint_);
}

}  // namespace muster
