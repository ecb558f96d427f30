// Linked into an agent for tests: a wall clock that is off by as many seconds as the file `clock` in its home
// says. The linker replaces muster's clock and that of certificates by these (--wrap).
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

namespace {

int64_t SecondsAhead() {
  static const int64_t seconds = [] {
    const char* home = std::getenv("HOME");
    int64_t ahead = 0;
    std::ifstream(std::string(home != nullptr ? home : "") + "/clock") >> ahead;
    return ahead;
  }();
  return seconds;
}

}  // namespace

extern "C" {

int64_t __real__ZN6muster14WallTimeMicrosEv();
int64_t __wrap__ZN6muster14WallTimeMicrosEv() {
  return __real__ZN6muster14WallTimeMicrosEv() + SecondsAhead() * 1'000'000;
}

time_t __real_time(time_t* result);
time_t __wrap_time(time_t* result) {
  const time_t now = __real_time(nullptr) + SecondsAhead();
  if (result != nullptr) *result = now;
  return now;
}

}  // extern "C"
