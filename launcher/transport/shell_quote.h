// Words and commands for shells whose kind is not known.
//
// sshd hands a command to the account's login shell, which may be sh, bash, zsh, fish, csh or tcsh. What is
// quoted here means the same in all of them.
#pragma once

#include <string>
#include <string_view>

namespace muster {

/// `word` as one word of a command line. It must hold neither NUL nor a line break: no quoting of a line
/// break is understood by both sh and csh.
std::string QuoteWord(std::string_view word);

/// A command line for any login shell that runs `command` by sh, with nothing between sh and the caller: the
/// process that sshd started becomes sh. Same limits as QuoteWord.
std::string ForAnyLoginShell(std::string_view command);

}  // namespace muster
