// Shards that go on from a checkpoint, with the same bits, in any number.
#include "ps/shard_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>

#include "base/file.h"
#include "base/random.h"
#include "ps/checkpointer.h"
#include "ps/job_config.h"
#include "ps/row_partition.h"
#include "tests/support/eventually.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

const std::vector<TableSpec> kTables = {
    {.name = "a",
     .rows = 50,
     .width = 3,
     .initializer = Initializer::kUniform,
     .scale = 0.5f,
     .optimizer_group = 1},
    {.name = "b", .rows = 1'000'000, .width = 1, .initializer = Initializer::kUniform, .scale = 0.5f}};

ParameterLayout Layout() {
  return *ParameterLayout::Create(
      {{.name = "w", .shape = {37, 5}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "b", .shape = {5}, .optimizer_group = 1},
       {.name = "v", .shape = {67}, .optimizer_group = 2}});
}

ps::JobConfig Config(uint64_t seed = 7, int workers = 2, RowEviction eviction = {}) {
  const std::vector<OptimizerConfig> optimizers = {
      {.kind = OptimizerKind::kAdam,
       .learning_rate = 0.01f,
       .schedule = {.kind = ScheduleKind::kCosine, .decay_steps = 400, .warmup_steps = 5}},
      {.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.01f},
      {.kind = OptimizerKind::kSgd, .learning_rate = 0.1f}};
  return MakeJobConfig(Layout(), kTables,
                       {.rule = {.mode = UpdateMode::kSync, .worker_count = workers}, .eviction = eviction},
                       optimizers, seed);
}

// What all shards of a job have, as one.
struct Job {
  std::vector<Shard> shards;

  explicit Job(int count, const ps::JobConfig& config = Config()) {
    for (int i = 0; i < count; ++i) shards.push_back(*Shard::Create(config, i, count));
  }
  explicit Job(std::vector<Shard> restored) : shards(std::move(restored)) {}

  // Gradients and rows are functions of the step.
  void Train(uint64_t begin, uint64_t end) {
    const int count = static_cast<int>(shards.size());
    const ParameterLayout layout = Layout();
    for (uint64_t step = begin; step < end; ++step) {
      RandomStream random(step, 3);
      std::vector<float> dense(layout.size());
      for (float& value : dense) value = static_cast<float>(random.NextDouble() - 0.5);
      std::vector<ShardGradient> gradients(count);
      std::vector<std::vector<float>> values(count);
      for (int i = 0; i < count; ++i) {
        const LayoutRange range = layout.Shard(i, count);
        values[i].assign(dense.begin() + range.begin, dense.begin() + range.end);
        for (size_t t = 0; t < kTables.size(); ++t) gradients[i].rows.Add();
      }
      for (int t = 0; t < static_cast<int>(kTables.size()); ++t) {
        for (int k = 0; k < 7; ++k) {
          const uint64_t id =
              random.NextBelow(7) * static_cast<uint64_t>(kTables[t].rows / 7) + static_cast<uint64_t>(k);
          const int owner = OwnerOfRow(t, id, count);
          gradients[owner].rows[t].add_ids(id);
          for (int64_t w = 0; w < kTables[t].width; ++w) {
            values[owner].push_back(static_cast<float>(random.NextDouble() - 0.5));
          }
        }
      }
      for (int i = 0; i < count; ++i) {
        gradients[i].values = FloatPayload({ShareFloats(std::make_shared<std::vector<float>>(values[i]))}, 0);
        EXPECT_TRUE(shards[i].CheckGradient(gradients[i]).ok());
        const ShardGradient* const one[] = {&gradients[i]};
        shards[i].Apply(one, 3, 1);
      }
    }
  }

  std::vector<float> Parameters() const {
    std::vector<float> all;
    for (const Shard& shard : shards)
      all.insert(all.end(), shard.parameters()->begin(), shard.parameters()->end());
    return all;
  }
  std::vector<std::map<int64_t, std::vector<float>>> Rows() const {
    std::vector<std::map<int64_t, std::vector<float>>> all(kTables.size());
    for (const Shard& shard : shards) {
      const std::vector<TableRows> tables = shard.tables().CopyRows();
      for (size_t t = 0; t < tables.size(); ++t) {
        for (size_t i = 0; i < tables[t].ids.size(); ++i) {
          const auto begin = tables[t].values.begin() + static_cast<int64_t>(i) * kTables[t].width;
          EXPECT_TRUE(
              all[t].emplace(tables[t].ids[i], std::vector<float>(begin, begin + kTables[t].width)).second);
        }
      }
    }
    return all;
  }
};

