// Requests: who waits for an answer of a server; and what a server says to whom.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/parameter_server.pb.h"
#include "ps/frame_server.h"
#include "ps/outbox.h"
#include "ps/row_partition.h"
#include "ps/update_rule.h"

namespace muster {

using StreamId = FrameServer::StreamId;

/// Who waits for an answer.
struct Request {
  StreamId stream = 0;
  uint64_t number = 0;
  RepeatedRows rows;                               // whose values go with the answer
  std::optional<uint64_t> version = std::nullopt;  // step of the parameters that the asker has
  bool exact = false;                              // what it is sent is as it is here
  TimePoint since = Now();
};

/// One thread at a time.
class Requests {
 public:
  /// Both must live longer. `outbox`: what is said goes through it.
  Requests(FrameServer* frames, Outbox* outbox) : frames_(frames), outbox_(outbox) {}

  /// Of a number that a stream waits for already, as of a frame that has come twice, only the newer one is
  /// waited for.
  PushId Add(Request request);

  /// Of a request that nobody waits for.
  PushId AddNobody() { return ++last_id_; }

  bool Contains(PushId id) const { return waiting_.contains(id); }
  bool IsAwaited(StreamId stream, uint64_t number) const { return ids_.contains({stream, number}); }

  /// Nobody waits for it any more. nullopt: its sender has hung up; it will come back and ask again.
  std::optional<Request> Take(PushId id);

  void Answer(const Request& request, ps::ServerHeader header, const std::vector<grpc::Slice>& payload = {});
  void Answer(PushId id, ps::ServerHeader header);
  void Refuse(PushId id, const absl::Status& status);
  void RefuseAll(const absl::Status& status, bool join_again = false);

  void OnClosed(StreamId stream);

  /// To a stream that is gone: nothing happens.
  void Send(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload = {});
  /// Past the outbox: it follows from nothing.
  void SendNow(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload = {});
  void SendError(StreamId stream, uint64_t number, const absl::Status& status, bool join_again = false);

 private:
  FrameServer* const frames_;
  Outbox* const outbox_;
  PushId last_id_ = 0;
  std::map<PushId, Request> waiting_;
  std::map<std::pair<StreamId, uint64_t>, PushId> ids_;  // of those, by number
};

}  // namespace muster
