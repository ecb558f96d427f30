// A segment of a journal.
#include "ps/journal.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  const FuzzFile file(data, size);
  auto reader = JournalReader::Open(file.path());
  if (!reader.ok()) return 0;
  while (true) {
    const auto entry = reader->Next();
    if (!entry.ok() || !*entry) return 0;
  }
}
