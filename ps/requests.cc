#include "ps/requests.h"

#include "base/logging.h"
#include "ps/wire.h"

namespace muster {

PushId Requests::Add(Request request) {
  const auto [id, is_new] = ids_.try_emplace({request.stream, request.number});
  if (!is_new) waiting_.erase(id->second);
  id->second = ++last_id_;
  waiting_.emplace(last_id_, std::move(request));
  return last_id_;
}

std::optional<Request> Requests::Take(PushId id) {
  auto request = waiting_.extract(id);
  if (request.empty()) return std::nullopt;
  ids_.erase({request.mapped().stream, request.mapped().number});
  return std::move(request.mapped());
}

void Requests::Answer(const Request& request, ps::ServerHeader header,
                      const std::vector<grpc::Slice>& payload) {
  header.set_version(kWireVersion);
  header.set_request(request.number);
  outbox_->Answer(
      [this, stream = request.stream, since = request.since, header = std::move(header), payload]() mutable {
        header.set_held_us(std::chrono::duration_cast<std::chrono::microseconds>(Now() - since).count());
        frames_->Send(stream, EncodeFrame(header, payload));
      });
}

void Requests::Answer(PushId id, ps::ServerHeader header) {
  if (const auto request = Take(id)) Answer(*request, std::move(header));
}

void Requests::Refuse(PushId id, const absl::Status& status) {
  const auto request = Take(id);
  if (!request) return;
  spdlog::warn("refused {}: {}", frames_->PeerOf(request->stream), std::string(status.message()));
  SendError(request->stream, request->number, status);
}

void Requests::RefuseAll(const absl::Status& status, bool join_again) {
  for (const auto& [id, request] : waiting_) SendError(request.stream, request.number, status, join_again);
  waiting_.clear();
  ids_.clear();
}

void Requests::OnClosed(StreamId stream) {
  const auto begin = ids_.lower_bound({stream, 0}), end = ids_.lower_bound({stream + 1, 0});
  for (auto id = begin; id != end; ++id) waiting_.erase(id->second);
  ids_.erase(begin, end);
}

void Requests::Send(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload) {
  header.set_version(kWireVersion);
  outbox_->Send([this, stream, frame = EncodeFrame(header, payload)] { frames_->Send(stream, frame); });
}

void Requests::SendNow(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload) {
  header.set_version(kWireVersion);
  frames_->Send(stream, EncodeFrame(header, payload));
}

void Requests::SendError(StreamId stream, uint64_t number, const absl::Status& status, bool join_again) {
  ps::ServerHeader header;
  header.set_request(number);
  SetError(status, header.mutable_error());
  header.mutable_error()->set_join_again(join_again);
  Send(stream, std::move(header));
}

}  // namespace muster
