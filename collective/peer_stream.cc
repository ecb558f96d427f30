#include "collective/peer_stream.h"

#include <linux/tcp.h>  // its tcp_info has more than that of <netinet/tcp.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "base/openssl.h"

namespace muster {
namespace {

absl::Status HungUp() { return Unavailable("it hung up"); }

// A process that dies before it has read all that has come resets its connections: that is no other cause.
absl::Status Broken(int error) {
  return error == ECONNRESET || error == EPIPE ? HungUp() : Unavailable("%s", std::strerror(error));
}

class TcpStream final : public PeerStream {
 public:
  explicit TcpStream(UniqueFd socket) : socket_(std::move(socket)) {}

  absl::StatusOr<size_t> Send(std::span<const std::byte> bytes) override {
    return Done(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  absl::StatusOr<size_t> Receive(std::span<std::byte> room) override {
    const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got == 0 && !room.empty()) return HungUp();
    return Done(got);
  }

  absl::StatusOr<bool> Greet() override { return true; }
  absl::Status CheckPeerName(const std::string&) override { return absl::OkStatus(); }
  short events_to_send() const override { return POLLOUT; }
  short events_to_receive() const override { return POLLIN; }
  int fd() const override { return socket_.get(); }

 private:
  static absl::StatusOr<size_t> Done(ssize_t count) {
    if (count >= 0) return static_cast<size_t>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    return Broken(errno);
  }

  const UniqueFd socket_;
};

// OpenSSL's own sockets write without MSG_NOSIGNAL, and a peer that has gone would end this process.
int WriteToSocket(BIO* bio, const char* bytes, int size) {
  const int fd = *static_cast<const int*>(BIO_get_data(bio));
  const ssize_t sent = ::send(fd, bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  const bool again = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  BIO_clear_retry_flags(bio);
  if (again) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadFromSocket(BIO* bio, char* room, int size) {
  const int fd = *static_cast<const int*>(BIO_get_data(bio));
  const ssize_t got = ::recv(fd, room, static_cast<size_t>(size), MSG_DONTWAIT);
  const bool again = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  BIO_clear_retry_flags(bio);
  if (again) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long ControlSocket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "peer socket");
    MUSTER_CHECK(made != nullptr && BIO_meth_set_write(made, WriteToSocket) == 1 &&
                 BIO_meth_set_read(made, ReadFromSocket) == 1 && BIO_meth_set_ctrl(made, ControlSocket) == 1);
    return made;
  }();
  return method;
}

class TlsStream final : public PeerStream {
 public:
  TlsStream(UniqueFd socket, SSL* ssl, BIO* bio) : socket_(std::move(socket)), fd_(socket_.get()), ssl_(ssl) {
    BIO_set_data(bio, const_cast<int*>(&fd_));
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);  // which owns it from now on
  }

  absl::StatusOr<size_t> Send(std::span<const std::byte> bytes) override {
    size_t written = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
    return result == 1 ? absl::StatusOr<size_t>(written) : Failed(result, to_send_);
  }

  absl::StatusOr<size_t> Receive(std::span<std::byte> room) override {
    size_t read = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), room.data(), room.size(), &read);
    return result == 1 ? absl::StatusOr<size_t>(read) : Failed(result, to_receive_);
  }

  absl::StatusOr<bool> Greet() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return true;
    MUSTER_RETURN_IF_ERROR(Failed(result, to_receive_).status());
    return false;
  }

  absl::Status CheckPeerName(const std::string& name) override {
    X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
    if (certificate != nullptr && X509_check_host(certificate, name.data(), name.size(), 0, nullptr) == 1) {
      return absl::OkStatus();
    }
    return PermissionDenied("its certificate is not that of '%s'", name);
  }

  short events_to_send() const override { return to_send_; }
  short events_to_receive() const override { return to_receive_; }
  int fd() const override { return socket_.get(); }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  // 0 where nothing went wrong; `events`: to wait for, since it may be the other direction's.
  absl::StatusOr<size_t> Failed(int result, short& events) {
    const int system_error = errno;
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        events = POLLIN;
        return 0;
      case SSL_ERROR_WANT_WRITE:
        events = POLLOUT;
        return 0;
      case SSL_ERROR_ZERO_RETURN:
        return HungUp();
      case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        return system_error == 0 ? HungUp() : Broken(system_error);
      default:
        return Unavailable("TLS: %s", TakeOpenSslError());
    }
  }

  const UniqueFd socket_;
  const int fd_;
  const std::unique_ptr<SSL, Free> ssl_;
  short to_send_ = POLLOUT;
  short to_receive_ = POLLIN;
};

