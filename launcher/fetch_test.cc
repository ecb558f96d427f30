#include "launcher/fetch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/gzip.h"
#include "base/random.h"
#include "base/sha256.h"
#include "tests/support/fault_hosts.h"
#include "tests/support/free_port.h"
#include "tests/support/mirror.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Nothing that packs well: what is left of the packed file has to be cut more than once.
std::string Noise(uint64_t seed, size_t size) {
  RandomStream random(seed);
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(random.Next());
  return bytes;
}

class FetchTest : public ::testing::Test {
 protected:
  FetchTest() {
    Write("mirror/first.gz", Gzip(first_));
    Write("mirror/second.csv", second_);
  }

  // `ways`: of mirror.py, one mirror for each; or whole URLs.
  absl::Status Fetch(const std::vector<std::string>& ways) {
    FetchOptions options{.say = [this](const std::string& line) { said_ += line + "\n"; }};
    for (const std::string& way : ways) {
      options.mirrors.push_back(way.find(':') == std::string::npos ? mirror_.url() + way : way);
    }
    options.download.stall_timeout = std::chrono::seconds(1);
    said_.clear();
    return FetchDataSet(set_, folder_.path() / "data", options);
  }

  void ExpectFetched() {
    EXPECT_EQ(Text("data/set/first.gz"), Gzip(first_));
    EXPECT_EQ(Text("data/set/second.csv"), second_);
    EXPECT_THAT(Names(), ElementsAre("first.gz", "second.csv"));
    EXPECT_TRUE(HasDataSet(folder_.path() / "data", set_));
  }

