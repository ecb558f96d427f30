#include "launcher/commands/driving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DrivingTest : public testing::Test {
 protected:
  static record::JobRecord Job(const std::string& id) {
    record::JobRecord record;
    record.set_version(kJobRecordVersion);
    record.set_id(id);
    record.set_name(id.substr(0, id.rfind('-')));
    record.mutable_cluster()->set_generation(1);
    record.mutable_cluster()->set_fixed(true);
    record.add_tasks()->set_id("worker:0");
    return record;
  }
  absl::StatusOr<std::optional<TakenJob>> TakeOver(const record::JobRecord& before) {
    JobPlan plan{.record = before};
    const Planning planning = [&](const record::JobRecord*) { return JobPlan{.record = before}; };
    return TakeOverJob(jobs_, before, planning, &plan);
  }

  const TemporaryDirectory folder_;
  const JobStore jobs_{folder_.path()};
};

// Who has driven it was ended before it could bring them.
TEST_F(DrivingTest, AJobWhoseResultsAreStillToBeFetchedIsNotRunAgain) {
  record::JobRecord before = Job("j-1");
  record::JobRecord succeeded = before;
  succeeded.mutable_cluster()->mutable_ending()->set_message("all tasks succeeded");
  ASSERT_TRUE(jobs_.Save(succeeded).ok());
  auto taken = TakeOver(before);
  ASSERT_TRUE(taken.ok() && *taken) << taken.status();
  EXPECT_TRUE((*taken)->planned.ok()) << "it has none: " << (*taken)->planned;
  EXPECT_FALSE(jobs_.Load("j-1")->cluster().has_ending());
  taken = absl::CancelledError();

  for (record::JobRecord* const record : {&before, &succeeded}) {
    record->mutable_tasks(0)->set_writes_results(true);
  }
  ASSERT_TRUE(jobs_.Save(succeeded).ok());
  taken = TakeOver(before);
  ASSERT_TRUE(taken.ok() && *taken) << taken.status();
  EXPECT_THAT(std::string((*taken)->planned.message()), HasSubstr("its results are still to be fetched"));
  EXPECT_TRUE(jobs_.Load("j-1")->cluster().has_ending());
  EXPECT_EQ(jobs_.Load("j-1")->cluster().generation(), 1u);
}

TEST_F(DrivingTest, OfAJobThatNeverBeganHostsHaveSomethingThatItHasReachedOrMayHave) {
  record::JobRecord job = Job("j-1");
  job.set_known_hosts((folder_.path() / "known_hosts").string());
  ASSERT_TRUE(WriteFileAtomically(job.known_hosts(),
                                  "reached,known,stopped ssh-ed25519 "
                                  "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n")
                  .ok());
  for (const char* name : {"reached", "known", "unknown", "stopped"}) job.add_hosts()->set_name(name);
  job.mutable_hosts(0)->set_machine_id("a");
  const auto names = [&] {
    std::vector<std::string> names;
    for (const record::Host& host : HostsThatHad(job)) names.push_back(host.name());
    return names;
  };
  EXPECT_THAT(names(), ElementsAre("reached", "known", "unknown", "stopped"));

  job.mutable_cluster()->set_generation(0);
  EXPECT_THAT(names(), ElementsAre("reached", "known", "stopped")) << "nobody drives it: who did was killed";
  job.set_ended_micros(1);
  record::Outcome& ending = *job.mutable_cluster()->mutable_ending();
  ending.add_left_behind("stopped");
  ending.set_result(static_cast<int>(reconcile::Result::kStopped));
  EXPECT_THAT(names(), ElementsAre("reached", "known", "stopped")) << "perhaps in the place of one that was";
  ending.set_result(static_cast<int>(reconcile::Result::kFailed));
  EXPECT_THAT(names(), ElementsAre("reached", "stopped"));
  job.mutable_hosts(1)->set_reached(true);
  EXPECT_THAT(names(), ElementsAre("reached", "known", "stopped")) << "it may have no machine-id";
}

TEST_F(DrivingTest, ANewJobIsTheNewestOfItsNameThoughTheClockHasGoneBack) {
  record::JobRecord old = Job("j-1");
  old.set_created_micros(2'000'000);
  ASSERT_TRUE(jobs_.Save(old).ok());
  record::JobRecord other = Job("k-1");
  other.set_created_micros(9'000'000);
  ASSERT_TRUE(jobs_.Save(other).ok());
  record::JobRecord record = Job("j-2");
  record.set_created_micros(1'000'000);
  MakeNewest(jobs_, &record);
  EXPECT_EQ(record.created_micros(), 2'000'001);
  record.set_created_micros(3'000'000);
  MakeNewest(jobs_, &record);
  EXPECT_EQ(record.created_micros(), 3'000'000);
}

}  // namespace
}  // namespace muster
