// What host code can rely on with a made-up CUDA, as with the real one.
#include "kernels/cuda/fake_cuda.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace muster::cuda {
namespace {

class FakeCuda : public ::testing::Test {
 protected:
  // Holds `stream` until Open.
  void Close(const Stream& stream) {
    Launch(stream, [this] { gate_->wait(); });
  }
  void Open() { gate_->count_down(); }

  template <typename Work>
  static void Launch(const Stream& stream, const Work& work) {
    ASSERT_EQ(LaunchFake(stream.get(), work), cudaSuccess);
  }

  std::function<void()> Append(int value) {
    return [this, value] {
      const std::lock_guard lock(mutex_);
      values_.push_back(value);
    };
  }

  std::unique_ptr<std::latch> gate_ = std::make_unique<std::latch>(1);
  const Stream main_ = *MakeStream(), side_ = *MakeStream();
  const Event event_ = *MakeEvent(/*timed=*/false);
  std::mutex mutex_;
  std::vector<int> values_;
};

TEST_F(FakeCuda, AStreamRunsInOrderBesideTheHost) {
  Close(main_);
  for (int i = 0; i < 3; ++i) Launch(main_, Append(i));
  EXPECT_EQ(cudaStreamQuery(main_.get()), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_TRUE(values_.empty());
  Open();
  EXPECT_EQ(cudaStreamSynchronize(main_.get()), cudaSuccess);
  EXPECT_EQ(values_, (std::vector{0, 1, 2}));
  EXPECT_EQ(cudaStreamQuery(main_.get()), cudaSuccess);
}

TEST_F(FakeCuda, AStreamWaitsForAnEvent) {
  Close(main_);
  ASSERT_EQ(cudaEventRecord(event_.get(), main_.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side_.get(), event_.get(), 0), cudaSuccess);
  Launch(side_, Append(1));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(cudaStreamQuery(side_.get()), cudaErrorNotReady);
    std::this_thread::yield();
  }
  (void)cudaGetLastError();
  Open();
  EXPECT_EQ(cudaStreamSynchronize(side_.get()), cudaSuccess);
  EXPECT_EQ(values_, (std::vector{1}));
}

TEST_F(FakeCuda, AnEventIsWhatWasEnqueuedWhenItWasRecorded) {
  Launch(main_, Append(1));
  ASSERT_EQ(cudaEventRecord(event_.get(), main_.get()), cudaSuccess);
  Close(main_);
  ASSERT_EQ(cudaStreamWaitEvent(side_.get(), event_.get(), 0), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_.get(), main_.get()), cudaSuccess);  // changes nothing for that wait
  Launch(side_, Append(2));
  EXPECT_EQ(cudaStreamSynchronize(side_.get()), cudaSuccess);
  EXPECT_EQ(values_, (std::vector{1, 2}));
  EXPECT_EQ(cudaEventQuery(event_.get()), cudaErrorNotReady);
  Open();
  EXPECT_EQ(cudaEventSynchronize(event_.get()), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_.get()), cudaSuccess);
  (void)cudaGetLastError();
}

TEST_F(FakeCuda, FreeingWaitsForTheDevice) {
  auto memory = *DeviceArray<float>::Create(1);
  Close(main_);
  Launch(main_, [value = memory.data()] { *value = 1; });
  Open();
  memory = {};
  EXPECT_EQ(cudaStreamQuery(main_.get()), cudaSuccess);
}

class FakeCapture : public FakeCuda {
 protected:
  absl::Status Fork() {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_.get(), main_.get()));
    MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(side_.get(), event_.get(), 0));
    return absl::OkStatus();
  }
  absl::Status Join() {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_.get(), side_.get()));
    MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(main_.get(), event_.get(), 0));
    return absl::OkStatus();
  }
};

