#include "launcher/commands/reconnecting.h"

#include <cstdio>
#include <string>
#include <thread>
#include <utility>

namespace muster {
namespace {

constexpr Duration kTimeout = std::chrono::minutes(1);
constexpr Duration kPause = std::chrono::milliseconds(500);

}  // namespace

void Reconnecting::Heard() {
  has_answered_ = true;
  give_up_.reset();
  is_said_ = false;
}

bool Reconnecting::TriesAgain(const absl::Status& failure) {
  if (!has_answered_ || !(absl::IsUnavailable(failure) || absl::IsDeadlineExceeded(failure))) return false;
  if (!give_up_) {
    give_up_ = Now() + kTimeout;
  } else if (!std::exchange(is_said_, true)) {
    std::fprintf(stderr, "%s: trying again for %s\n", std::string(failure.message()).c_str(),
                 FormatAge(kTimeout).c_str());
  }
  if (Now() >= *give_up_) return false;
  std::this_thread::sleep_for(kPause);
  return true;
}

}  // namespace muster
