#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "base/archive.h"
#include "base/clock.h"
#include "base/command_line.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/process.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/stdout.h"
#include "tests/support/eventually.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(Status, ExitCodesAreTheDocumentedOnes) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(InvalidArgument("x")), 2);
  EXPECT_EQ(ExitCodeFor(Unavailable("x")), 69);
  EXPECT_EQ(ExitCodeFor(DeadlineExceeded("x")), 124);
  EXPECT_EQ(ExitCodeFor(Cancelled("x")), 130);
  EXPECT_EQ(ExitCodeFor(Internal("x")), 1);
}

TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  std::string zeros(32, '\0'), ones(32, '\xff'), ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  EXPECT_EQ(Crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), 32), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(ascending.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c(ascending.data() + 7, 25, Crc32c(ascending.data(), 7)), 0x46dd794eu);
}

TEST(Sha256, MatchesFips180) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(RandomStream, IsAPureFunctionOfSeedAndStream) {
  RandomStream a(7, 3), b(7, 3), c(7, 4), d(8, 3);
  const uint64_t first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
  EXPECT_NE(first, d.Next());
}

TEST(RandomStream, BoundedDrawsAreInRangeAndCoverIt) {
  RandomStream random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random.NextBelow(10);
    ASSERT_LT(value, 10u);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST(File, AtomicWriteReplacesAndLeavesNothingBehind) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "f";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_EQ(ListDirectory(folder.path())->size(), 1u);
}

TEST(File, AtomicWriteFollowsASymbolicLink) {
  TemporaryDirectory folder;
  const auto link = folder.path() / "link", target = folder.path() / "below/target";
  ASSERT_TRUE(MakeDirectories(folder.path() / "below").ok());
  std::filesystem::create_symlink("second", link);  // relative, by way of another one
  std::filesystem::create_symlink(target, folder.path() / "second");
  for (const std::string text : {"made", "replaced"}) {  // the links dangle at first
    ASSERT_TRUE(WriteFileAtomically(link, text).ok());
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(target)));
    EXPECT_EQ(ReadFile(target).value_or("no file"), text);
  }
  EXPECT_EQ(ListDirectory(folder.path())->size(), 3u);
  EXPECT_EQ(ListDirectory(folder.path() / "below")->size(), 1u);

  std::filesystem::create_symlink("loop", folder.path() / "loop");
  EXPECT_THAT(std::string(WriteFileAtomically(folder.path() / "loop", "x").message()), HasSubstr("loop"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "loop"));
}

TEST(File, AtomicWriteLeavesAPipeAndAFolderWhatTheyAre) {
  TemporaryDirectory folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  const absl::Status status = WriteFileAtomically(pipe, "through");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  char buffer[16] = {};
  EXPECT_EQ(::read(reader.get(), buffer, sizeof(buffer)), 7);

  EXPECT_THAT(std::string(WriteFileAtomically(folder.path(), "x").message()), HasSubstr("Is a directory"));
  EXPECT_EQ(ListDirectory(folder.path())->size(), 1u);
}

TEST(File, AtomicWriteToAFullDeviceFailsAndLeavesIt) {
  TemporaryDirectory folder;
  const auto full = folder.path() / "full", link = folder.path() / "link";
  // As /dev/full, which this must not be tried on.
  if (::mknod(full.c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0) GTEST_SKIP() << "only root makes devices";
  if (!UniqueFd(::open(full.c_str(), O_WRONLY | O_CLOEXEC)).valid())
    GTEST_SKIP() << "devices do not open here";
  std::filesystem::create_symlink("full", link);
  for (const auto& path : {full, link}) {
    const absl::Status status = WriteFileAtomically(path, "x");
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(path.string()));
    EXPECT_TRUE(std::filesystem::is_character_file(full));
  }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ListDirectory(folder.path())->size(), 2u);
}

// In a process of its own, with `fd` as its stdout: prints, and ends with 0 where nothing was lost.
void PrintTo(int fd) {
  ::signal(SIGPIPE, SIG_IGN);
  ::dup2(fd, STDOUT_FILENO);
  PrintToStdout("text");
  PrintToStdout("more");
  const absl::Status status = StdoutStatus();
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::_Exit(ExitCodeFor(status));
}

