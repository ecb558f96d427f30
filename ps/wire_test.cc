#include "ps/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "kernels/float16.h"
#include "proto/parameter_server.pb.h"

namespace muster {
namespace {

std::vector<float> Ramp(size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// The same bytes, cut into slices at random places, as a transport may deliver them.
grpc::ByteBuffer Cut(const grpc::ByteBuffer& frame, RandomStream& random) {
  grpc::Slice whole;
  EXPECT_TRUE(frame.DumpToSingleSlice(&whole).ok());
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < whole.size();) {
    const size_t size = std::min<size_t>(1 + random.NextBelow(13), whole.size() - begin);
    slices.emplace_back(whole.begin() + begin, size);
    begin += size;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(Wire, FloatsArriveBitForBitHoweverTheTransportCutsThem) {
  RandomStream random(1);
  const std::vector<float> sent = Ramp(100);
  ps::ClientHeader header;
  header.set_version(kWireVersion);
  header.mutable_push()->set_samples(7);
  for (int round = 0; round < 200; ++round) {
    const grpc::ByteBuffer frame = Cut(EncodeFrame(header, {BorrowFloats(sent)}), random);
    ps::ClientHeader received_header;
    FloatPayload payload;
    ASSERT_TRUE(DecodeFrame(frame, &received_header, &payload).ok());
    EXPECT_EQ(received_header.push().samples(), 7u);
    std::vector<float> received(100), sum = Ramp(100);
    payload.CopyTo(received);
    FloatPayload::Reader reader(payload);
    const size_t first = random.NextBelow(101);
    reader.AddTo(std::span(sum).first(first));
    reader.AddTo(std::span(sum).subspan(first));
    ASSERT_EQ(received, sent);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 2 * sent[i]);
  }
}

TEST(Wire, NumbersOf16BitsAreReadHoweverTheTransportCutsThem) {
  RandomStream random(4);
  std::vector<uint16_t> sent(100);
  std::vector<float> expected(100);
  for (size_t i = 0; i < sent.size(); ++i) expected[i] = 8 * static_cast<float>(i) - 40;
  ToBfloat16(expected, sent);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = std::as_bytes(std::span(sent));
    const grpc::Slice slice(bytes.data(), bytes.size());
    ps::ServerHeader header;
    FloatPayload payload;
    ASSERT_TRUE(DecodeFrame(Cut(EncodeFrame(header, {slice}), random), &header, &payload).ok());
    std::vector<float> received(100);
    payload.Decode(ps::BFLOAT16, 0.5f, received);
    for (size_t i = 0; i < received.size(); ++i) ASSERT_EQ(received[i], expected[i] / 2);
  }
}

TEST(Wire, OneNumberThatIsNotFiniteIsFoundHoweverTheTransportCutsIt) {
  RandomStream random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> sent = Ramp(100);
    const bool finite = round % 3 == 0;
    if (!finite) sent[random.NextBelow(100)] = round % 3 == 1 ? NAN : -INFINITY;
    ps::ClientHeader header;
    FloatPayload payload;
    ASSERT_TRUE(DecodeFrame(Cut(EncodeFrame(header, {BorrowFloats(sent)}), random), &header, &payload).ok());
    ASSERT_EQ(payload.AllFinite(), finite);
  }
}

TEST(Wire, ASharedBufferLivesUntilTheFrameIsGone) {
  auto values = std::make_shared<const std::vector<float>>(Ramp(1000));
  const std::weak_ptr<const std::vector<float>> watch = values;
  {
    const grpc::ByteBuffer frame = EncodeFrame(ps::ServerHeader(), {ShareFloats(std::move(values))});
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

// A path, say, or what was cut within a character.
TEST(Wire, TheTextOfAnErrorNeedNotBeUtf8) {
  ps::ServerHeader sent, received;
  SetError(absl::InternalError("a path: M\xfcller"), sent.mutable_error());
  std::string text;
  ASSERT_TRUE(sent.SerializeToString(&text) && received.ParseFromString(text));
  EXPECT_THAT(std::string(StatusOf(received.error(), "ps:0").message()), testing::HasSubstr("M\xfcller"));
}

TEST(Wire, RefusesDamagedFrames) {
  ps::ClientHeader header;
  header.mutable_join()->set_worker_uuid("u");
  const std::vector<float> values = Ramp(3);
  grpc::Slice whole;
  ASSERT_TRUE(EncodeFrame(header, {BorrowFloats(values)}).DumpToSingleSlice(&whole).ok());
  const std::string good(reinterpret_cast<const char*>(whole.begin()), whole.size());
  const auto decode = [](const std::string& bytes) {
    const grpc::Slice slice(bytes);
    ps::ClientHeader out;
    FloatPayload payload;
    return DecodeFrame(grpc::ByteBuffer(&slice, 1), &out, &payload);
  };
  EXPECT_TRUE(decode(good).ok());
  const size_t header_end = good.size() - 12;
  for (size_t size = 0; size < header_end; ++size) {
    EXPECT_EQ(decode(good.substr(0, size)).code(), absl::StatusCode::kInvalidArgument) << size;
  }
  std::string bad = good;
  bad[0] = 'X';
  EXPECT_THAT(std::string(decode(bad).message()), testing::HasSubstr("magic"));
  bad = good;
  std::memset(bad.data() + 4, 0xff, 4);
  EXPECT_THAT(std::string(decode(bad).message()), testing::HasSubstr("with a header of 4294967295"));
}

}  // namespace
}  // namespace muster
