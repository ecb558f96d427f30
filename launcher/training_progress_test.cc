#include "launcher/training_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "30", and "30 (63 -> 20)" where steps were lost before it.
std::vector<std::string> Steps(const std::vector<TrainingPoint>& points) {
  std::vector<std::string> steps;
  for (const TrainingPoint& point : points) {
    steps.push_back(std::to_string(point.step));
    if (!point.lost) continue;
    steps.back() +=
        " (" + std::to_string(point.lost->reached) + " -> " + std::to_string(point.lost->went_on_from) + ")";
  }
  return steps;
}

TEST(TrainingProgress, TellsWhatALineHas) {
  TrainingProgress progress;
  EXPECT_THAT(progress.Feed("{\"step\":5,\"seconds\":0.5,\"lo"), IsEmpty());
  const auto points = progress.Feed("ss\":2.5,\"samples_per_second\":1000.5,\"begun_at\":0}\n{\"step\"");
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].step, 5u);
  EXPECT_EQ(points[0].seconds, 0.5);
  EXPECT_EQ(points[0].loss, 2.5);
  EXPECT_EQ(points[0].samples_per_second, 1000.5);
  EXPECT_FALSE(points[0].lost);
  EXPECT_THAT(Steps(progress.Feed(":6,\"loss\":null}\n")), ElementsAre("6"));
}

TEST(TrainingProgress, AChiefThatHasLivedOnKnowsHowFarItWas) {
  TrainingProgress progress;
  EXPECT_THAT(Steps(progress.Feed("{\"step\":60}\n{\"step\":30,\"begun_at\":20,\"reached\":63}\n")),
              ElementsAre("60", "30 (63 -> 20)"));
  // It had gone on, while the others did not need it.
  EXPECT_THAT(Steps(progress.Feed("{\"step\":50,\"begun_at\":40,\"reached\":35}\n")), ElementsAre("50"));
}

TEST(TrainingProgress, OfANewChiefTheLinesBeforeItTell) {
  TrainingProgress progress;
  EXPECT_THAT(
      Steps(progress.Feed("{\"step\":10,\"begun_at\":0}\n{\"step\":60}\n{\"step\":70,\"begun_at\":64}\n"
                          "{\"step\":80,\"begun_at\":20}\n")),
      ElementsAre("10", "60", "70", "80 (70 -> 20)"));
}

TEST(TrainingProgress, IsNotConfusedByWhatIsNoLine) {
  TrainingProgress progress;
  EXPECT_THAT(Steps(progress.Feed("[]\n\n\xff\n{\"step\":\"7\"}\n{\"step\":-1}\n{\"step\":1e300}\n"
                                  "{\"step\":60,\"begun_at\":-1,\"reached\":1e300}\n{\"step\":6")),
              ElementsAre("0", "0", "0", "60"));
  progress.BeginFile();
  EXPECT_THAT(Steps(progress.Feed("{\"step\":70,\"begun_at\":20}\n")), ElementsAre("70 (60 -> 20)"));
}

}  // namespace
}  // namespace muster
