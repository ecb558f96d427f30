#include "launcher/transport/known_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two keys made by ssh-keygen, with the fingerprints it printed for them.
const HostKey kFirst{"ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIPUmSiKSKLKtKlAB2MHDiDMOqrM1zBaK2obd+oQJGx6K"};
const HostKey kSecond{"ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIBsK+Cq0+47cLJPgckjVWli2Gnl2Imvm3NsjxWTcjQ+7"};
constexpr char kFirstFingerprint[] = "SHA256:KPjAY6GmijOD5PtBoD1ve+REsdxUY6gWHjoG5DIRNJY";

KnownHosts Parsed(const std::string& text) {
  auto known = KnownHosts::Parse(text, "known_hosts");
  EXPECT_TRUE(known.ok()) << known.status();
  return known.value_or(KnownHosts());
}

std::string Line(const std::string& names, const HostKey& key) {
  return names + " " + key.type + " " + key.base64;
}

TEST(HostKey, FingerprintIsTheOneSshPrints) { EXPECT_EQ(kFirst.Fingerprint(), kFirstFingerprint); }

TEST(HostKey, BadBase64HasNoFingerprint) {
  EXPECT_EQ((HostKey{"ssh-ed25519", "AAA"}).Fingerprint(), "");
  EXPECT_EQ((HostKey{"ssh-ed25519", "%%%%"}).Fingerprint(), "");
}

TEST(KnownHosts, ChecksUnderTheNameOnly) {
  const KnownHosts known =
      Parsed("# comment\n\n" + Line("a,b", kFirst) + " made by hand\r\n" + Line("c", kSecond));
  EXPECT_EQ(known.Check("a", kFirst), HostKeyVerdict::kKnown);
  EXPECT_EQ(known.Check("b", kFirst), HostKeyVerdict::kKnown);
  EXPECT_EQ(known.Check("a", kSecond), HostKeyVerdict::kChanged);
  EXPECT_EQ(known.Check("d", kFirst), HostKeyVerdict::kUnknown);
  EXPECT_EQ(known.Check("A", kFirst), HostKeyVerdict::kKnown);
  EXPECT_EQ(known.Check("A", kSecond), HostKeyVerdict::kChanged);
  EXPECT_THAT(known.KeysOf("c"), ElementsAre(kSecond));
}

// As ssh-keygen hashes them.
TEST(KnownHosts, NamesMayBeHashed) {
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "known_hosts").string();
  ASSERT_TRUE(WriteFileAtomically(path, Line("gpu-01", kFirst) + "\n" + Line("Gpu-02", kSecond) + "\n").ok());
  const auto hashed = RunCommand({.argv = {"ssh-keygen", "-q", "-H", "-f", path}}, Now() + seconds(30));
  ASSERT_TRUE(hashed.ok() && hashed->exit_code == 0) << hashed->stderr_text;
  ASSERT_THAT(*ReadFile(path), Not(AnyOf(HasSubstr("gpu"), HasSubstr("Gpu"))));
  const auto known = KnownHosts::Load(path);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->Check("gpu-01", kFirst), HostKeyVerdict::kKnown);
  EXPECT_EQ(known->Check("gpu-01", kSecond), HostKeyVerdict::kChanged);
  EXPECT_EQ(known->Check("gpu-03", kFirst), HostKeyVerdict::kUnknown);
  for (const char* name : {"gpu-02", "Gpu-02"})
    EXPECT_THAT(known->KeysOf(name), ElementsAre(kSecond)) << name;
  // Those that are accepted later stand beside them.
  EXPECT_TRUE(AcceptHostKey(path, "gpu-03", kFirst, Now() + seconds(30)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AcceptHostKey(path, "gpu-02", kFirst, Now() + seconds(30))));
  EXPECT_EQ(KnownHosts::Load(path)->Check("gpu-03", kFirst), HostKeyVerdict::kKnown);
}

TEST(KnownHosts, AKeyOfAnotherTypeIsAChange) {
  const KnownHosts known = Parsed(Line("a", kFirst));
  EXPECT_EQ(known.Check("a", {"ssh-rsa", kSecond.base64}), HostKeyVerdict::kChanged);
}

TEST(KnownHosts, LinesItCannotHonourAreErrorsWithTheirPlace) {
  for (const std::string& bad :
       {std::string("a ssh-ed25519"), std::string("a ssh-ed25519 !!!!"), Line("|1|x=|y=", kFirst),
        Line("|1|AAAA|AAAA", kFirst), Line("|1|AAAA", kFirst), Line("gpu-*", kFirst), Line("!a", kFirst),
        "@revoked " + Line("a", kFirst), "@cert-authority " + Line("*", kFirst)}) {
    const auto known = KnownHosts::Parse("\n" + bad + "\n", "known_hosts");
    EXPECT_TRUE(absl::IsInvalidArgument(known.status())) << bad;
    EXPECT_THAT(std::string(known.status().message()), HasSubstr("known_hosts:2: ")) << bad;
  }
}

class AcceptHostKeyTest : public testing::Test {
 protected:
  absl::Status Accept(const std::string& name, const HostKey& key) {
    return AcceptHostKey(path_, name, key, Now() + seconds(30));
  }
  KnownHosts Loaded() {
    auto known = KnownHosts::Load(path_);
    EXPECT_TRUE(known.ok()) << known.status();
    return known.value_or(KnownHosts());
  }

  TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_.path() / "new" / "known_hosts";
};

TEST_F(AcceptHostKeyTest, AppendsToWhatIsThere) {
  EXPECT_THAT(Loaded().KeysOf("a"), IsEmpty());
  ASSERT_TRUE(Accept("a", kFirst).ok());
  ASSERT_TRUE(WriteFileAtomically(path_, "# mine\n" + Line("a", kFirst)).ok());
  ASSERT_TRUE(Accept("b", kSecond).ok());
  EXPECT_EQ(*ReadFile(path_), "# mine\n" + Line("a", kFirst) + "\n" + Line("b", kSecond) + "\n");
}

TEST_F(AcceptHostKeyTest, TheSameKeyAgainChangesNothing) {
  ASSERT_TRUE(Accept("a", kFirst).ok());
  ASSERT_TRUE(Accept("a", kFirst).ok());
  EXPECT_THAT(Loaded().KeysOf("a"), ElementsAre(kFirst));
}

TEST_F(AcceptHostKeyTest, NeverReplacesAKey) {
  ASSERT_TRUE(Accept("a", kFirst).ok());
  const absl::Status status = Accept("a", kSecond);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kFirstFingerprint));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kSecond.Fingerprint()));
  EXPECT_THAT(Loaded().KeysOf("a"), ElementsAre(kFirst));
}

TEST_F(AcceptHostKeyTest, RefusesNamesThatWouldMeanSomethingElseInTheFile) {
  for (const char* name : {"", "a b", "a,b", "*", "#a", "@revoked", "a\nb"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Accept(name, kFirst))) << name;
  }
}

TEST_F(AcceptHostKeyTest, ConcurrentAcceptsLoseNothing) {
  constexpr int kHosts = 16;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kHosts; ++i) {
      threads.emplace_back([this, i] { EXPECT_TRUE(Accept("host-" + std::to_string(i), kFirst).ok()); });
    }
  }
  const KnownHosts known = Loaded();
  for (int i = 0; i < kHosts; ++i) {
    EXPECT_THAT(known.KeysOf("host-" + std::to_string(i)), ElementsAre(kFirst)) << i;
  }
}

}  // namespace
}  // namespace muster