TEST_F(FakeCapture, RunsWhenItIsLaunchedAndAsOften) {
  const auto graph = Capture(main_.get(), [&] {
    Launch(main_, Append(1));
    MUSTER_RETURN_IF_ERROR(Fork());
    Launch(side_, Append(2));
    MUSTER_RETURN_IF_ERROR(Join());
    Launch(main_, Append(3));
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(values_.empty());
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(graph->get(), main_.get()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(main_.get()), cudaSuccess);
  EXPECT_EQ(values_, (std::vector{1, 2, 3, 1, 2, 3}));
}

// Each would wait for ever for the other if one came first.
TEST_F(FakeCapture, StreamsRunBesideEachOther) {
  std::latch both(2);
  const auto graph = Capture(main_.get(), [&] {
    MUSTER_RETURN_IF_ERROR(Fork());
    Launch(side_, [&] { both.arrive_and_wait(); });
    Launch(main_, [&] { both.arrive_and_wait(); });
    return Join();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(cudaGraphLaunch(graph->get(), main_.get()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(main_.get()), cudaSuccess);
}

TEST_F(FakeCapture, RefusesWhatIsNotJoined) {
  const auto graph = Capture(main_.get(), [&] {
    MUSTER_RETURN_IF_ERROR(Fork());
    MUSTER_RETURN_IF_ERROR(Join());
    Launch(side_, Append(1));
    return absl::OkStatus();
  });
  EXPECT_EQ(graph.status().message(), "cudaStreamEndCapture: cudaErrorStreamCaptureUnjoined: made up");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the status has it";
}

TEST_F(FakeCapture, RefusesCallsThatWaitOrAllocate) {
  const auto refuses = [&](const std::function<cudaError_t()>& call) {
    EXPECT_TRUE(Capture(main_.get(), [&] {
                  EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
                  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
                  return absl::OkStatus();
                }).ok());
  };
  void* memory = nullptr;
  int from = 0, to = 0;
  refuses([&] { return cudaMalloc(&memory, 1); });
  refuses([&] { return cudaMallocHost(&memory, 1); });
  refuses([&] { return cudaMemcpy(&to, &from, sizeof to, cudaMemcpyDefault); });
  refuses([&] { return cudaStreamSynchronize(main_.get()); });
  refuses([&] { return cudaStreamQuery(side_.get()); });
  refuses([&] { return cudaEventSynchronize(event_.get()); });
  refuses([&] { return cudaDeviceSynchronize(); });
}

// The same stream outside of a capture is none of its streams.
TEST_F(FakeCapture, LeavesOtherStreamsAlone) {
  const auto graph = Capture(main_.get(), [&] {
    Launch(side_, Append(1));
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(cudaStreamSynchronize(side_.get()), cudaSuccess);
  EXPECT_EQ(values_, (std::vector{1}));
}

using FakeMemory = FakeCuda;

TEST_F(FakeMemory, IsAllOnesWhenItIsNew) {
  const auto memory = *DeviceArray<float>::Create(3);
  std::vector<float> values(3);
  ASSERT_EQ(cudaMemcpy(values.data(), memory.data(), memory.bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
}

TEST_F(FakeMemory, CopiesStayInsideAndGoWhereTheySay) {
  const auto memory = *DeviceArray<int32_t>::Create(3);
  const auto pinned = *PinnedArray<int32_t>::Create(4);
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t copied = cudaMemcpyAsync(to, from, bytes, kind, main_.get());
    EXPECT_EQ(cudaGetLastError(), copied);
    EXPECT_EQ(cudaStreamSynchronize(main_.get()), cudaSuccess);
    return copied;
  };
  for (int i = 0; i < 4; ++i) pinned.data()[i] = i;
  EXPECT_EQ(copy(memory.data(), pinned.data(), 12, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(copy(memory.data(), pinned.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory.data() + 1, pinned.data(), 12, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory.data() - 1, pinned.data(), 8, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(copy(pinned.data(), memory.data(), 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory.data(), memory.data() + 1, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(pinned.data() + 3, memory.data() + 2, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(pinned.data()[3], 2);
}

// As a host that polls it sees it.
TEST_F(FakeMemory, AWordComesBehindWhatWasCopiedBefore) {
  const auto memory = *CopyToDevice<int32_t>(std::vector<int32_t>(1000, 7));
  const auto pinned = *PinnedArray<int32_t>::Create(1001);
  std::fill_n(pinned.data(), pinned.size(), 0);
  ASSERT_EQ(cudaMemcpyAsync(pinned.data(), memory.data(), 4000, cudaMemcpyDeviceToHost, main_.get()),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned.data() + 1000, memory.data(), 4, cudaMemcpyDeviceToHost, main_.get()),
            cudaSuccess);
  while (std::atomic_ref(pinned.data()[1000]).load() != 7) {
  }
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(pinned.data()[i], 7);
}

TEST_F(FakeMemory, KernelsReachOnlyWhatWasAllocated) {
  const auto memory = *DeviceArray<float>::Create(3);
  const auto pinned = *PinnedArray<float>::Create(3);
  const std::vector<float> of_the_host(3);
  CheckReachable(memory.data(), 12);
  CheckReachable(pinned.data() + 1, 8);
  CheckReachable(nullptr, 0);
  EXPECT_DEATH(CheckReachable(memory.data() + 1, 12), "12 bytes at .*not all in one allocation of the GPU");
  EXPECT_DEATH(CheckReachable(of_the_host.data(), 12), "not all in one allocation of the GPU");
}

TEST_F(FakeCuda, FailsAtTheCallThatIsAskedFor) {
  FailFakeCuda(2, cudaErrorMemoryAllocation);
  EXPECT_TRUE(DeviceArray<float>::Create(1).ok());
  EXPECT_TRUE(FakeCudaWillFail());
  EXPECT_TRUE(absl::IsResourceExhausted(DeviceArray<float>::Create(1).status()));
  EXPECT_FALSE(FakeCudaWillFail());
  EXPECT_TRUE(DeviceArray<float>::Create(1).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "no launch that follows is to fail with it";
}

}  // namespace
}  // namespace muster::cuda
