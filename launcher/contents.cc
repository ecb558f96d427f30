#include "launcher/contents.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>

#include "base/archive.h"
#include "base/sha256.h"

namespace muster {
namespace {

absl::Status CheckInstalled(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return absl::OkStatus();
  return FailedPrecondition(
      "%s is missing: the installation of muster is incomplete; in a build, `cmake --build` of its folder "
      "without a --target makes it",
      path.string());
}

// An archive as it comes.
class PackedBytes {
 public:
  absl::Status Take(std::string_view bytes) {
    sha256_.Update(bytes.data(), bytes.size());
    size_ += bytes.size();
    if (size_ <= kMostPackedInMemory) {
      bytes_ += bytes;
      return absl::OkStatus();
    }
    if (!file_.valid()) {
      MUSTER_RETURN_IF_ERROR(OpenFile());
      MUSTER_RETURN_IF_ERROR(Write(std::exchange(bytes_, {})));
    }
    return Write(bytes);
  }

  /// Once, when all has come.
  absl::StatusOr<Content> Finish(const std::string& name) {
    const auto held = std::make_shared<Held>();
    held->bytes = std::move(bytes_);
    held->view = held->bytes;
    if (file_.valid()) {
      void* const begin = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.get(), 0);
      if (begin == MAP_FAILED) return ErrnoError(errno, Place());
      held->mapped = begin;
      held->view = {static_cast<const char*>(begin), size_};
    }
    return Content{.sha256 = sha256_.HexDigest(), .name = name, .bytes = {held, &held->view}};
  }

 private:
  // In memory, or in a file.
  struct Held {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
      if (mapped != nullptr) ::munmap(mapped, view.size());
    }
    std::string bytes;
    void* mapped = nullptr;
    std::string_view view;
  };

  // /tmp is memory on many machines.
  static std::string Folder() {
    const char* const folder = std::getenv("TMPDIR");
    return folder != nullptr && *folder != '\0' ? folder : "/var/tmp";
  }
  static std::string Place() { return Folder() + " (TMPDIR), where large data is packed"; }

  // Not every file system makes one without a name.
  absl::Status OpenFile() {
    file_ = UniqueFd(::open(Folder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file_.valid()) return absl::OkStatus();
    std::string name = Folder() + "/muster-packed-XXXXXX";
    file_ = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (!file_.valid()) return ErrnoError(errno, Place());
    return ::unlink(name.c_str()) == 0 ? absl::OkStatus() : ErrnoError(errno, name);
  }

  absl::Status Write(std::string_view bytes) const { return Annotate(WriteAll(file_.get(), bytes), Place()); }

  Sha256 sha256_;
  uint64_t size_ = 0;
  std::string bytes_;
  UniqueFd file_;
};

}  // namespace

absl::StatusOr<Content> PackContent(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& into) {
  PackedBytes packed;
  MUSTER_RETURN_IF_ERROR(
      PackDirectoryTo([&](std::string_view bytes) { return packed.Take(bytes); }, folder, {.into = into}));
  return packed.Finish(name);
}

absl::StatusOr<Installation> FindInstallation() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return ErrnoError(error.value(), "/proc/self/exe");
  const std::filesystem::path bundles = self.parent_path().parent_path() / "lib/muster";
  Installation installation{.agent = self.parent_path() / "muster-agent",
                            .trainer = bundles / "trainer",
                            .launcher = bundles / "launcher"};
  MUSTER_RETURN_IF_ERROR(CheckInstalled(installation.agent));
  return installation;
}

absl::StatusOr<Content> PackBundle(const std::string& name, const std::filesystem::path& folder) {
  MUSTER_RETURN_IF_ERROR(CheckInstalled(folder / "required_glibc"));
  return PackContent(name, folder);
}

}  // namespace muster
