// The two sides of a view change, by themselves.
#include "cluster/replica_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace muster {
namespace {

TEST(VotesOf, HostsShareTheirVoteAmongTheirTasks) {
  const ReplicaVotes apart =
      VotesOf({.ps = {"a:1", "b:1"}, .workers = {"c:1", "d:1"}, .chief = {}}, /*shard=*/0);
  EXPECT_THAT(apart.ranks, testing::ElementsAre(0.25, 0.25));
  EXPECT_EQ(apart.primary, 0.25);
  const ReplicaVotes together =
      VotesOf({.ps = {"a:1", "b:1", "c:1"}, .workers = {"a:2", "b:2"}, .chief = {"c:2"}}, /*shard=*/2);
  // Of ps:2 on c, whose backup is ps:0 on a; the chief is the first rank.
  EXPECT_THAT(together.ranks, testing::ElementsAre(testing::DoubleEq(1.0 / 6), testing::DoubleEq(1.0 / 6),
                                                   testing::DoubleEq(1.0 / 3)));
  EXPECT_DOUBLE_EQ(together.primary, 1.0 / 6);
  EXPECT_DOUBLE_EQ(together.backup, 1.0 / 6);
}

TEST(ReplicaView, ABackupGoesOnWithAMajority) {
  ReplicaView backup({0.25, 0.25}, 0.25);
  backup.Follow(1);
  EXPECT_FALSE(backup.Promise(0, 2)) << "its primary is there";
  EXPECT_FALSE(backup.Lost());
  EXPECT_FALSE(backup.Promise(0, 2)) << "half is no majority";
  EXPECT_FALSE(backup.Promise(0, 2)) << "one rank, one vote";
  EXPECT_FALSE(backup.Promise(1, 1)) << "another view";
  EXPECT_TRUE(backup.Promise(1, 2));
  EXPECT_EQ(backup.role(), ReplicaRole::kPrimary);
  EXPECT_EQ(backup.view(), 2u);
  EXPECT_FALSE(backup.has_backup());
}

TEST(ReplicaView, APrimaryAloneNeedsNobody) {
  ReplicaView primary({1.0 / 3}, 1.0 / 3);
  primary.Begin();
  EXPECT_FALSE(primary.Lost());
  EXPECT_FALSE(primary.is_proposing());
  EXPECT_EQ(primary.OfferBackup(), 2u);
  EXPECT_FALSE(primary.is_proposing()) << "the backup has just been heard";
  EXPECT_FALSE(primary.Lost());
  EXPECT_TRUE(primary.is_proposing()) << "the other may be the backup of view 2";
  EXPECT_EQ(primary.proposed(), 3u);
  primary.Touch();
  primary.AddBackup(2);
  EXPECT_EQ(primary.view(), 2u);
  EXPECT_FALSE(primary.Lost());
  EXPECT_FALSE(primary.Promise(0, 2));
  EXPECT_TRUE(primary.Promise(0, 3));
  EXPECT_FALSE(primary.has_backup());
}

TEST(ReplicaView, PromisesEndWhenTheOtherIsThereAgain) {
  ReplicaView backup({0.2, 0.2, 0.2}, 0.2);
  backup.Follow(1);
  EXPECT_FALSE(backup.Lost());
  EXPECT_FALSE(backup.Promise(0, 2));
  backup.Touch();
  EXPECT_FALSE(backup.Lost());
  EXPECT_FALSE(backup.Promise(1, 2));
  backup.Withdraw(1);
  EXPECT_FALSE(backup.Promise(2, 2));
  EXPECT_EQ(backup.view(), 1u);
}

TEST(ReplicaView, ABackupIsOfferedAViewThatEndsWhatWasPromisedBefore) {
  ReplicaView primary({0.25, 0.25}, 0.25);
  primary.Begin();
  EXPECT_EQ(primary.OfferBackup(), 2u);
  EXPECT_FALSE(primary.Lost()) << "before the other has said that it is in view 2";
  EXPECT_EQ(primary.proposed(), 3u);
  EXPECT_FALSE(primary.Promise(0, 3));
  EXPECT_EQ(primary.OfferBackup(), 3u) << "a worker has promised that one";
  primary.AddBackup(3);
  EXPECT_EQ(primary.proposed(), 4u);
}

TEST(ReplicaBallot, PromisesToOneOfTheTwo) {
  ReplicaBallot ballot;
  EXPECT_FALSE(ballot.Promise(4, 1, 3, 0)) << "it knows of no view";
  EXPECT_TRUE(ReplicaBallot().Promise(4, 1, 3, 0, /*is_sole=*/true));
  EXPECT_TRUE(ballot.Follow(3, 0));
  EXPECT_FALSE(ballot.Promise(3, 1, 2, 0)) << "that has begun";
  EXPECT_TRUE(ballot.Promise(4, 1, 3, 0));
  EXPECT_TRUE(ballot.Promise(4, 1, 3, 0));
  EXPECT_FALSE(ballot.Promise(4, 0, 3, 0));
  EXPECT_FALSE(ballot.Promise(5, 0, 3, 0)) << "what became of 4?";
  ballot.GiveBack(4, 0);
  ballot.GiveBack(3, 1);
  EXPECT_FALSE(ballot.Promise(4, 0, 3, 0)) << "neither was the promise";
  ballot.GiveBack(4, 1);
  EXPECT_TRUE(ballot.Promise(4, 0, 3, 0));
  EXPECT_TRUE(ballot.Follow(4, 1)) << "the others have decided";
  EXPECT_FALSE(ballot.Follow(3, 0));
  EXPECT_FALSE(ballot.Follow(4, 0)) << "of one view there is one primary";
  EXPECT_FALSE(ballot.Promise(5, 0, 4, 0)) << "of one view there is one primary";
  EXPECT_TRUE(ballot.Promise(7, 1, 6, 0)) << "6 is 0's";
  EXPECT_EQ(ballot.view(), 6u);
}

}  // namespace
}  // namespace muster
