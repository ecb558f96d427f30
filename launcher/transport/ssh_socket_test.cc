// What this machine, and no host, has at fault.
#include "launcher/transport/ssh_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <functional>
#include <thread>

#include "tests/support/forbidden_calls.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// On which nobody listens.
uint16_t FreePort() {
  const std::string address = FreeAddress();
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

absl::Status ConnectStatus(const std::string& name, uint16_t port) {
  return ConnectTcp(name, port, std::chrono::seconds(3), {.deadline = Now() + std::chrono::seconds(60)})
      .status();
}

// From now on this thread finds the names of hosts in that file, too.
bool NameHosts(const std::string& file) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
}

// What is kept from a thread it never gets back.
absl::Status InAThread(const std::function<absl::Status()>& body) {
  absl::Status status;
  std::thread([&] { status = body(); }).join();
  return status;
}

TEST(SshSocket, NoDescriptorIsLeftForAWhileOnly) {
  const absl::Status status = InAThread([port = FreePort()] {
    MUSTER_RETURN_IF_ERROR(ForbidSockets());
    return ConnectStatus("127.0.0.1", port);
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("socket: Too many open files"));
}

// Of a name with addresses of both kinds.
TEST(SshSocket, WithoutIpv6HereTheHostIsStillWhatRefuses) {
  const TemporaryDirectory folder;
  const std::string hosts = folder.path() / "hosts";
  ASSERT_TRUE(WriteFileAtomically(hosts, "127.0.0.1 both.test\n::1 both.test\n").ok());
  const absl::Status status = InAThread([&, port = FreePort()]() -> absl::Status {
    if (!NameHosts(hosts)) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(ForbidIpv6());
    return ConnectStatus("both.test", port);
  });
  if (status.ok()) GTEST_SKIP() << "needs a mount namespace";
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("connect: refused"));
}

}  // namespace
}  // namespace muster
