#include "agent/names.h"

#include <algorithm>

#include "base/sha256.h"

namespace muster {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlphanumeric(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsName(std::string_view text, size_t max_size, std::string_view also) {
  return !text.empty() && text.size() <= max_size && IsAlphanumeric(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return IsAlphanumeric(c) || also.find(c) != std::string_view::npos; });
}

bool IsTask(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (!IsName(text.substr(0, at), 60, "_-")) return false;
  if (at == std::string_view::npos) return true;
  const std::string_view index = text.substr(at + 1);
  return !index.empty() && index.size() <= 9 && std::all_of(index.begin(), index.end(), IsDigit);
}

constexpr std::string_view kTaskFolderKey = "{task_dir}";
constexpr std::string_view kStoreKey = "{store:";
constexpr size_t kSha256Digits = 64;

}  // namespace

absl::Status ValidateJobName(std::string_view job) {
  if (IsName(job, 100, "_.-")) return absl::OkStatus();
  return InvalidArgument(
      "job name '%s': use 1 to 100 letters, digits, '_', '.', '-', the first a letter or digit", job);
}

absl::Status ValidateTaskName(std::string_view task) {
  if (IsTask(task, ':')) return absl::OkStatus();
  return InvalidArgument(
      "task name '%s': use a name of letters, digits, '_', '-' and an index, as in worker:0", task);
}

std::string TaskFolder(std::string_view task) {
  std::string folder(task);
  std::replace(folder.begin(), folder.end(), ':', '.');
  return folder;
}

std::optional<std::string> TaskOfFolder(std::string_view folder) {
  if (!IsTask(folder, '.')) return std::nullopt;
  std::string task(folder);
  std::replace(task.begin(), task.end(), '.', ':');
  return task;
}

bool IsSha256(std::string_view text) {
  return text.size() == kSha256Digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return IsDigit(c) || (c >= 'a' && c <= 'f'); });
}

std::string RootId(const std::filesystem::path& root) { return Sha256Hex(root.string()).substr(0, 16); }

std::string TaskToken(std::string_view job, std::string_view root_id, std::string_view task) {
  return absl::StrFormat("%s/%s/%s", job, root_id, task);
}

std::string JobTokenPrefix(std::string_view job, std::string_view root_id) {
  return TaskToken(job, root_id, "");
}

std::vector<std::string> StoreKeys(std::string_view text) {
  std::vector<std::string> keys;
  for (size_t at = text.find(kStoreKey); at != std::string_view::npos; at = text.find(kStoreKey)) {
    text.remove_prefix(at + kStoreKey.size());
    const std::string_view key = text.substr(0, kSha256Digits);
    if (IsSha256(key) && text.substr(key.size()).starts_with('}')) keys.emplace_back(key);
  }
  return keys;
}

std::string Expand(std::string_view text, const std::filesystem::path& task_folder,
                   const std::filesystem::path& store) {
  std::string result;
  while (true) {
    const size_t brace = text.find('{');
    result.append(text.substr(0, brace));
    if (brace == std::string_view::npos) return result;
    text.remove_prefix(brace);
    if (text.starts_with(kTaskFolderKey)) {
      result += task_folder.string();
      text.remove_prefix(kTaskFolderKey.size());
      continue;
    }
    const size_t key_size = kStoreKey.size() + kSha256Digits;
    if (text.starts_with(kStoreKey) && text.size() > key_size && text[key_size] == '}' &&
        IsSha256(text.substr(kStoreKey.size(), kSha256Digits))) {
      result += (store / text.substr(kStoreKey.size(), kSha256Digits)).string();
      text.remove_prefix(key_size + 1);
      continue;
    }
    result += '{';
    text.remove_prefix(1);
  }
}

}  // namespace muster