TEST(StdoutDeathTest, AFullDiskIsAnError) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  EXPECT_EXIT(PrintTo(full.get()), testing::ExitedWithCode(1), "stdout: No space left on device");
}

TEST(StdoutDeathTest, AReaderThatIsGoneIsNone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  EXPECT_EXIT(PrintTo(writer.get()), testing::ExitedWithCode(0), "");
  reader.reset();
  EXPECT_EXIT(PrintTo(writer.get()), testing::ExitedWithCode(0), "");
}

TEST(File, TwoWhoRemoveATreeBothFindItRemoved) {
  TemporaryDirectory folder;
  const auto tree = folder.path() / "tree";
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 50; ++j) {
      const auto below = tree / std::to_string(j) / "below";
      ASSERT_TRUE(MakeDirectories(below).ok());
      for (const char* name : {"a", "b", "c"})
        ASSERT_TRUE(ReplaceFile(below / name, "", 0644, Sync::kNo).ok());
    }
    std::barrier together(2);
    std::array<absl::Status, 2> removed;
    {
      std::vector<std::jthread> threads;
      for (absl::Status& status : removed) {
        threads.emplace_back([&] {
          together.arrive_and_wait();
          status = RemoveTree(tree);
        });
      }
    }
    for (const absl::Status& status : removed) ASSERT_TRUE(status.ok()) << status;
    ASSERT_FALSE(std::filesystem::exists(tree));
  }
}

TEST(File, ReadRefusesMoreThanAllowedAndNamesThePath) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "big";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(1000, 'x')).ok());
  EXPECT_THAT(std::string(ReadFile(path, 999).status().message()), HasSubstr("big"));
  EXPECT_EQ(ReadFile(path, 1000)->size(), 1000u);
  EXPECT_EQ(ReadFile(folder.path() / "none").status().code(), absl::StatusCode::kNotFound);
}

TEST(Process, ReportsExitCodesSignalsAndOutput) {
  const TimePoint deadline = Now() + seconds(20);
  auto result = RunCommand({.argv = {"sh", "-c", "echo out; echo err >&2; exit 7"}}, deadline);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 7);
  EXPECT_EQ(result->stdout_text, "out\n");
  EXPECT_EQ(result->stderr_text, "err\n");
  EXPECT_EQ(RunCommand({.argv = {"sh", "-c", "kill -9 $$"}}, deadline)->exit_code, 128 + SIGKILL);
}

// Whose output is always ready.
TEST(Process, WhatNeverStopsPrintingEndsToo) {
  const auto slow = RunCommand({.argv = {"sh", "-c", "while :; do echo again; done"}},
                               Now() + std::chrono::milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.status())) << slow.status();
  const auto fast = RunCommand({.argv = {"yes"}}, Now() + std::chrono::minutes(5));
  EXPECT_TRUE(absl::IsResourceExhausted(fast.status())) << fast.status();
  EXPECT_LT(fast.status().message().size(), 10'000u);
}

TEST(Process, AGroupOfItsOwnEndsWithIt) {
  TemporaryDirectory folder;
  const std::string file = (folder.path() / "pid").string();
  const auto command =
      RunCommand({.argv = {"sh", "-c", "sleep 1000 & echo $! > " + file + "; wait"}, .new_session = true},
                 Now() + seconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(command.status())) << command.status();
  const auto pid = static_cast<pid_t>(std::strtol(ReadFile(file).value_or("").c_str(), nullptr, 10));
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(Eventually([pid] {
    const auto stat = ReadProcessStat(pid);
    return !stat.ok() || stat->state == 'Z';
  }));
}

TEST(Process, PassesArgumentsAndEnvironmentByteForByte) {
  const std::string strange = "a b'c\"d\n\xc3\xa4$HOME*", large(100'000, 'x');
  const auto result = RunCommand(
      {.argv = {"sh", "-c", "printf %s \"$1$STRANGE$LARGE\"", "sh", strange},
       .environment = std::vector<std::string>{"STRANGE=" + strange, "LARGE=" + large, "PATH=/usr/bin:/bin"}},
      Now() + seconds(20));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->stdout_text, strange + strange + large);
}

TEST(Process, AProgramThatDoesNotExistIsAnErrorOfSpawn) {
  const auto process = Process::Spawn({.argv = {"/no/such/program"}});
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/no/such/program"));
}

