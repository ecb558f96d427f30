// Files of checkpoints: the first byte says which kind, a shard's file or a manifest.
#include <fstream>

#include "ps/checkpoint_store.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    const FuzzFile file(data + 1, size - 1);
    auto reader = ShardFileReader::Open(file.path());
    if (!reader.ok()) return 0;
    for (int i = 0; i < reader->header().sections_size(); ++i) {
      if (!reader->Skip().ok()) return 0;
    }
    (void)reader->Finish();
    return 0;
  }
  static const TemporaryDirectory folder;
  const CheckpointStore store(folder.path());
  const std::filesystem::path path = store.PathOf(7, "manifest");
  MUSTER_CHECK(MakeDirectories(path.parent_path()).ok());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  if (const auto manifest = store.ReadManifest(7); manifest.ok()) {
    for (int i = 0; i < manifest->files_size(); ++i) (void)store.VerifyShard(*manifest, i);
  }
  return 0;
}
