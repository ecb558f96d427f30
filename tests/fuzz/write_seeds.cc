// Writes what the fuzzers begin with, real files and frames, into FOLDER/wire, FOLDER/checkpoint and
// FOLDER/journal.
#include <cstdio>
#include <string>
#include <vector>

#include "base/file.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpoint_store.h"
#include "ps/journal.h"
#include "ps/wire.h"

namespace muster {
namespace {

void Write(const std::filesystem::path& path, const std::string& bytes) {
  MUSTER_CHECK(MakeDirectories(path.parent_path()).ok() && WriteFileAtomically(path, bytes).ok());
}

std::string Frame(const google::protobuf::MessageLite& header, int floats) {
  const std::vector<float> values(floats, 0.5f);
  return BytesOf(EncodeFrame(header, {BorrowFloats(values)}));
}

void WriteSeeds(const std::filesystem::path& folder) {
  ps::ClientHeader push;
  push.set_version(kWireVersion);
  push.set_request(3);
  push.mutable_push()->set_sequence(7);
  push.mutable_push()->add_rows()->add_ids(5);
  ps::ClientHeader sparse = push;
  sparse.mutable_encoding()->set_type(ps::FLOAT16);
  sparse.mutable_encoding()->set_sparse(true);
  sparse.mutable_encoding()->set_exponent(-3);
  for (const uint32_t gap : {0u, 40u, 7u}) sparse.mutable_encoding()->add_gaps(gap);
  ps::ClientHeader join;
  join.mutable_join()->set_worker_uuid("uuid");
  join.mutable_join()->mutable_config()->set_worker_count(2);
  ps::ServerHeader error;
  error.mutable_error()->set_code(3);
  error.mutable_error()->set_message("no");
  for (const char slice : {'\x02', '\x1f', '\xff'}) {
    const std::string name = "wire/" + std::to_string(static_cast<unsigned char>(slice));
    Write(folder / (name + "-push"), slice + Frame(push, 9));
    Write(folder / (name + "-sparse"), slice + Frame(sparse, 3));
    Write(folder / (name + "-join"), slice + Frame(join, 0));
    Write(folder / (name + "-error"), slice + Frame(error, 0));
  }

  const TemporaryDirectory scratch;
  const CheckpointStore store(scratch.path());
  checkpoint::ShardHeader header;
  header.set_shard_count(1);
  const std::vector<float> values(100, 0.25f);
  const CheckpointSection sections[] = {{.section = {}, .bytes = BytesOf(values)}};
  const auto file = store.WriteShard(7, header, sections);
  MUSTER_CHECK(file.ok());
  checkpoint::Manifest manifest;
  manifest.set_step(7);
  *manifest.add_files() = *file;
  MUSTER_CHECK(store.Commit(manifest).ok());
  Write(folder / "checkpoint/shard",
        std::string(1, 0) + *ReadFile(store.PathOf(7, CheckpointStore::ShardFileName(0, 1))));
  Write(folder / "checkpoint/manifest", std::string(1, 1) + *ReadFile(store.PathOf(7, "manifest")));

  const std::filesystem::path segment = scratch.path() / "segment";
  journal::SegmentHeader segment_header;
  segment_header.set_version(1);
  auto journal = JournalWriter::Create(segment, segment_header);
  MUSTER_CHECK(journal.ok());
  journal::Record record;
  record.mutable_join()->set_worker_uuid("uuid");
  MUSTER_CHECK(journal->Append(record).ok());
  record.mutable_push()->mutable_push()->set_sequence(1);
  const std::span<const char> payload[] = {BytesOf(values)};
  MUSTER_CHECK(journal->Append(record, payload).ok());
  Write(folder / "journal/segment", *ReadFile(segment));
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_seeds FOLDER\n", stderr);
    return 2;
  }
  muster::WriteSeeds(argv[1]);
}