TEST(Process, ADeadlineEndsTheWaitAndDestructionEndsTheChild) {
  pid_t pid;
  {
    auto process = Process::Spawn({.argv = {"sleep", "1000"}});
    ASSERT_TRUE(process.ok());
    pid = process->pid();
    EXPECT_EQ(process->Wait(Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(Archive, RoundTripsAndIsTheSameBytesEachTime) {
  TemporaryDirectory from, to;
  ASSERT_TRUE(MakeDirectories(from.path() / "bin").ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "bin/program", std::string(1000, 'p'), 0755).ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "empty", "").ok());
  ASSERT_EQ(::symlink("bin/program", (from.path() / "link").c_str()), 0);
  const auto archive = PackDirectory(from.path());
  ASSERT_TRUE(archive.ok()) << archive.status();
  ASSERT_TRUE(UnpackArchive(*archive, to.path()).ok());
  EXPECT_EQ(*ReadFile(to.path() / "link"), std::string(1000, 'p'));
  EXPECT_EQ(::access((to.path() / "bin/program").c_str(), X_OK), 0);
  EXPECT_EQ(*PackDirectory(to.path()), *archive);
}

TEST(Archive, UnpacksItInWhateverPiecesItComes) {
  TemporaryDirectory from;
  std::filesystem::create_directories(from.path() / "folder");
  ASSERT_TRUE(WriteFileAtomically(from.path() / "folder/text", std::string(1500, 'x')).ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "none", "").ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "whole", std::string(512, 'y')).ok());
  const std::string archive = *PackDirectory(from.path());
  for (const size_t piece : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, archive.size()}) {
    TemporaryDirectory to;
    Unpacker unpacker(to.path());
    for (size_t begin = 0; begin < archive.size(); begin += piece) {
      EXPECT_EQ(unpacker.Finish().code(),
                begin > archive.size() - 1024 + 511 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
      ASSERT_TRUE(unpacker.Take(std::string_view(archive).substr(begin, piece)).ok()) << piece;
    }
    EXPECT_TRUE(unpacker.Finish().ok());
    EXPECT_EQ(*PackDirectory(to.path()), archive) << piece;
  }
}

TEST(Archive, SystemTarReadsIt) {
  TemporaryDirectory from, to;
  ASSERT_TRUE(WriteFileAtomically(from.path() / "a", "hello").ok());
  const auto archive_path = to.path() / "x.tar";
  ASSERT_TRUE(WriteFileAtomically(archive_path, *PackDirectory(from.path())).ok());
  const auto listing = RunCommand({.argv = {"tar", "-xOf", archive_path.string(), "a"}}, Now() + seconds(20));
  ASSERT_TRUE(listing.ok());
  EXPECT_EQ(listing->stdout_text, "hello");
}

// Beyond 100 bytes, where they need a part of their own in the archive, up to what that has room for.
TEST(Archive, LongNamesTravel) {
  TemporaryDirectory from, to, other;
  const std::string folders = "a/" + std::string(75, 'b') + "/" + std::string(76, 'c');  // 154 bytes
  ASSERT_TRUE(MakeDirectories(from.path() / folders).ok());
  const std::string longest = folders + "/" + std::string(100, 'd');
  ASSERT_TRUE(WriteFileAtomically(from.path() / (folders + "/short"), "short").ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "e", "e").ok());
  std::filesystem::rename(from.path() / "e", from.path() / longest);
  const auto archive = PackDirectory(from.path());
  ASSERT_TRUE(archive.ok()) << archive.status();
  ASSERT_TRUE(UnpackArchive(*archive, to.path()).ok());
  EXPECT_EQ(*ReadFile(to.path() / longest), "e");
  EXPECT_EQ(*PackDirectory(to.path()), *archive);
  ASSERT_TRUE(WriteFileAtomically(other.path() / "x.tar", *archive).ok());
  const auto read =
      RunCommand({.argv = {"tar", "-xOf", (other.path() / "x.tar").string(), longest}}, Now() + seconds(20));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->stdout_text, "e") << read->stderr_text;

  TemporaryDirectory flat;
  ASSERT_TRUE(WriteFileAtomically(flat.path() / std::string(80, 'f'), "f").ok());
  std::filesystem::rename(flat.path() / std::string(80, 'f'), flat.path() / std::string(100, 'f'));
  EXPECT_TRUE(PackDirectory(flat.path(), {.into = "mnist"}).ok());
  EXPECT_THAT(std::string(PackDirectory(from.path(), {.into = "i"}).status().message()),
              HasSubstr(longest + ": its path from "));
  std::filesystem::rename(from.path() / longest, from.path() / (longest + "d"));
  EXPECT_TRUE(absl::IsInvalidArgument(PackDirectory(from.path()).status()));
}

