// For tests: lends a connection to whoever asks for its host, as the session of a job's host does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/wake.h"
#include "launcher/transport/guest_commands.h"

namespace muster {

class Lender {
 public:
  Lender(std::unique_ptr<Transport> transport, const std::filesystem::path& socket)
      : transport_(std::move(transport)), guests_(new GuestCommands(*transport_, keeper_.count())) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
    auto listener = GuestListener::Open(socket, [this](Guest guest) {
      const std::lock_guard lock(mutex_);
      arrived_.push_back(std::move(guest));
      wake_.Set();
    });
    EXPECT_TRUE(listener.ok()) << listener.status();
    if (listener.ok()) listener_ = *std::move(listener);
  }
  /// Those that still run are cut off.
  ~Lender() { Stop(); }

  /// Lends nothing any more, and lives on for those that run.
  void Leave() {
    Stop();
    keeper_.Keep(std::move(transport_), std::move(guests_));
  }

  int count() { return keeper_.count(); }

 private:
  void Stop() {
    listener_ = nullptr;
    thread_.request_stop();
    wake_.Set();
    if (thread_.joinable()) thread_.join();
  }

  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      wake_.Clear();
      std::deque<Guest> arrived;
      {
        const std::lock_guard lock(mutex_);
        arrived.swap(arrived_);
      }
      for (Guest& guest : arrived) {
        if (guest.wanted.host() == transport_->host()) {
          guests_->Add(std::move(guest));
        } else {
          guest.Refuse("it is not here");
        }
      }
      guests_->Pump();
      std::vector<PollItem> items;
      guests_->AddPollItems(&items);
      const absl::Status polled = transport_->Poll(items, wake_.fd(), guests_->deadline());
      ASSERT_TRUE(polled.ok() || absl::IsDeadlineExceeded(polled)) << polled;
    }
  }

  GuestKeeper keeper_;  // first: it waits for what was left to it
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<GuestCommands> guests_;
  Wake wake_;
  std::mutex mutex_;
  std::deque<Guest> arrived_;
  std::unique_ptr<GuestListener> listener_;
  std::jthread thread_;
};

}  // namespace muster
