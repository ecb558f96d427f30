// Mistakes on a command line that CLI11 does not explain.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "base/status.h"

namespace muster {

/// InvalidArgument for `--flag=`, which is most often a variable of the shell that is not set: CLI11 would
/// take the next argument for its value. What stands behind `--` is nobody's flag.
absl::Status CheckFlagValues(std::span<const std::string> arguments);

/// After CLI::ExtrasError: "unexpected argument --trian_steps=3; did you mean '--train_steps'?", of the first
/// one and the flags of the command that was given.
std::string UnexpectedArgument(const CLI::App& app);

}  // namespace muster