// Whatever is wrong with the rest.
TEST(Archive, WhatIsNotIncludedIsNotLookedAt) {
  TemporaryDirectory from, to;
  for (const char* folder : {"in/deep", "out/deep", "into"})
    ASSERT_TRUE(MakeDirectories(from.path() / folder).ok());
  ASSERT_TRUE(WriteFileAtomically(from.path() / "in/deep/file", "1").ok());
  ASSERT_EQ(::symlink("/usr/share", (from.path() / "out/link").c_str()), 0);
  ASSERT_EQ(::symlink("/usr/share", (from.path() / "link").c_str()), 0);
  const auto archive = PackDirectory(from.path(), {.include = [](std::string_view name) {
                                       return name.starts_with("in/") || name == "in";
                                     }});
  ASSERT_TRUE(archive.ok()) << archive.status();
  ASSERT_TRUE(UnpackArchive(*archive, to.path()).ok());
  EXPECT_THAT(*ListDirectory(to.path()), testing::ElementsAre("in"));
  EXPECT_EQ(*ReadFile(to.path() / "in/deep/file"), "1");
  // The same as what is packed by itself into a folder of that name.
  EXPECT_EQ(*PackDirectory(from.path() / "in", {.into = "in"}), *archive);
}

// Each of them stays inside by its text, and they lead one folder higher each.
TEST(Archive, RefusesLinksThatTogetherLeadOut) {
  TemporaryDirectory from, to, out, plain;
  const auto link = [&](const std::string& target, const char* name) {
    ASSERT_EQ(::symlink(target.c_str(), (from.path() / name).c_str()), 0);
  };
  ASSERT_TRUE(MakeDirectories(from.path() / "d").ok());
  link("..", "d/a");
  link("../d/a/..", "d/b");
  EXPECT_TRUE(absl::IsInvalidArgument(PackDirectory(from.path()).status()));
  link("d/b/is-not-there", "c");
  ASSERT_TRUE(std::filesystem::remove(from.path() / "d/b"));
  link("is-not-there/either", "e");
  link("e/f", "f");  // leads nowhere
  link("g", "g");
  EXPECT_TRUE(PackDirectory(from.path()).ok());
  link("../d/a/..", "d/b");

  const auto packed = RunCommand(
      {.argv = {"tar", "--format=ustar", "--sort=name", "-C", from.path().string(), "-cf", "-", "c", "d"}},
      Now() + seconds(20));
  ASSERT_TRUE(packed.ok()) << packed.status();
  Unpacker unpacker(to.path());
  ASSERT_TRUE(unpacker.Take(packed->stdout_text).ok());
  EXPECT_EQ(unpacker.Finish().code(), absl::StatusCode::kDataLoss);

  Unpacker without_links(plain.path(), Unpacker::Links::kNone);
  EXPECT_EQ(without_links.Take(packed->stdout_text).code(), absl::StatusCode::kDataLoss);
}

TEST(Archive, RefusesEveryTruncationAndAFlippedHeader) {
  TemporaryDirectory from;
  ASSERT_TRUE(WriteFileAtomically(from.path() / "a", std::string(700, 'a')).ok());
  std::string archive = *PackDirectory(from.path());
  for (size_t size = 0; size < archive.size() - 1024 + 1; size += 100) {
    TemporaryDirectory to;
    EXPECT_EQ(UnpackArchive(std::string_view(archive).substr(0, size), to.path()).code(),
              absl::StatusCode::kDataLoss);
  }
  archive[3] ^= 1;
  TemporaryDirectory to;
  EXPECT_EQ(UnpackArchive(archive, to.path()).code(), absl::StatusCode::kDataLoss);
}