  std::vector<std::string> TakeRequests() { return mirror_.TakeRequests(); }
  std::vector<std::string> Names() const {
    return ListDirectory(Path("data/set")).value_or(std::vector<std::string>());
  }
  void Write(const std::string& name, const std::string& bytes) const {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(Path(name)).parent_path()).ok());
    ASSERT_TRUE(WriteFileAtomically(Path(name), bytes).ok());
  }
  std::string Text(const std::string& name) const { return ReadFile(Path(name)).value_or(""); }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  const std::string first_ = Noise(1, 100'000);
  const std::string second_ = Noise(2, 5'000);
  const std::string packed_size_ = std::to_string(Gzip(first_).size());
  const DataSet set_{.name = "set",
                     .files = {{"first", Sha256Hex(first_)}, {"second.csv", Sha256Hex(second_), false}}};
  TemporaryDirectory folder_;
  Mirror mirror_{Path("mirror")};
  std::string said_;
};

TEST_F(FetchTest, FetchesOnce) {
  ASSERT_TRUE(Fetch({"ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(TakeRequests(), ElementsAre("/ok/first.gz 0", "/ok/second.csv 0"));
  EXPECT_EQ(said_, "first.gz: " + packed_size_ + " bytes from " + mirror_.url() + "ok/\n" +
                       "second.csv: 5000 bytes from " + mirror_.url() + "ok/\n");

  ASSERT_TRUE(Fetch({"ok/"}).ok()) << said_;
  ExpectFetched();
  EXPECT_EQ(said_, Path("data/set/first.gz") + ": already there\n" + Path("data/set/second.csv") +
                       ": already there\n");
  EXPECT_THAT(TakeRequests(), IsEmpty());
}

TEST_F(FetchTest, KeepsAFileThatIsThereUnpacked) {
  Write("data/set/first", first_);
  ASSERT_TRUE(Fetch({"ok"}).ok()) << said_;
  EXPECT_THAT(Names(), ElementsAre("first", "second.csv"));
  EXPECT_THAT(TakeRequests(), ElementsAre("/ok/second.csv 0"));
}

TEST_F(FetchTest, GoesOnWhereAnotherFetchWasCutOff) {
  Write("data/set/first.gz.part", Gzip(first_).substr(0, 70'000));
  Write("data/set/second.csv.part", second_);  // it was killed just before the last step
  ASSERT_TRUE(Fetch({"ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(TakeRequests(), ElementsAre("/ok/first.gz 70000", "/ok/second.csv 5000"));
}

TEST_F(FetchTest, GoesOnAtTheNextMirrorWhereOneCutsTheConnection) {
  ASSERT_TRUE(Fetch({"cut", "ok"}).ok()) << said_;
  ExpectFetched();
  const std::string half = std::to_string(Gzip(first_).size() / 2);
  EXPECT_THAT(TakeRequests(), ElementsAre("/cut/first.gz 0", "/ok/first.gz " + half, "/cut/second.csv 0",
                                          "/ok/second.csv 2500"));
  EXPECT_THAT(said_, HasSubstr("cut/first.gz: "));
}

TEST_F(FetchTest, KeepsWhatCameBeforeAllMirrorsWereCut) {
  const absl::Status status = Fetch({"cut"});
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Names(), ElementsAre("first.gz.part"));
  const size_t size = Gzip(first_).size(), left = size / 8 + (size % 8 != 0);
  EXPECT_THAT(TakeRequests(), ::testing::SizeIs(3)) << "three times, because bytes came each time";
  EXPECT_EQ(Text("data/set/first.gz.part"), Gzip(first_).substr(0, size - left));
  ASSERT_TRUE(Fetch({"ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_EQ(TakeRequests()[0], "/ok/first.gz " + std::to_string(size - left));
}

TEST_F(FetchTest, StartsAgainWhereAMirrorHasNoRanges) {
  Write("data/set/first.gz.part", Gzip(first_).substr(0, 70'000));
  ASSERT_TRUE(Fetch({"plain"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(TakeRequests(),
              ElementsAre("/plain/first.gz 70000", "/plain/first.gz 0", "/plain/second.csv 0"));
}

TEST_F(FetchTest, FollowsRedirections) {
  ASSERT_TRUE(Fetch({"moved"}).ok()) << said_;
  ExpectFetched();
}

TEST_F(FetchTest, GoesToTheNextMirrorFromOneThatLacksTheFile) {
  ASSERT_TRUE(Fetch({"missing", "ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(said_, HasSubstr("missing/first.gz: the server answers with status 404\n"));
}

TEST_F(FetchTest, NamesEveryMirrorAndItsFailure) {
  const std::string closed = "http://" + FreeAddress();
  const absl::Status status = Fetch({"missing", closed});
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(std::string(status.message()),
              ::testing::StartsWith("first.gz could not be fetched:\n  " + mirror_.url() +
                                    "missing/first.gz: the server answers with status 404\n  " + closed +
                                    "/first.gz: "));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FetchTest, RemovesWhatHasAWrongHashAndGivesBoth) {
  // Of noise that was not packed, or gzip itself would find the damage.
  const DataSet set{.name = "set", .files = {{"second.csv", Sha256Hex(second_), false}}};
  std::string other = second_;
  other.back() ^= 1;
  const auto fetch = [&](const std::vector<std::string>& ways) {
    FetchOptions options{.say = [this](const std::string& line) { said_ += line + "\n"; }};
    for (const std::string& way : ways) options.mirrors.push_back(mirror_.url() + way);
    said_.clear();
    return FetchDataSet(set, folder_.path() / "data", options);
  };
  const absl::Status status = fetch({"wrong"});
  EXPECT_EQ(ExitCodeFor(status), 1);
  const std::string sentence = mirror_.url() + "wrong/second.csv: its SHA-256 is " + Sha256Hex(other) +
                               ", and that of the set's second.csv is " + Sha256Hex(second_) + "; removed";
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
  EXPECT_THAT(Names(), IsEmpty());

  ASSERT_TRUE(fetch({"wrong", "ok"}).ok()) << said_;
  EXPECT_THAT(said_, HasSubstr(sentence));
  EXPECT_EQ(Text("data/set/second.csv"), second_);
}

TEST_F(FetchTest, TakesNoOtherBytes) {
  const absl::Status damaged = Fetch({"wrong"});
  EXPECT_EQ(ExitCodeFor(damaged), 1);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("damaged gzip data"));
  const absl::Status page = Fetch({"page"});
  EXPECT_EQ(ExitCodeFor(page), 1) << "a network that wants a login";
  EXPECT_THAT(std::string(page.message()), HasSubstr("page/first.gz: its SHA-256 is "));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FetchTest, StartsAgainWhereAPartWasOfAnotherFile) {
  Write("data/set/first.gz.part", Noise(3, 1000));
  Write("data/set/second.csv.part", Noise(4, 9000));  // longer than the file
  ASSERT_TRUE(Fetch({"ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(TakeRequests(),
              ElementsAre("/ok/first.gz 1000", "/ok/first.gz 0", "/ok/second.csv 9000", "/ok/second.csv 0"));
}

TEST_F(FetchTest, OverwritesNoFileOfOthers) {
  Write("data/set/second.csv", "mine");
  const absl::Status status = Fetch({"ok"});
  EXPECT_EQ(ExitCodeFor(status), 1);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(Path("data/set/second.csv") + " is there already and is something else: its SHA-256 is " +
                Sha256Hex("mine") + ", and that of the set's second.csv is " + Sha256Hex(second_)));
  EXPECT_EQ(Text("data/set/second.csv"), "mine");
}

TEST_F(FetchTest, GivesUpOnAMirrorThatCannotBeReachedOnceForAllFiles) {
  const std::string closed = "http://" + FreeAddress() + "/";
  ASSERT_TRUE(Fetch({closed, "ok"}).ok()) << said_;
  ExpectFetched();
  EXPECT_THAT(said_, HasSubstr(closed + "first.gz: "));
  EXPECT_THAT(said_, ::testing::Not(HasSubstr(closed + "second.csv")));
}

TEST_F(FetchTest, GivesUpOnAMirrorThatSaysNothing) {
  SilentHost silent;
  const absl::Status status = Fetch({absl::StrFormat("http://127.0.0.1:%d", silent.port())});
  EXPECT_EQ(ExitCodeFor(status), 69) << status;
}

TEST_F(FetchTest, RefusesMirrorsThatAreNoUrls) {
  for (const std::string url :
       {"ftp://127.0.0.1/", "file:///etc", "127.0.0.1:80", "http://", "http://a b/"}) {
    const absl::Status status = Fetch({"ok", url});
    EXPECT_EQ(ExitCodeFor(status), 2) << url;
    EXPECT_THAT(std::string(status.message()),
                ::testing::StartsWith("--mirror " + url + ": expected a URL that begins with http://"));
  }
  EXPECT_THAT(TakeRequests(), IsEmpty());
}

TEST_F(FetchTest, TwoAtATimeAreRefused) {
  Write("data/set/first.gz.part", "");
  const UniqueFd other(::open(Path("data/set/first.gz.part").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  const absl::Status status = Fetch({"ok"});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("first.gz.part: another process is fetching it; "
                        "wait until that one has ended, then call this again"));
  EXPECT_THAT(TakeRequests(), IsEmpty());
}

TEST_F(FetchTest, KeepsWhatAnotherProcessFinishedBeforeTheLock) {
  // To open the .part makes the finished file, as another process might between the first look and the lock.
  ASSERT_TRUE(MakeDirectories(Path("data/set")).ok());
  std::filesystem::create_symlink("empty", Path("data/set/empty.part"));
  const DataSet set{.name = "set", .files = {{"empty", Sha256Hex(""), false}}};
  std::string said;
  const FetchOptions options{.mirrors = {mirror_.url() + "ok"},
                             .say = [&](const std::string& line) { said += line + "\n"; }};
  const absl::Status status = FetchDataSet(set, folder_.path() / "data", options);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(said, Path("data/set/empty") + ": already there\n");
  EXPECT_THAT(Names(), ElementsAre("empty"));
  EXPECT_THAT(TakeRequests(), IsEmpty());
}

TEST_F(FetchTest, GivesUpOnAFileThatIsTooLarge) {
  FetchOptions options{.mirrors = {mirror_.url() + "ok"}};
  options.download.max_bytes = 50'000;
  const absl::Status status = FetchDataSet(set_, folder_.path() / "data", options);
  EXPECT_EQ(ExitCodeFor(status), 1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("larger than the 50000 bytes allowed"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FetchTest, ReportsProgressOfTheWholeFile) {
  const std::string packed = Gzip(first_);
  Write("data/set/first.gz.part", packed.substr(0, 70'000));
  uint64_t last_bytes = 0, last_total = 0;
  FetchOptions options{.mirrors = {mirror_.url() + "ok"},
                       .progress = [&](const std::string& file, uint64_t bytes, uint64_t total) {
                         if (file != "first.gz") return;
                         last_bytes = bytes;
                         last_total = total;
                       }};
  ASSERT_TRUE(FetchDataSet(set_, folder_.path() / "data", options).ok());
  EXPECT_EQ(last_bytes, packed.size());
  EXPECT_EQ(last_total, packed.size());
}

TEST(DataCache, IsWhereTheVariablesSay) {
  EXPECT_EQ(DataCache("", "", "/home/me"), "/home/me/.cache/muster/data");
  EXPECT_EQ(DataCache("", "/cache", "/home/me"), "/cache/muster/data");
  EXPECT_EQ(DataCache("", "relative", "/home/me"), "/home/me/.cache/muster/data");
  EXPECT_EQ(DataCache("/mine", "/cache", "/home/me"), "/mine/data");
}

TEST(DataSets, AreThoseThatTheModelsTrainOn) {
  EXPECT_EQ(DataSetOfModel("mnist_softmax").name, "mnist");
  EXPECT_EQ(DataSetOfModel("wide_deep").name, "census");
  EXPECT_EQ(FindDataSet("cifar"), nullptr);
  for (const DataSet& set : DataSets()) {
    EXPECT_EQ(set.mirrors.size(), 2u);
    for (const DataFile& file : set.files) EXPECT_EQ(file.sha256.size(), 64u);
  }
}

}  // namespace
}  // namespace muster
