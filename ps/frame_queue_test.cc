#include "ps/frame_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <list>

namespace muster {
namespace {

TimePoint In(Duration duration) { return Now() + duration; }
constexpr Duration kLong = std::chrono::seconds(20);  // a deadline that no test reaches
constexpr Duration kSoon = std::chrono::milliseconds(20);

// An operation that ends by itself after a while, or when it is cancelled.
class Operation {
 public:
  Operation(FrameQueue& queue, Duration after, std::function<void(bool ok)> done) : done_(std::move(done)) {
    const auto time = std::chrono::system_clock::now() + std::chrono::ceil<std::chrono::microseconds>(after);
    alarm_.Set(queue.completions(), time, completion_.tag());
  }
  void Cancel() { alarm_.Cancel(); }
  const std::atomic<int>& under_way() const { return under_way_; }

 private:
  const std::function<void(bool ok)> done_;
  std::atomic<int> under_way_ = 1;
  Completion completion_{[this](bool ok) {
    done_(ok);
    --under_way_;
  }};
  grpc::Alarm alarm_;
};

// Calls `then` on the thread that makes it, as soon as that polls: nobody else does as long as it waits.
class OnceThisThreadPolls {
 public:
  OnceThisThreadPolls(FrameQueue& queue, std::function<void()> then) : queue_(queue), then_(std::move(then)) {
    Look();
  }

 private:
  // By an operation that whoever polls runs.
  void Look() {
    const std::lock_guard lock(mutex_);
    looks_.emplace_back(queue_, std::chrono::milliseconds(1), [this](bool) {
      if (std::this_thread::get_id() == thread_) {
        then_();
      } else {
        Look();
      }
    });
  }

  FrameQueue& queue_;
  const std::function<void()> then_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;  // guards the following: the next look comes before the last one is in the list
  std::list<Operation> looks_;
};

FrameQueue::Event EventOf(uint64_t connection) { return {.connection = connection, .frame = {}}; }

TEST(FrameQueue, EventsComeInOrderOfAllOrOfOneConnection) {
  FrameQueue queue([](const FrameQueue::Event& event) { return event.connection == 7; });
  EXPECT_FALSE(queue.Pop(Now()));
  for (const uint64_t connection : {1, 2, 7, 1, 3}) queue.Push(EventOf(connection));
  EXPECT_EQ(queue.Pop(Now(), 2)->connection, 2u);
  EXPECT_FALSE(queue.Pop(In(kSoon), 2));
  std::vector<FrameQueue::Event> popped;
  for (int i = 0; i < 2; ++i) popped.push_back(*queue.Pop(Now()));
  EXPECT_EQ(popped[1].connection, 1u);
  queue.PutBack(std::move(popped));
  for (const uint64_t connection : {1, 1, 3}) EXPECT_EQ(queue.Pop(Now())->connection, connection);
  EXPECT_TRUE(queue.empty());
}

TEST(FrameQueue, WhoWaitsRunsCompletionsItself) {
  FrameQueue queue;
  queue.AddAwaited(1);
  std::thread::id ran_by;
  std::optional<Operation> operation;
  const OnceThisThreadPolls polls(queue, [&] {
    operation.emplace(queue, kSoon, [&](bool) {
      ran_by = std::this_thread::get_id();
      queue.Push(EventOf(1));
    });
  });
  EXPECT_TRUE(queue.Pop(In(kLong)));
  EXPECT_EQ(ran_by, std::this_thread::get_id());
  queue.AddAwaited(-1);
}

// The first of them, with nobody there, begins to look by itself; the second is waited for meanwhile.
TEST(FrameQueue, WhileNobodyWaitsCompletionsRunAllTheSame) {
  FrameQueue queue;
  queue.AddAwaited(1);
  std::promise<void> ran;
  const Operation first(queue, kSoon, [&](bool) { ran.set_value(); });
  ASSERT_EQ(ran.get_future().wait_for(kLong), std::future_status::ready);
  std::thread::id ran_by;
  std::optional<Operation> second;
  const OnceThisThreadPolls polls(queue, [&] {
    second.emplace(queue, kSoon, [&](bool) {
      ran_by = std::this_thread::get_id();
      queue.Push(EventOf(1));
    });
  });
  EXPECT_TRUE(queue.Pop(In(kLong)));
  EXPECT_EQ(ran_by, std::this_thread::get_id());
  queue.AddAwaited(-1);
}

TEST(FrameQueue, WhatComesFromElsewhereWakesWhoPolls) {
  for (const int awaited : {0, 1}) {
    FrameQueue queue;
    queue.AddAwaited(awaited);
    for (uint64_t i = 0; i < 200; ++i) {
      std::jthread other([&] { queue.Push(EventOf(i)); });
      const auto event = queue.Pop(In(kLong));
      ASSERT_TRUE(event);
      EXPECT_EQ(event->connection, i);
    }
    queue.AddAwaited(-awaited);
  }
}

TEST(FrameQueue, EachOfSeveralThatWaitHasItsOwn) {
  FrameQueue queue;
  queue.AddAwaited(1);
  constexpr uint64_t kEach = 200;
  {
    std::vector<std::jthread> threads;
    for (uint64_t id = 0; id < 3; ++id) {
      threads.emplace_back([&, id] {
        for (uint64_t i = 0; i < kEach; ++i) EXPECT_TRUE(queue.Pop(In(kLong), id));
      });
    }
    for (uint64_t i = 0; i < kEach; ++i) {
      for (uint64_t id = 0; id < 3; ++id) queue.Push(EventOf(id));
    }
  }
  EXPECT_TRUE(queue.empty());
  queue.AddAwaited(-1);
}

TEST(FrameQueue, AwaitEndsAtItsDeadlineOrWhenItIsWoken) {
  FrameQueue queue;
  queue.AddAwaited(1);
  EXPECT_FALSE(queue.Await(In(kSoon), [] { return false; }));
  std::atomic<bool> is_there = false;
  std::jthread other([&] {
    is_there = true;
    queue.Wake();
  });
  EXPECT_TRUE(queue.Await(In(kLong), [&] { return is_there.load(); }));
  queue.AddAwaited(-1);
}

// Whoever else polls: a thread that waits for something else, or nobody but the queue.
TEST(FrameQueue, DrainWaitsForOperationsWhoeverPolls) {
  for (const bool somebody_waits : {false, true}) {
    FrameQueue queue;
    queue.AddAwaited(1);
    std::jthread waiting;
    if (somebody_waits) {
      waiting = std::jthread([&] { EXPECT_TRUE(queue.Pop(In(kLong))); });
    }
    for (int i = 0; i < 50; ++i) {
      std::atomic<bool> is_handled = false;
      Operation operation(queue, kLong, [&](bool ok) {
        EXPECT_FALSE(ok);
        std::this_thread::yield();
        is_handled = true;
      });
      operation.Cancel();
      queue.Drain(operation.under_way());
      EXPECT_TRUE(is_handled);
    }
    queue.Push(EventOf(1));
    waiting = {};
    queue.AddAwaited(-1);
  }
}

}  // namespace
}  // namespace muster
