#include "agent/secret_stream.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "agent/sockets.h"

namespace muster {
namespace {

constexpr char kIdentity[] = "muster";
constexpr size_t kReadAheadBytes = size_t{256} << 10;

// What both ends take for the key, in its binary form; 0: it does not fit.
unsigned CopySecret(const SSL* connection, unsigned char* key, unsigned max_bytes) {
  const auto* secret = static_cast<const std::string*>(SSL_get_app_data(connection));
  unsigned size = 0;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (; 2 * size + 1 < secret->size() && size < max_bytes; ++size) {
    key[size] = static_cast<unsigned char>(16 * digit((*secret)[2 * size]) + digit((*secret)[2 * size + 1]));
  }
  return size;
}

unsigned ClientKey(SSL* connection, const char* /*hint*/, char* identity, unsigned max_identity_bytes,
                   unsigned char* key, unsigned max_key_bytes) {
  if (max_identity_bytes < sizeof kIdentity) return 0;
  std::memcpy(identity, kIdentity, sizeof kIdentity);
  return CopySecret(connection, key, max_key_bytes);
}

unsigned ServerKey(SSL* connection, const char* identity, unsigned char* key, unsigned max_key_bytes) {
  return std::strcmp(identity, kIdentity) == 0 ? CopySecret(connection, key, max_key_bytes) : 0;
}

}  // namespace

bool IsSecret(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

SecretStream::SecretStream(UniqueFd socket, Options options)
    : socket_(std::move(socket)), options_(std::make_unique<const Options>(std::move(options))) {}

absl::StatusOr<SecretStream> SecretStream::Connect(UniqueFd socket, Options options) {
  SecretStream stream(std::move(socket), std::move(options));
  MUSTER_RETURN_IF_ERROR(stream.Greet(/*accept=*/false));
  return stream;
}

absl::StatusOr<SecretStream> SecretStream::Accept(UniqueFd socket, Options options) {
  SecretStream stream(std::move(socket), std::move(options));
  MUSTER_RETURN_IF_ERROR(stream.Greet(/*accept=*/true));
  return stream;
}

absl::Status SecretStream::Greet(bool accept) {
  if (!IsSecret(options_->secret)) return InvalidArgument("the secret is not 64 hexadecimal digits");
  SendAtOnce(socket_.get());
  if (::fcntl(socket_.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoError(errno, "fcntl");
  // No configuration file of the host's decides what is safe enough.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  const Context context(SSL_CTX_new(accept ? TLS_server_method() : TLS_client_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      // Its hash is the one that a key given in this way is for.
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    return Internal("TLS: %s", TakeOpenSslError());
  }
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Several records with one system call.
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadAheadBytes);
  if (accept) {
    SSL_CTX_set_psk_server_callback(context.get(), ServerKey);
  } else {
    SSL_CTX_set_psk_client_callback(context.get(), ClientKey);
    // Nobody's certificate is good, so only the key is left. The other end has none to show.
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  }
  connection_.reset(SSL_new(context.get()));
  if (connection_ == nullptr || SSL_set_fd(connection_.get(), socket_.get()) != 1) {
    return Internal("TLS: %s", TakeOpenSslError());
  }
  SSL_set_app_data(connection_.get(), const_cast<std::string*>(&options_->secret));
  const TimePoint latest = Now() + options_->greeting_timeout;
  while (true) {
    ERR_clear_error();
    const int result = accept ? SSL_accept(connection_.get()) : SSL_connect(connection_.get());
    if (result == 1) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(Await(result, latest));
  }
}

absl::Status SecretStream::Await(int result, TimePoint latest) {
  const int error_number = errno;
  const int error = SSL_get_error(connection_.get(), result);
  if (error == SSL_ERROR_SYSCALL && error_number != 0) {
    return Unavailable("%s", std::string(ErrnoError(error_number, "the connection").message()));
  }
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
    return Unavailable("the other end hangs up, or has another secret (%s)", TakeOpenSslError());
  }
  const absl::Status ready =
      AwaitReady(socket_.get(), error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, options_->stop_fd,
                 std::min<TimePoint>(Now() + options_->idle_timeout, latest));
  if (!absl::IsDeadlineExceeded(ready)) return ready;
  if (Now() >= latest) return DeadlineExceeded("the greeting took too long");
  return DeadlineExceeded("no byte has moved for %.0f s", ToSeconds(options_->idle_timeout));
}

absl::Status SecretStream::CheckStop() const {
  pollfd stop{.fd = options_->stop_fd, .events = POLLIN, .revents = 0};
  return ::poll(&stop, 1, 0) > 0 ? Cancelled("stopped") : absl::OkStatus();
}

absl::Status SecretStream::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    MUSTER_RETURN_IF_ERROR(CheckStop());
    ERR_clear_error();
    const int written =
        SSL_write(connection_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    if (written > 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else {
      MUSTER_RETURN_IF_ERROR(Await(written));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> SecretStream::Read(std::span<char> buffer) {
  MUSTER_RETURN_IF_ERROR(CheckStop());
  // A record has 16 KiB at most: all of those that are there.
  size_t have = 0;
  while (have < buffer.size() && (have == 0 || SSL_has_pending(connection_.get()) != 0)) {
    ERR_clear_error();
    const int count = SSL_read(connection_.get(), buffer.data() + have,
                               static_cast<int>(std::min<size_t>(buffer.size() - have, INT_MAX)));
    if (count > 0) {
      have += static_cast<size_t>(count);
    } else if (have > 0) {
      break;  // the next call hears of it, too
    } else if (SSL_get_error(connection_.get(), count) == SSL_ERROR_ZERO_RETURN) {
      return 0;
    } else {
      MUSTER_RETURN_IF_ERROR(Await(count));
      MUSTER_RETURN_IF_ERROR(CheckStop());
    }
  }
  return have;
}

absl::Status SecretStream::Close() {
  while (true) {
    ERR_clear_error();
    const int result = SSL_shutdown(connection_.get());
    if (result >= 0) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(Await(result));
  }
}

}  // namespace muster
