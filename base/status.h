// Errors: absl::Status and absl::StatusOr for what the world can cause, MUSTER_CHECK for our own bugs.
//
// A message says what happened, where (host, task, file:line:column) and what to do. The code decides the
// exit status of the program (ExitCodeFor), so it is chosen for what the user can do about the failure:
//   InvalidArgument  2    the input is wrong; nothing was contacted
//   Unavailable      69   a host or task could not be reached, or refused
//   DeadlineExceeded 124  a deadline passed
//   Cancelled        130  interrupted by the user
//   anything else    1
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_format.h>

#include <cerrno>
#include <string>
#include <utility>

namespace muster {

int ExitCodeFor(const absl::Status& status);

/// With this a server exits that cannot bind the port it was given (EADDRINUSE): the job then gets other
/// ports instead of failing.
inline constexpr int kPortLostExitCode = 98;

/// "context: message", same code. OK stays OK.
absl::Status Annotate(const absl::Status& status, const std::string& context);

/// The status for a failed system call: "what: strerror(error_number)", with a code that fits the errno.
absl::Status ErrnoError(int error_number, const std::string& what);

#define MUSTER_DEFINE_ERROR_(Name, Code)                                            \
  template <typename... Args>                                                       \
  absl::Status Name(const absl::FormatSpec<Args...>& format, const Args&... args) { \
    return absl::Status(absl::StatusCode::Code, absl::StrFormat(format, args...));  \
  }
MUSTER_DEFINE_ERROR_(InvalidArgument, kInvalidArgument)
MUSTER_DEFINE_ERROR_(Unavailable, kUnavailable)
MUSTER_DEFINE_ERROR_(DeadlineExceeded, kDeadlineExceeded)
MUSTER_DEFINE_ERROR_(Cancelled, kCancelled)
MUSTER_DEFINE_ERROR_(NotFound, kNotFound)
MUSTER_DEFINE_ERROR_(AlreadyExists, kAlreadyExists)
MUSTER_DEFINE_ERROR_(FailedPrecondition, kFailedPrecondition)
MUSTER_DEFINE_ERROR_(PermissionDenied, kPermissionDenied)
MUSTER_DEFINE_ERROR_(Aborted, kAborted)
MUSTER_DEFINE_ERROR_(DataLoss, kDataLoss)
MUSTER_DEFINE_ERROR_(Internal, kInternal)
#undef MUSTER_DEFINE_ERROR_

/// Prints the condition, its place and the message to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace muster

#define MUSTER_CHECK(condition, ...)                                                                   \
  do {                                                                                                 \
    if (!(condition)) ::muster::CheckFailed(__FILE__, __LINE__, #condition, std::string{__VA_ARGS__}); \
  } while (false)

#define MUSTER_CONCAT_INNER_(a, b) a##b
#define MUSTER_CONCAT_(a, b) MUSTER_CONCAT_INNER_(a, b)

#define MUSTER_RETURN_IF_ERROR(expression)                                                       \
  do {                                                                                           \
    if (absl::Status muster_status_ = (expression); !muster_status_.ok()) return muster_status_; \
  } while (false)

#define MUSTER_ASSIGN_OR_RETURN(target, expression) \
  MUSTER_ASSIGN_OR_RETURN_IMPL_(MUSTER_CONCAT_(muster_or_, __LINE__), target, expression)
#define MUSTER_ASSIGN_OR_RETURN_IMPL_(temporary, target, expression) \
  auto temporary = (expression);                                     \
  if (!temporary.ok()) return temporary.status();                    \
  target = *std::move(temporary)
