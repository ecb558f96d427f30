#include "trainer/safetensors.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace muster {

absl::Status SaveSafetensors(const std::filesystem::path& path, const ParameterLayout& layout,
                             std::span<const float> parameters,
                             const std::map<std::string, std::string>& metadata) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == layout.size());
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::string data;
  for (const LayoutTensor& tensor : layout.tensors()) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(parameters.data() + tensor.offset),
                tensor.size * sizeof(float));
    header[tensor.spec.name] = {
        {"dtype", "F32"}, {"shape", tensor.spec.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors are aligned when the file is mapped
  const uint64_t size = text.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return WriteFileAtomically(path, file + text + data);
}

}  // namespace muster
