// Tensors in a file: safetensors (huggingface/safetensors, format 0.x): 8 bytes little-endian length, a JSON
// header, raw tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/parameter_layout.h"
#include "trainer/flat_buffer.h"

namespace muster {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
};

/// A tensor of float32 in memory, row-major: T is `const float` to write it and `float` to read it.
template <typename T>
struct TensorView : TensorShape {
  std::span<T> values;
};

/// The tensors of a layout in a buffer, without padding.
template <typename T>
std::vector<TensorView<T>> ViewTensors(const ParameterLayout& layout, std::span<T> buffer) {
  std::vector<TensorView<T>> views;
  for (const LayoutTensor& tensor : layout.tensors()) {
    views.push_back({{tensor.spec.name, tensor.spec.shape}, buffer.subspan(tensor.offset, tensor.size)});
  }
  return views;
}

/// Writes the tensors in their order, atomically. `metadata` goes into the header, with `file_crc32c`:
/// CRC-32C of the whole file, in 8 hexadecimal digits that are zeros while it is taken.
absl::Status SaveSafetensors(const std::filesystem::path& path,
                             std::span<const TensorView<const float>> tensors,
                             const SafetensorsMetadata& metadata);

/// One tensor of float32 in a file.
struct SafetensorsEntry {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

/// A file that was read and is sound: the header is within 100 MB, nests no deeper than a tensor's shape
/// and says nothing twice, every tensor is F32 and as long as its shape says, and together they are the rest
/// of the file, without gaps, overlaps or anything after them, and its checksum is right, if it has one.
/// Immutable.
class SafetensorsFile {
 public:
  /// InvalidArgument, in one sentence with the path and the tensor, where it is not sound; NotFound and
  /// others when the file cannot be read. What a message shows of the file is short and escaped.
  static absl::StatusOr<SafetensorsFile> Read(const std::filesystem::path& path);

  /// The same from memory; `name` stands in errors.
  static absl::StatusOr<SafetensorsFile> Parse(std::string bytes, const std::string& name);

  /// Without the checksum.
  const SafetensorsMetadata& metadata() const { return metadata_; }

  /// InvalidArgument where the file has not exactly these tensors.
  absl::Status CheckTensors(std::span<const TensorShape> tensors) const;

  /// Reads the tensors into their places, which are as long as their shapes say. Fails as CheckTensors does,
  /// with nothing read.
  absl::Status CopyTo(std::span<const TensorView<float>> tensors) const;

 private:
  SafetensorsFile() = default;
  absl::Status ParseBytes();
  absl::Status CheckChecksum(std::string_view header);
  absl::StatusOr<std::vector<const SafetensorsEntry*>> Find(std::span<const TensorShape> tensors) const;

  std::string name_;
  std::string bytes_;
  SafetensorsMetadata metadata_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;  // in the order of their bytes
};

}  // namespace muster