UpdateRuleState Rule(uint64_t step) {
  UpdateRuleState rule{.step = step,
                       .workers = std::vector<UpdateRuleState::Worker>(2),
                       .counts = {.received = 9, .applied = 9},
                       .samples = 77};
  rule.workers[1] = {.process = WorkerIdentity{1, "uuid", 3},
                     .has_predecessor = true,
                     .sequences = {70, 0xF00F},
                     .steps = {step, 1},
                     .pushes = 4};
  return rule;
}

class ShardCheckpoint : public testing::Test {
 protected:
  checkpoint::Manifest Save(const Job& job, uint64_t step, const ps::JobConfig& config = Config()) {
    checkpoint::Manifest manifest;
    manifest.set_step(step);
    const int count = static_cast<int>(job.shards.size());
    for (int i = 0; i < count; ++i) {
      const auto file =
          WriteShardCheckpoint(store_, step, {config, i, count}, job.shards[i].Snapshot(), Rule(step));
      EXPECT_TRUE(file.ok()) << file.status();
      *manifest.add_files() = *file;
    }
    EXPECT_TRUE(store_.Commit(manifest).ok());
    return *store_.ReadManifest(step);
  }

  Job Restore(const checkpoint::Manifest& manifest, int count, const ps::JobConfig& config = Config()) {
    std::vector<Shard> shards;
    for (int i = 0; i < count; ++i) {
      auto restored = ReadShardCheckpoint(store_, manifest, {config, i, count});
      EXPECT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(restored->rule.step, manifest.step());
      shards.push_back(std::move(restored->shard));
    }
    return Job(std::move(shards));
  }

  TemporaryDirectory folder_;
  const CheckpointStore store_{folder_.path()};
};

TEST_F(ShardCheckpoint, GoesOnWithTheSameBitsInAnyNumberOfShards) {
  Job undisturbed(1);
  undisturbed.Train(0, 500);
  for (const int before : {1, 2}) {
    Job job(before);
    job.Train(0, 250);
    const checkpoint::Manifest manifest = Save(job, 250);
    for (const int after : {1, 2, 3, 30}) {  // 30: more than there are blocks
      Job restored = Restore(manifest, after);
      restored.Train(250, 500);
      EXPECT_EQ(restored.Parameters(), undisturbed.Parameters()) << before << " to " << after;
      EXPECT_EQ(restored.Rows(), undisturbed.Rows()) << before << " to " << after;
    }
  }
}

TEST_F(ShardCheckpoint, DropsTheSameRowsAfterwardsInAnyNumberOfShards) {
  const ps::JobConfig evicting = Config(7, 2, {.every = 10, .after = 1});
  Job undisturbed(1, evicting), without(1);
  for (Job* job : {&undisturbed, &without}) job->Train(0, 110);
  EXPECT_NE(undisturbed.Rows(), without.Rows());
  EXPECT_LT(undisturbed.shards[0].tables().updated_rows(), without.shards[0].tables().updated_rows());
  for (const int before : {1, 2}) {
    Job job(before, evicting);
    job.Train(0, 75);
    const checkpoint::Manifest manifest = Save(job, 75, evicting);
    for (const int after : {1, 2, 3}) {
      Job restored = Restore(manifest, after, evicting);
      restored.Train(75, 110);
      EXPECT_EQ(restored.Rows(), undisturbed.Rows()) << before << " to " << after;
    }
    EXPECT_EQ(Restore(manifest, 1).Rows(), job.Rows()) << "and a job that drops none may go on";
  }
  const checkpoint::Manifest manifest = Save(without, 110);
  EXPECT_EQ(Restore(manifest, 2, evicting).Rows(), without.Rows()) << "or one that begins to";
}

TEST_F(ShardCheckpoint, WhatMakesPushesCountOnceComesBackToTheSameShards) {
  Job job(2);
  const checkpoint::Manifest manifest = Save(job, 10);
  EXPECT_EQ(ReadShardCheckpoint(store_, manifest, {Config(), 1, 2})->rule, Rule(10));
  const UpdateRuleState others = ReadShardCheckpoint(store_, manifest, {Config(), 1, 3})->rule;
  EXPECT_EQ(others.workers[1].pushes, 4u);
  EXPECT_EQ(others.workers[1].process, std::nullopt);
  EXPECT_FALSE(others.workers[1].has_predecessor);
  EXPECT_EQ(others.counts, Rule(10).counts);
  EXPECT_EQ(others.samples, 77u);
}

