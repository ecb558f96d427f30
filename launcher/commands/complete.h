// What a shell asks at each Tab: no command for people.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

namespace muster {

/// `words`: the shell's name, then those of the line as that has them, to the one that is to be completed.
/// Answers on stdout, and says nothing else: neither that something cannot be read. The exit status.
int CompleteCommand(const CLI::App& app, std::span<const std::string> words);

}  // namespace muster
