// What the shells are given: they ask muster at each Tab (CompletionAnswer), and know nothing themselves.
#include "launcher/completion.h"

namespace muster {
namespace {

constexpr char kBashScript[] = R"(_muster() {
  local -a answer
  mapfile -t answer < <("${COMP_WORDS[0]/#\~/$HOME}" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=("${answer[@]:1}")
  case ${answer[0]-} in
    files) compopt -o filenames; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$2") ;;
    folders) compopt -o dirnames ;;
  esac
}
complete -F _muster muster
)";

constexpr char kZshScript[] = R"((( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_muster() {
  local -a answer candidates
  answer=("${(@f)$(${${(Q)words[1]}/#\~/$HOME} __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  candidates=(${answer[2,-1]})
  local none=1
  (( $#candidates )) && _describe muster candidates && none=0
  case $answer[1] in
    files) compset -P '--*='; _files && none=0 ;;
    folders) compset -P '--*='; _files -/ && none=0 ;;
  esac
  return none
}
compdef _muster muster
)";

constexpr char kFishScript[] = R"(function __muster_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' "$HOME" -- $words[1])
    command -q $program; or return
    set -l answer ($program __complete fish $words[2..-1] "$current" 2>/dev/null)
    set -l flag (string match -r '^--[^=]*=' -- "$current")
    set -l path (string replace -r '^--[^=]*=' '' -- "$current")
    string join \n -- $answer[2..-1]
    switch "$answer[1]"
        case files
            __fish_complete_path "$path" | string replace -r -- '^' "$flag"
        case folders
            __fish_complete_directories "$path" | string replace -r -- '^' "$flag"
    end
end
complete -c muster -f -a '(__muster_complete)'
)";

}  // namespace

std::string CompletionScript(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return kBashScript;
    case Shell::kZsh:
      return kZshScript;
    case Shell::kFish:
      return kFishScript;
  }
  return "";
}

}  // namespace muster