TEST_F(ShardCheckpoint, OneThatSaysNothingOfSamplesHasThoseOfItsSteps) {
  ps::JobConfig config = Config();
  config.set_global_batch_size(60);
  config.set_worker_count(3);
  config.set_aggregate(2);
  const auto samples_in = [&](ps::UpdateMode mode) {
    config.set_mode(mode);
    const ShardPlace place{config, 0, 1};
    const ShardSnapshot snapshot = Job(1).shards[0].Snapshot();
    ShardImage image = ImageOf(place, snapshot, Rule(10));
    image.header.clear_samples();
    checkpoint::Manifest manifest;
    manifest.set_step(10);
    *manifest.add_files() = *store_.WriteShard(10, image.header, image.sections);
    const auto restored = ReadShardCheckpoint(store_, manifest, place);
    EXPECT_TRUE(restored.ok()) << restored.status();
    return restored.ok() ? restored->rule.samples : 0;
  };
  EXPECT_EQ(samples_in(ps::SYNC), 10u * 40);
  EXPECT_EQ(samples_in(ps::ASYNC), 10u * 20);
}

TEST_F(ShardCheckpoint, ASnapshotIsNotChangedByUpdates) {
  Job job(1);
  job.Train(0, 10);
  const ShardSnapshot snapshot = job.shards[0].Snapshot();
  const std::vector<float> parameters = *snapshot.parameters;
  const std::vector<TableRows> tables = snapshot.tables;
  job.Train(10, 20);
  EXPECT_EQ(*snapshot.parameters, parameters);
  EXPECT_EQ(snapshot.tables, tables);
}

