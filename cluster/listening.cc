#include "cluster/listening.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/logging.h"

namespace muster {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);
constexpr Duration kAcceptAgain = std::chrono::milliseconds(10);
constexpr Duration kLong = std::chrono::hours(1);

absl::StatusOr<UniqueFd> ListenAt(const addrinfo& where, const std::string& address) {
  UniqueFd fd(::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return AlreadyExists("cannot listen on %s: another process has the port", address);
    }
    // Not AlreadyExists, which is what Abseil makes of EADDRNOTAVAIL.
    return Unavailable("cannot listen on %s: %s", address, std::strerror(error));
  }
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  const std::string host = HostOfAddress(address), port = address.substr(address.rfind(':') + 1);
  const addrinfo hints{.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); error != 0) {
    return Unavailable("cannot listen on %s: %s", address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(list, ::freeaddrinfo);
  absl::StatusOr<UniqueFd> fd = ListenAt(*list, address);
  // The machine may have only some of a name's addresses. Where the port is taken at one of them, whoever
  // dials the name would come there.
  for (const addrinfo* next = list->ai_next;
       next != nullptr && !fd.ok() && !absl::IsAlreadyExists(fd.status()); next = next->ai_next) {
    fd = ListenAt(*next, address);
  }
  return fd;
}

UniqueFd AcceptNext(int listening) {
  UniqueFd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid() && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    std::this_thread::sleep_for(kAcceptAgain);
  }
  return fd;
}

std::string ListeningAddress(const std::string& address, const std::string& bind_host) {
  return address.empty() || bind_host.empty() ? address : bind_host + address.substr(address.rfind(':'));
}

void AwaitOwnAddress(const ClusterView& view, const std::string& bind_host, Duration timeout) {
  const TimePoint deadline = Now() + timeout;
  std::string said;
  while (bind_host.empty() && Now() < deadline) {
    const std::string address = view.Address(view.own());
    if (address.empty()) return;  // the cluster is without the task
    const absl::Status status = ListenTcp(address.substr(0, address.rfind(':')) + ":0").status();
    if (status.ok()) return;
    if (std::exchange(said, address) != address) {
      spdlog::warn("{}; waiting for the address, or for another one", std::string(status.message()));
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

ListenerFollower::ListenerFollower(const ClusterView* view, std::string bind_host, const std::string& address,
                                   Listen listen)
    : view_(view),
      bind_host_(std::move(bind_host)),
      listen_(std::move(listen)),
      addresses_({address}),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void ListenerFollower::Run(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  const ClusterView::Watch watch = view_->OnChange([&] {
    const std::lock_guard lock(mutex);
    changed.notify_all();
  });
  std::string failed;  // where
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    const uint64_t version = view_->version();
    const std::string address = ListeningAddress(view_->Address(view_->own()), bind_host_);
    if (address.empty()) {
      addresses_.insert(address);  // the task has left the cluster: there is nowhere to listen
    } else if (!addresses_.contains(address)) {
      lock.unlock();
      const absl::Status status = listen_(address);
      lock.lock();
      if (status.ok()) {
        addresses_.insert(address);
        spdlog::info("listens on {} as well: the address of this task has changed", address);
      } else if (std::exchange(failed, address) != address) {
        spdlog::warn("{}; trying again", std::string(status.message()));
      }
    }
    const bool is_there = addresses_.contains(address);
    changed.wait_for(lock, stop, is_there ? kLong : kLookEvery,
                     [&] { return is_there && view_->version() != version; });
  }
}

}  // namespace muster
