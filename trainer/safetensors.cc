#include "trainer/safetensors.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/quoted_bytes.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "floats are written as they lie in memory");

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxFileBytes = uint64_t{64} << 30;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kChecksumKey = "file_crc32c";
constexpr int kMaxDepth = 3;  // the header, a tensor, its shape

// For messages.
std::string Shortened(const std::string& text) {
  constexpr size_t kLongest = 80;
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

std::string JsonText(const Json& json) {
  return Shortened(json.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/true));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return Shortened("[" + absl::StrJoin(shape, ",") + "]");
}

// JSON that says something twice would be read as whatever it says last. What nests too deep is dropped while
// it is read: to print or copy it would recurse.
absl::StatusOr<Json> ParseHeader(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the object that is open at each depth
  std::string twice;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool starts =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (depth + (starts ? 1 : 0) > kMaxDepth) {
      too_deep = true;
      return false;
    }
    keys.resize(std::max<size_t>(keys.size(), depth + 2));
    if (event == Json::parse_event_t::object_start) keys[depth + 1].clear();
    if (event == Json::parse_event_t::key && !keys[depth].insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const Json header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep) return InvalidArgument("the header nests deeper than %d", kMaxDepth);
  if (header.is_discarded() || !header.is_object() || !text.starts_with('{')) {
    return InvalidArgument("the header is no JSON object");
  }
  if (!twice.empty()) return InvalidArgument("the header has %s twice", QuotedBytes(twice));
  return header;
}

absl::StatusOr<SafetensorsMetadata> ParseMetadata(const Json& json) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (!json.is_object() || !std::all_of(json.begin(), json.end(), is_text)) {
    return InvalidArgument("%s is no object of strings", kMetadataKey);
  }
  return json.get<SafetensorsMetadata>();
}

bool IsListOfSizes(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& value) {
           return value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX;
         });
}

// The bytes of float32 values in this shape, or more than `limit` where they are more.
uint64_t BytesOf(const std::vector<int64_t>& shape, uint64_t limit) {
  uint64_t bytes = sizeof(float);
  for (const int64_t size : shape) {
    if (size != 0 && bytes > limit / static_cast<uint64_t>(size)) return limit + 1;
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& json, uint64_t data_bytes) {
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return InvalidArgument("expected an object of dtype, shape and data_offsets");
  }
  if (json["dtype"] != "F32") {
    return InvalidArgument("expected dtype \"F32\", found %s", JsonText(json["dtype"]));
  }
  if (!IsListOfSizes(json["shape"])) {
    return InvalidArgument("expected a shape, found %s", JsonText(json["shape"]));
  }
  const Json& offsets = json["data_offsets"];
  if (!IsListOfSizes(offsets) || offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    return InvalidArgument("expected two data_offsets within the %d bytes after the header, found %s",
                           data_bytes, JsonText(offsets));
  }
  SafetensorsEntry entry{.name = name,
                         .shape = json["shape"].get<std::vector<int64_t>>(),
                         .begin = offsets[0].get<uint64_t>(),
                         .end = offsets[1].get<uint64_t>()};
  if (BytesOf(entry.shape, data_bytes) != entry.end - entry.begin) {
    return InvalidArgument("%d bytes do not fit its shape %s", entry.end - entry.begin,
                           ShapeText(entry.shape));
  }
  return entry;
}

// The checksum is one of the whole file, in which its own digits are zeros.
constexpr std::string_view kNoChecksum = "00000000";

// Where the digits of the checksum are in a header. Quotes within JSON's strings are escaped, so that nothing
// else can look like that.
std::string::size_type FindChecksum(std::string_view header) {
  const std::string before = absl::StrFormat("\"%s\":\"", kChecksumKey);
  const auto place = header.find(before);
  return place == header.npos ? place : place + before.size();
}

// Of a file with kNoChecksum, or what else it has, at `place`.
std::string ChecksumText(std::string_view file, std::string::size_type place) {
  uint32_t crc = Crc32c(file.data(), place);
  crc = Crc32c(kNoChecksum.data(), kNoChecksum.size(), crc);
  const std::string_view rest = file.substr(place + kNoChecksum.size());
  return absl::StrFormat("%08x", Crc32c(rest.data(), rest.size(), crc));
}

