// A file in memory with the bytes that a fuzzer has made up, for parsers that read files.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace muster {

class FuzzFile {
 public:
  FuzzFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    MUSTER_CHECK(fd_.valid() && WriteAll(fd_.get(), {reinterpret_cast<const char*>(data), size}).ok());
  }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  UniqueFd fd_;
};

}  // namespace muster
