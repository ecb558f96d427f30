#include "launcher/display_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A display that shows nothing until it may.
class HeldDisplay final : public RunObserver {
 public:
  void OnView(const reconcile::View& view) override { Add("view " + std::to_string(view.generation)); }
  void OnHostFacts(const HostFacts& facts) override { Add("facts " + facts.host); }
  void OnUpload(const UploadStep& step) override { Add("upload " + step.host); }
  void OnNotice(const std::string& text) override { Add("notice " + text); }
  void OnLog(const std::string& task, const std::string& bytes, bool last) override {
    log_bytes += bytes.size();
    Add(task + " " + (bytes.size() < 100 ? bytes : "...") + (last ? " last" : ""));
  }
  void OnTraining(const TrainingPoint& point) override { Add("step " + std::to_string(point.step)); }

  void Release() {
    const std::lock_guard lock(mutex_);
    may_ = true;
    changed_.notify_all();
  }

  // Once the thread has ended.
  std::vector<std::string> shown;
  uint64_t log_bytes = 0;

 private:
  void Add(const std::string& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return may_; });
    shown.push_back(what);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool may_ = false;
};

TEST(DisplayThread, ShowsEverythingInOrderHoweverLate) {
  HeldDisplay display;
  {
    DisplayThread thread(display);
    thread.OnView({.generation = 1});
    thread.OnHostFacts({.host = "a"});
    thread.OnUpload({.host = "a"});
    thread.OnLog("worker:0", "line", false);
    thread.OnTraining({.step = 7});
    thread.OnLog("worker:0", "", true);
    thread.OnNotice("b is lost");
    thread.OnView({.generation = 2});
    display.Release();
  }
  EXPECT_THAT(display.shown, ElementsAre("view 1", "facts a", "upload a", "worker:0 line", "step 7",
                                         "worker:0  last", "notice b is lost", "view 2"));
}

TEST(DisplayThread, LogsThatAreTooMuchAreLeftOutAndCounted) {
  constexpr size_t kPiece = size_t{8} << 20;
  HeldDisplay display;
  {
    DisplayThread thread(display);
    thread.OnNotice("this is shown first");
    for (int i = 0; i < 10; ++i) thread.OnLog("worker:0", std::string(kPiece, 'x'), false);
    thread.OnLog("worker:0", "the end", true);
    thread.OnLog("worker:1", std::string(kPiece, 'y'), true);
    display.Release();
  }
  EXPECT_EQ(display.log_bytes, DisplayThread::kMostLogBytes);
  ASSERT_EQ(display.shown.size(), 1 + 8 + 4u);
  EXPECT_EQ(display.shown[9], "worker:0  last");
  EXPECT_THAT(display.shown[10], HasSubstr("worker:0: " + std::to_string(2 * kPiece + 7) + " bytes"));
  EXPECT_THAT(display.shown[12], HasSubstr("worker:1: " + std::to_string(kPiece) + " bytes"));
}

TEST(DisplayThread, OfManyViewsTheLastOneIsShown) {
  HeldDisplay display;
  {
    DisplayThread thread(display);
    for (uint64_t i = 1; i <= 10 * DisplayThread::kMostThings; ++i) thread.OnView({.generation = i});
    display.Release();
  }
  EXPECT_LE(display.shown.size(), DisplayThread::kMostThings + 2);
  EXPECT_EQ(display.shown.back(), "view " + std::to_string(10 * DisplayThread::kMostThings));
}

TEST(DisplayThread, OfAnUploadThatIsTooMuchItsEndAndProblemsAreShown) {
  constexpr uint64_t kBytes = 10 * DisplayThread::kMostThings;
  HeldDisplay display;
  {
    DisplayThread thread(display);
    for (uint64_t i = 1; i < kBytes; ++i)
      thread.OnUpload({.host = "a", .sent_bytes = i, .total_bytes = kBytes});
    thread.OnUpload({.host = "b", .problem = "b does not answer"});
    thread.OnUpload({.host = "c", .sent_bytes = kBytes, .total_bytes = kBytes});
    display.Release();
  }
  EXPECT_LE(display.shown.size(), DisplayThread::kMostThings + 3);
  EXPECT_EQ(display.shown.end()[-2], "upload b");
  EXPECT_EQ(display.shown.back(), "upload c");
}

}  // namespace
}  // namespace muster