// Sorts them by place; they must be all of the data, one after the other.
absl::Status PutInOrder(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end) {
      return InvalidArgument("tensor %s: starts at offset %d, but what is before it ends at %d",
                             QuotedBytes(entry.name), entry.begin, end);
    }
    end = entry.end;
  }
  if (end != data_bytes) return InvalidArgument("%d bytes after the last tensor", data_bytes - end);
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveSafetensors(const std::filesystem::path& path,
                             std::span<const TensorView<const float>> tensors,
                             const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json header;
  header[kMetadataKey] = metadata;
  header[kMetadataKey][kChecksumKey] = kNoChecksum;
  std::string data;
  for (const TensorView<const float>& tensor : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size_bytes());
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors are aligned when the file is mapped
  const uint64_t size = text.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  file += text + data;
  const auto place = kLengthBytes + FindChecksum(text);
  file.replace(place, kNoChecksum.size(), ChecksumText(file, place));
  return WriteFileAtomically(path, file);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Read(const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, ReadRegularFile(path, kMaxFileBytes));
  return Parse(std::move(bytes), path.string());
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::string bytes, const std::string& name) {
  SafetensorsFile file;
  file.name_ = name;
  file.bytes_ = std::move(bytes);
  const absl::Status status = file.ParseBytes();
  if (!status.ok()) return Annotate(status, name);
  return file;
}

absl::Status SafetensorsFile::ParseBytes() {
  if (bytes_.size() < kLengthBytes) return InvalidArgument("%d bytes are no safetensors file", bytes_.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument("no safetensors file, or one with a header of %d bytes; at most %d are read",
                           header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes_.size() - kLengthBytes) {
    return InvalidArgument("truncated: %d bytes with a header of %d", bytes_.size(), header_bytes);
  }
  MUSTER_ASSIGN_OR_RETURN(const Json header,
                          ParseHeader(std::string_view(bytes_).substr(kLengthBytes, header_bytes)));
  data_begin_ = kLengthBytes + header_bytes;
  const uint64_t data_bytes = bytes_.size() - data_begin_;
  for (const auto& [key, json] : header.items()) {
    if (key == kMetadataKey) {
      MUSTER_ASSIGN_OR_RETURN(metadata_, ParseMetadata(json));
      continue;
    }
    auto entry = ParseEntry(key, json, data_bytes);
    if (!entry.ok()) return Annotate(entry.status(), "tensor " + QuotedBytes(key));
    entries_.push_back(*std::move(entry));
  }
  MUSTER_RETURN_IF_ERROR(PutInOrder(entries_, data_bytes));
  return CheckChecksum(std::string_view(bytes_).substr(kLengthBytes, header_bytes));
}

// Last, so that what says more about damage comes first.
absl::Status SafetensorsFile::CheckChecksum(std::string_view header) {
  const auto node = metadata_.extract(kChecksumKey);
  if (node.empty()) return absl::OkStatus();
  const auto place = FindChecksum(header);
  if (node.mapped().size() == kNoChecksum.size() && place != header.npos &&
      ChecksumText(bytes_, kLengthBytes + place) == node.mapped()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "damaged: its checksum is not the %s in its metadata (a program that changes it must remove %s)",
      QuotedBytes(node.mapped()), kChecksumKey);
}

// One for each of `tensors`.
absl::StatusOr<std::vector<const SafetensorsEntry*>> SafetensorsFile::Find(
    std::span<const TensorShape> tensors) const {
  std::map<std::string, const SafetensorsEntry*> unused;
  for (const SafetensorsEntry& entry : entries_) unused[entry.name] = &entry;
  std::vector<const SafetensorsEntry*> found;
  for (const TensorShape& tensor : tensors) {
    const auto node = unused.extract(tensor.name);
    if (node.empty()) {
      return InvalidArgument("%s: tensor %s of shape %s is missing", name_, QuotedBytes(tensor.name),
                             ShapeText(tensor.shape));
    }
    found.push_back(node.mapped());
    if (found.back()->shape != tensor.shape) {
      return InvalidArgument("%s: tensor %s: expected the shape %s, found %s", name_,
                             QuotedBytes(tensor.name), ShapeText(tensor.shape),
                             ShapeText(found.back()->shape));
    }
  }
  if (!unused.empty()) {
    return InvalidArgument("%s: tensor %s is none of the model's", name_, QuotedBytes(unused.begin()->first));
  }
  return found;
}

absl::Status SafetensorsFile::CheckTensors(std::span<const TensorShape> tensors) const {
  return Find(tensors).status();
}

absl::Status SafetensorsFile::CopyTo(std::span<const TensorView<float>> tensors) const {
  MUSTER_ASSIGN_OR_RETURN(const auto found, Find(std::vector<TensorShape>(tensors.begin(), tensors.end())));
  for (size_t i = 0; i < found.size(); ++i) {
    const uint64_t bytes = found[i]->end - found[i]->begin;
    MUSTER_CHECK(tensors[i].values.size_bytes() == bytes);
    std::memcpy(tensors[i].values.data(), bytes_.data() + data_begin_ + found[i]->begin, bytes);
  }
  return absl::OkStatus();
}

}  // namespace muster