// As system tar writes them, which takes any name.
TEST(Archive, WritesNowhereElse) {
  const auto unpack = [](const std::string& script) {
    TemporaryDirectory from, to;
    const std::string make = "cd " + from.path().string() + " && " + script;
    const auto made = RunCommand({.argv = {"sh", "-c", make}}, Now() + seconds(20));
    MUSTER_CHECK(made.ok() && made->exit_code == 0, made->stderr_text);
    std::filesystem::create_directories(to.path() / "outer/inner");
    const absl::Status status = UnpackArchive(made->stdout_text, to.path() / "outer/inner");
    // Nothing beside the folder.
    EXPECT_THAT(*ListDirectory(to.path() / "outer"), testing::ElementsAre("inner")) << script;
    EXPECT_THAT(*ListDirectory(to.path()), testing::ElementsAre("outer")) << script;
    return status;
  };
  const std::string tar = "tar --format=ustar -cPf - ";
  // Each link stays inside by its text; where they lead together does not.
  for (const auto& [script, message] : std::map<std::string, std::string>{
           {"mkdir d && ln -s .. d/up && ln -s d/up/.. x && touch e && " + tar +
                "--transform='s,^e$,x/e,' d x e",
            "below a link: x/e"},
           {"mkdir d && ln -s d a && touch f && " + tar + "--transform='s,^f$,a/f,' d a f",
            "below a link: a/f"},
           {"touch f && " + tar + "--transform='s,^f$,../f,' f", "outside its folder"},
           {"touch f g && " + tar + "--transform='s,^g$,f,' f g", "does not fit"},
           {"touch f g && " + tar + "--transform='s,^g$,f/g,' f g", "does not fit"}}) {
    const absl::Status status = unpack(script);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << script;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message)) << script;
  }
  EXPECT_TRUE(unpack("mkdir d && touch d/f && ln -s d a && " + tar + "d a").ok());
}

TEST(Nearest, FindsTypingErrorsAndOnlyThose) {
  const std::vector<std::string> keys = {"replicas", "strategy", "train", "data"};
  EXPECT_EQ(NearestWord("replcias", keys), "replicas");
  EXPECT_EQ(NearestWord("Train", keys), "train");
  EXPECT_EQ(NearestWord("zzzz", keys), "");
}

TEST(File, DataIsReadFromRegularFilesOnly) {
  const TemporaryDirectory folder;
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadRegularFile(pipe).status().message(), pipe.string() + ": no file, but a pipe or a device");
  EXPECT_EQ(ReadRegularFile("/dev/zero").status().message(), "/dev/zero: no file, but a pipe or a device");
  EXPECT_FALSE(ReadRegularFile(folder.path()).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadRegularFile(folder.path() / "none").status()));
  ASSERT_TRUE(WriteFileAtomically(folder.path() / "file", "text").ok());
  EXPECT_EQ(ReadRegularFile(folder.path() / "file").value_or(""), "text");
}

TEST(CommandLine, AnEmptyValueTakesNoOtherFlagsPlace) {
  EXPECT_EQ(CheckFlagValues(std::vector<std::string>{"--save_model=", "--seed=3"}).message(),
            "--save_model: expected a value, found \"\"");
  EXPECT_TRUE(CheckFlagValues(std::vector<std::string>{"--a=b=", "--a", "c=", "-a=", "--", "--b="}).ok());
}

TEST(CommandLine, AnUnexpectedArgumentIsNamedWithTheNearestFlagOfItsCommand) {
  const auto error = [](const std::string& arguments) {
    CLI::App app;
    app.add_flag("--seed");
    app.add_subcommand("run")->add_flag("--train_steps");
    EXPECT_THROW(app.parse(arguments), CLI::ExtrasError);
    return UnexpectedArgument(app);
  };
  EXPECT_EQ(error("run --trian_steps=3 x"),
            "unexpected argument --trian_steps=3; did you mean '--train_steps'?");
  EXPECT_EQ(error("--seeed"), "unexpected argument --seeed; did you mean '--seed'?");
  EXPECT_EQ(error("--elephant"), "unexpected argument --elephant");
  EXPECT_EQ(error("seed"), "unexpected argument seed");
}

TEST(Clock, AgesShowTheTwoLargestUnits) {
  EXPECT_EQ(FormatAge(std::chrono::milliseconds(850)), "850ms");
  EXPECT_EQ(FormatAge(seconds(12)), "12s");
  EXPECT_EQ(FormatAge(seconds(200)), "3m20s");
  EXPECT_EQ(FormatAge(seconds(7500)), "2h05m");
}

}  // namespace
}  // namespace muster
