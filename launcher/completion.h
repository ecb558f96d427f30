// What may stand where a shell's user has pressed Tab. Pure.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

/// A word that may stand there, and what it is; that may be empty.
struct Candidate {
  std::string word;
  std::string description;
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// What the command line does not say itself. Each is asked only where it counts.
class CompletionSource {
 public:
  virtual ~CompletionSource() = default;
  virtual std::vector<Candidate> Jobs() const = 0;   // their names and ids
  virtual std::vector<Candidate> Pools() const = 0;  // of servers that stand
  virtual std::vector<Candidate> Tasks(const std::string& job) const = 0;
  /// Of an inventory file; empty: the usual one.
  virtual std::vector<Candidate> Hosts(const std::string& inventory) const = 0;
};

struct Completion {
  enum class Paths { kNone, kFiles, kFolders };  // which the shell knows best
  std::vector<Candidate> candidates;             // that begin as the last word does
  Paths paths = Paths::kNone;
};

/// `words`: those behind the name of the program, as far as they are typed: the last one is to be completed,
/// and may be empty.
///
/// What an option or argument takes is what --help says of it: one of {a,b}; FILE, DIR, HOST, JOB, POOL or
/// TASK, or several of them as JOB|FILE; numbers, and names that are none of these, nothing can be said of;
/// plain TEXT may be a file. An argument without a type has that of its name.
Completion Complete(const CLI::App& app, std::span<const std::string> words, const CompletionSource& source);

enum class Shell { kBash, kZsh, kFish };
inline constexpr const char* kShellNames[] = {"bash", "zsh", "fish"};  // in that order
/// InvalidArgument: there is none of this name.
absl::StatusOr<Shell> ParseShell(const std::string& name);

/// For the shell to read when it starts. It asks `muster __complete SHELL WORDS...` at each Tab.
std::string CompletionScript(Shell shell);
inline constexpr char kCompleteCommand[] = "__complete";

/// As bash has them: it also parts words at '=' and ':', replaces only what is behind the last of these, and
/// leaves their quotes.
struct BashWords {
  std::vector<std::string> words;  // whole; without quotes, but for the last one
  size_t kept = 0;                 // bytes of the last one that stay as they are
};
BashWords JoinBashWords(std::span<const std::string> parts);

/// What the script is answered: "none", "files" or "folders", then a line for each candidate. `kept`: bytes
/// of each of them that are left out.
std::string CompletionAnswer(Shell shell, const Completion& completion, size_t kept = 0);

}  // namespace muster
