#include "collective/gloo.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>

#include "collective/queued_collective.h"

namespace muster {
namespace {

// Gloo takes memory that it only reads as if it wrote there.
template <typename T>
T* Writable(std::span<const std::byte> bytes) {
  return const_cast<T*>(reinterpret_cast<const T*>(bytes.data()));
}

class GlooBackend final : public CollectiveBackend {
 public:
  GlooBackend(const GlooOptions& options, std::shared_ptr<gloo::Context> context)
      : options_(options), context_(std::move(context)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  void Stop() override {}  // there is no way: what is under way ends at its timeout

  absl::Status Perform(const Operation& operation) override try {
    Do(operation);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return Unavailable("Gloo: %s", error.what());
  }

 private:
  void Do(const Operation& operation) {
    const auto& [kind, input, output, root] = operation;
    if (kind != Operation::Kind::kBarrier && output.empty()) return;
    switch (kind) {
      case Operation::Kind::kAllReduce: {
        gloo::AllreduceOptions allreduce(context_);
        const size_t count = input.size() / sizeof(float);
        allreduce.setInput(Writable<float>(input), count);
        allreduce.setOutput(Writable<float>(output), count);
        allreduce.setReduceFunction(
            [](void* sum, const void* a, const void* b, size_t n) { gloo::sum<float>(sum, a, b, n); });
        return gloo::allreduce(allreduce);
      }
      case Operation::Kind::kBroadcast: {
        gloo::BroadcastOptions broadcast(context_);
        broadcast.setOutput(Writable<char>(output), output.size());
        broadcast.setRoot(root);
        return gloo::broadcast(broadcast);
      }
      case Operation::Kind::kAllGather: {
        gloo::AllgatherOptions allgather(context_);
        allgather.setInput(Writable<char>(input), input.size());
        allgather.setOutput(Writable<char>(output), output.size());
        return gloo::allgather(allgather);
      }
      case Operation::Kind::kBarrier: {
        gloo::BarrierOptions barrier(context_);
        return gloo::barrier(barrier);
      }
    }
  }

  const GlooOptions options_;
  const std::shared_ptr<gloo::Context> context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeGloo(const GlooOptions& options) try {
  auto device = gloo::transport::tcp::CreateDevice(options.address.c_str());
  auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout);
  context->setTimeout(timeout);
  gloo::rendezvous::FileStore store(options.meeting_folder.string());
  context->connectFullMesh(store, device);
  return MakeQueued(std::make_unique<GlooBackend>(options, std::move(context)));
} catch (const std::exception& error) {
  return Unavailable("Gloo: %s", error.what());
}

}  // namespace muster