TEST_F(ShardCheckpoint, OneThatCannotBeCommittedIsDoneWith) {
  std::promise<void> changed;
  const auto checkpointer = Checkpointer::Open({.folder = folder_.path(), .shard_count = 1, .name = "ps:0"},
                                               [&] { changed.set_value(); });
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  std::filesystem::create_directories(store_.PathOf(10, "manifest") / "in the way");
  checkpoint::Manifest manifest;
  manifest.set_step(10);
  (*checkpointer)->Commit(manifest, 0);
  ASSERT_EQ(changed.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_EQ((*checkpointer)->done_with(), 10u);
  EXPECT_TRUE((*checkpointer)->available().empty());
  EXPECT_THAT(std::string((*checkpointer)->CheckAvailable(10).message()),
              HasSubstr(store_.PathOf(10, "manifest").string()));
  (*checkpointer)->BeginAfter({});
  EXPECT_EQ((*checkpointer)->done_with(), 0u);
}

// One that was stopped, say, and wakes up when all have gone back without it.
TEST_F(ShardCheckpoint, AnOldProcessChangesNothingOfWhatANewerOneHas) {
  const auto open = [&] {
    auto opened = Checkpointer::Open({.folder = folder_.path(), .shard_count = 1, .name = "ps:0"}, [] {});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  };
  const Job job(1);
  const auto write = [&](Checkpointer& process, const Epoch& epoch, uint64_t step) {
    process.Write(step, Config(), epoch, job.shards[0].Snapshot(), Rule(step));
    EXPECT_TRUE(Eventually([&] { return process.written().contains(step); }));
  };
  const auto commit = [&](Checkpointer& process, uint64_t step, const checkpoint::Manifest::File& file) {
    checkpoint::Manifest manifest;
    manifest.set_step(step);
    *manifest.add_files() = file;
    process.Commit(manifest, 0);
    EXPECT_TRUE(Eventually([&] { return process.done_with() == step; }));
  };
  const Epoch before{.number = uint64_t{1} << 40, .step = 0};
  // Where no server of the epoch before is left, the next one's number is random.
  for (const uint64_t number : {uint64_t{1} << 50, uint64_t{1}, before.number + 2}) {
    const Epoch epoch{.number = number, .step = 0};
    const auto old = open();
    old->BeginAfter(before);
    write(*old, before, 10);
    const checkpoint::Manifest::File file_of_old = old->written().at(10);
    const auto newer = open();
    newer->BeginAfter(epoch);
    write(*newer, epoch, 10);
    commit(*newer, 10, newer->written().at(10));
    old->Write(10, Config(), before, job.shards[0].Snapshot(), Rule(10));
    EXPECT_TRUE(Eventually([&] { return old->failed() == 10; }));
    commit(*old, 20, file_of_old);
    // What it had not read yet.
    if (number == before.number + 2) old->BeginAfter({.number = before.number + 1, .step = 0});
    EXPECT_EQ(*store_.List(), std::vector<uint64_t>{10});
    EXPECT_TRUE(newer->Read(10, Config()).ok());
    write(*newer, epoch, 20);
    EXPECT_EQ(newer->failed(), 0u);
  }
}

// It was told of neither; the file of one is there, and of the other it is not.
TEST_F(ShardCheckpoint, WhatOthersHavePutIntoTheFolderIsAvailableOnceItIsLookedFor) {
  const auto checkpointer =
      Checkpointer::Open({.folder = folder_.path(), .shard_count = 1, .name = "ps:0"}, [] {});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Job job(1);
  const checkpoint::Manifest manifest = Save(job, 10), lost = Save(job, 20);
  for (const checkpoint::Manifest& each : {manifest, lost}) {
    (*checkpointer)->AddWritten(each.step(), each.files(0));
  }
  ASSERT_TRUE(std::filesystem::remove(store_.PathOf(20, lost.files(0).name())));
  EXPECT_TRUE((*checkpointer)->available().empty());
  (*checkpointer)->LookAgain();
  EXPECT_EQ((*checkpointer)->available(), (std::set<CheckpointId>{{10, DigestOf(manifest)}}));
  EXPECT_FALSE((*checkpointer)->written().contains(10));
  EXPECT_TRUE((*checkpointer)->written().contains(20));
}

TEST_F(ShardCheckpoint, AnotherJobIsRefusedWithTheDifference) {
  Job job(1);
  const checkpoint::Manifest manifest = Save(job, 10);
  const auto status = [&](const ps::JobConfig& config) {
    return ReadShardCheckpoint(store_, manifest, {config, 0, 1}).status();
  };
  EXPECT_TRUE(status(Config(7, /*workers=*/9)).ok()) << "another number of workers may go on";
  ps::JobConfig compressed = Config(7);
  compressed.set_wire_type(ps::BFLOAT16);
  compressed.set_top_k(0.01);
  EXPECT_TRUE(status(compressed).ok()) << "and one whose floats travel otherwise";
  EXPECT_EQ(status(Config(8)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status(Config(8)).message()), HasSubstr("seed"));
  EXPECT_THAT(std::string(status(Config(8)).message()), HasSubstr(store_.folder().string()));
}

TEST_F(ShardCheckpoint, StepsOfAllServersDoNotGoOnFromServersThatWereApart) {
  const auto read = [&](UpdateMode mode) {
    ShardSnapshot snapshot = Job(1).shards[0].Snapshot();
    ps::JobConfig config = Config();
    config.set_mode(mode == UpdateMode::kAsync ? ps::ASYNC : ps::SYNC);
    checkpoint::Manifest manifest;
    manifest.set_step(10);
    *manifest.add_files() = *WriteShardCheckpoint(store_, 10, {config, 0, 1}, snapshot, Rule(9));
    return ReadShardCheckpoint(store_, manifest, {config, 0, 1}).status();
  };
  EXPECT_TRUE(read(UpdateMode::kAsync).ok());
  EXPECT_EQ(read(UpdateMode::kSync).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(read(UpdateMode::kSync).message()), HasSubstr("9 updates"));
}

TEST_F(ShardCheckpoint, AFileWithoutAllSectionsIsRefused) {
  const auto read_without = [&](const std::function<void(ShardSnapshot&)>& remove) {
    ShardSnapshot snapshot = Job(1).shards[0].Snapshot();
    remove(snapshot);
    checkpoint::Manifest manifest;
    manifest.set_step(10);
    *manifest.add_files() = *WriteShardCheckpoint(store_, 10, {Config(), 0, 1}, snapshot, Rule(10));
    return ReadShardCheckpoint(store_, manifest, {Config(), 0, 1}).status();
  };
  EXPECT_TRUE(read_without([](ShardSnapshot&) {}).ok());
  EXPECT_EQ(read_without([](ShardSnapshot& snapshot) { snapshot.slots.pop_back(); }).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(read_without([](ShardSnapshot& snapshot) { snapshot.tables.pop_back(); }).code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(ShardCheckpoint, ADamagedFileIsRefused) {
  Job job(2);
  job.Train(0, 20);
  const checkpoint::Manifest manifest = Save(job, 20);
  const std::filesystem::path path = store_.PathOf(20, manifest.files(1).name());
  const std::string good = *ReadFile(path);
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    ASSERT_TRUE(WriteFileAtomically(path, bad).ok());
    ASSERT_FALSE(ReadShardCheckpoint(store_, manifest, {Config(), 1, 2}).ok()) << i;
    ASSERT_FALSE(ReadShardCheckpoint(store_, manifest, {Config(), 0, 3}).ok()) << i;
  }
  EXPECT_TRUE(ReadShardCheckpoint(store_, manifest, {Config(), 0, 2}).ok()) << "its own file is whole";
}

}  // namespace
}  // namespace muster
