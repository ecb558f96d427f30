// A place in a file that a person wrote, as messages name it.
#pragma once

#include <string>

namespace muster {

/// Line and column count from 1, columns in bytes, as compilers and editors do.
struct SourcePosition {
  std::string path;
  int line = 1;
  int column = 1;

  /// "path:line:column"
  std::string ToString() const;
  friend bool operator==(const SourcePosition&, const SourcePosition&) = default;
};

}  // namespace muster