// Nobody is asked for one on a terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(const TlsIdentity& identity) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* const context = made->get();
  if (context == nullptr) return Internal("TLS: %s", TakeOpenSslError());
  const OpenSslCertificate authority(
      PEM_read_bio_X509(ReadingBio(identity.ca_pem).get(), nullptr, nullptr, nullptr));
  const OpenSslCertificate own(
      PEM_read_bio_X509(ReadingBio(identity.certificate_pem).get(), nullptr, nullptr, nullptr));
  const OpenSslKey key(
      PEM_read_bio_PrivateKey(ReadingBio(identity.key_pem).get(), nullptr, NoPassphrase, nullptr));
  if (authority == nullptr || own == nullptr || key == nullptr ||
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
      SSL_CTX_use_certificate(context, own.get()) != 1 || SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return InvalidArgument("--tls_dir: certificate, key and authority cannot be used: %s",
                           TakeOpenSslError());
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  // The cheapest first: it is as private for as long as a job lives.
  MUSTER_CHECK(SSL_CTX_set_ciphersuites(
                   context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") ==
               1);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);  // nobody resumes
  // Each message says how long it is, so that a connection that is cut short is seen all the same.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, 256 << 10);
  return made;
}

Duration SilenceOf(const PeerStream& stream) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(stream.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return Duration::zero();
  // What waits for room at the other end keeps keepalives back, and asks for room twice as rarely each time.
  // (What cannot leave this host stays unsent, too, and has room.)
  const bool has_window = size >= offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd;  // Linux 5.4
  if (has_window && info.tcpi_notsent_bytes > 0 && info.tcpi_unacked == 0 &&
      info.tcpi_snd_wnd < info.tcpi_snd_mss) {
    return Duration::zero();
  }
  // Data that acknowledges nothing new does not count as an acknowledgment, and puts off keepalives.
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

RoundTripTimes RoundTripOf(const PeerStream& stream) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(stream.fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  const bool has_least = size >= offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;  // Linux 4.6
  return {.least = std::chrono::microseconds(has_least ? info.tcpi_min_rtt : info.tcpi_rtt),
          .mean = std::chrono::microseconds(info.tcpi_rtt)};
}

absl::StatusOr<std::unique_ptr<PeerStream>> OpenPeerStream(UniqueFd socket, const TlsContext* tls,
                                                           StreamEnd end) {
  const int on = 1, seconds = 1, probes = 60;  // it is SilenceOf that counts
  const auto set = [&](int level, int option, const int& value) {
    return ::setsockopt(socket.get(), level, option, &value, sizeof value) == 0;
  };
  if (!set(IPPROTO_TCP, TCP_NODELAY, on) || !set(SOL_SOCKET, SO_KEEPALIVE, on) ||
      !set(IPPROTO_TCP, TCP_KEEPIDLE, seconds) || !set(IPPROTO_TCP, TCP_KEEPINTVL, seconds) ||
      !set(IPPROTO_TCP, TCP_KEEPCNT, probes)) {
    const int error = errno;
    return ErrnoError(error, "options of a connection");
  }
  if (tls == nullptr) return std::make_unique<TcpStream>(std::move(socket));
  SSL* const ssl = SSL_new(tls->get());
  BIO* const bio = BIO_new(SocketMethod());
  if (ssl == nullptr || bio == nullptr) {
    SSL_free(ssl);
    BIO_free(bio);
    return Internal("TLS: %s", TakeOpenSslError());
  }
  end == StreamEnd::kDialed ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  return std::make_unique<TlsStream>(std::move(socket), ssl, bio);
}

}  // namespace muster
