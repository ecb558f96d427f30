// Where tests find the programs they start and the files they read. Behind functions and not in macros: what
// is compiled of a test then does not depend on where its checkout lies, and a compiler's cache serves every
// checkout.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// Absolute path of a file of the checkout that the test was built from, "tests/cluster/loopback", or of the
// checkout.
std::string SourcePath(std::string_view relative = "");

// Absolute path of a file of its build folder, "bin/muster", or of that folder.
std::string BuildPath(std::string_view relative = "");

}  // namespace muster
