// A TCP connection between two hosts that know one secret, and nobody else does: TLS 1.3 with the secret as
// its pre-shared key (RFC 8446, section 2.2) and ephemeral keys, so that what was recorded stays closed if
// the secret gets known later. There are no certificates: an end without the secret gets no further than its
// first message.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/openssl.h"
#include "base/status.h"

namespace muster {

/// Whether it may be one of RandomSecret's.
bool IsSecret(std::string_view text);

/// One thread at a time. Every wait ends when no byte has moved for `idle_timeout` (DeadlineExceeded), or
/// when `stop_fd` (-1: none) becomes readable or hangs up (Cancelled). Unavailable: the other end has gone,
/// or does not know the secret. SIGPIPE must be ignored.
class SecretStream {
 public:
  struct Options {
    std::string secret;  // of RandomSecret
    int stop_fd = -1;
    Duration idle_timeout = std::chrono::seconds(60);
    Duration greeting_timeout = std::chrono::seconds(10);  // of all of it: anybody may have come
  };

  /// Greets the other end of a connected socket, which has accepted it.
  static absl::StatusOr<SecretStream> Connect(UniqueFd socket, Options options);
  static absl::StatusOr<SecretStream> Accept(UniqueFd socket, Options options);
  SecretStream(SecretStream&&) = default;

  absl::Status Write(std::string_view bytes);
  /// At least one byte; 0: the other end has closed it after all that it had to say.
  absl::StatusOr<size_t> Read(std::span<char> buffer);
  /// Says that nothing more comes. Without it the other end takes what it has for cut off.
  absl::Status Close();

 private:
  using Context = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;
  using Connection = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;

  SecretStream(UniqueFd socket, Options options);
  absl::Status Greet(bool accept);
  /// Waits for what the library needs after a call returned `result`, at most until `latest`; an error if
  /// that was none.
  absl::Status Await(int result, TimePoint latest = TimePoint::max());
  /// Cancelled: it is to stop, although bytes still come and go.
  absl::Status CheckStop() const;

  UniqueFd socket_;
  std::unique_ptr<const Options> options_;  // the library's callbacks have its address
  Connection connection_;                   // has its context
};

}  // namespace muster
