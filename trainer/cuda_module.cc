#include "trainer/cuda_module.h"

#include <absl/strings/match.h>
#include <dlfcn.h>

#include <string>
#include <string_view>

namespace muster {
namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kToolkitFolder = "/usr/local/cuda/lib64/";

absl::StatusOr<const CudaModule*> LoadModule(const std::filesystem::path& folder) {
  // Before the module, whose libraries are large.
  if (::dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return FailedPrecondition("no NVIDIA driver on this host (%s)", ::dlerror());
  }
  const std::filesystem::path file = folder / kCudaModuleFile;
  if (std::error_code error; !std::filesystem::exists(file, error)) {
    return FailedPrecondition("this program was built without CUDA (there is no %s)", file.string());
  }
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    // "libcublasLt.so.13: cannot open shared object file: ...". NVIDIA's packages do not tell the loader
    // where they put it. What is loaded already is not looked for again.
    const std::string reason = ::dlerror();
    const std::string missing = reason.substr(0, reason.find(':'));
    if (!absl::StartsWith(missing, "libcublas")) {
      return FailedPrecondition("the CUDA module cannot be loaded: %s", reason);
    }
    if (::dlopen((std::string(kToolkitFolder) + missing).c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) {
      library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      return FailedPrecondition(
          "cuBLAS is missing on this host (%s is neither where the loader looks, see LD_LIBRARY_PATH, nor in "
          "%s)",
          missing, kToolkitFolder);
    }
  }
  const auto function = reinterpret_cast<CudaModuleFunction>(::dlsym(library, kCudaModuleSymbol));
  if (function == nullptr) return FailedPrecondition("%s is no CUDA module of muster", file.string());
  const CudaModule* const module = function();
  if (module->abi != kCudaModuleAbi || std::string_view(module->version) != MUSTER_VERSION) {
    return FailedPrecondition("%s is of muster %s (interface %d), this program of %s (interface %d)",
                              file.string(), module->version, module->abi, MUSTER_VERSION, kCudaModuleAbi);
  }
  return module;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::filesystem::path& folder, int index) {
  MUSTER_ASSIGN_OR_RETURN(const CudaModule* const module, LoadModule(folder));
  return module->open(index);
}

std::filesystem::path CudaModuleFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "lib";
}

}  // namespace muster
