// Mistakes on a command line that a parser of flags does not explain.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

/// InvalidArgument for `--flag=`, which is most often a variable of the shell that is not set: CLI11 would
/// take the next argument for its value. What stands behind `--` is nobody's flag.
absl::Status CheckFlagValues(std::span<const std::string> arguments);

/// "unexpected argument --trian_steps=3; did you mean '--train_steps'?", of the first of `unexpected`.
/// `flags`: names without their dashes.
std::string UnexpectedArgument(const std::vector<std::string>& unexpected,
                               const std::vector<std::string>& flags);

}  // namespace muster
