#include "launcher/job_contents.h"

#include <sys/stat.h>

#include <utility>

#include "base/file.h"
#include "launcher/data_sets.h"

namespace muster {
namespace {

// They travel in the start message, whose frame is bounded.
constexpr uint64_t kMaxProgramFilesBytes = 8 << 20;

absl::Status PackTrainer(const Installation& installation, JobContents* out) {
  MUSTER_ASSIGN_OR_RETURN(Content trainer, PackBundle(kTrainerContent, installation.trainer));
  MUSTER_ASSIGN_OR_RETURN(std::string glibc, ReadFile(installation.trainer / "required_glibc", 100));
  out->required_glibc = glibc.substr(0, glibc.find('\n'));
  out->program_sha256 = trainer.sha256;
  out->contents.push_back(std::move(trainer));
  return absl::OkStatus();
}

absl::Status ReadProgramFiles(const Job& job, JobContents* out) {
  uint64_t total = 0;
  for (const auto& [name, position] : job.files) {
    const std::filesystem::path path = std::filesystem::path(job.path).parent_path() / name;
    auto bytes = ReadFile(path, kMaxProgramFilesBytes);
    if (!bytes.ok())
      return InvalidArgument("%s: %s (`files` takes files only, no folders and no patterns)",
                             position.ToString(), std::string(bytes.status().message()));
    if ((total += bytes->size()) > kMaxProgramFilesBytes) {
      return InvalidArgument("%s: the files together are larger than 8 MiB; put large ones under `data`",
                             position.ToString());
    }
    struct stat info {};
    const bool executable = ::stat(path.c_str(), &info) == 0 && (info.st_mode & 0100) != 0;
    agent::FileContent& file = out->program_files.emplace_back();
    file.set_path(name);
    file.set_content(*std::move(bytes));
    file.set_mode(executable ? 0755 : 0644);
  }
  return absl::OkStatus();
}

// `origin`: who has named the folder.
absl::Status PackData(const Job& job, const std::string& folder, const std::string& origin,
                      JobContents* out) {
  const DataSet& set = DataSetOfModel(job.model);
  if (std::error_code error; !std::filesystem::is_directory(folder, error))
    return InvalidArgument("%s: %s is no folder of this machine", origin, folder);
  if (job.program.empty() && !HasDataSet(folder, set)) {
    return InvalidArgument("%s: %s does not hold %s/ with its files; `muster data fetch %s DIR` brings them",
                           origin, folder, set.name, set.name);
  }
  // The built-in models take a part of the folder; another program gets all of it.
  const std::string part = job.program.empty() ? set.name : "";
  std::error_code error;
  const std::filesystem::path packed =
      std::filesystem::canonical(std::filesystem::path(folder) / part, error);
  if (error) return ErrnoError(error.value(), folder);
  MUSTER_ASSIGN_OR_RETURN(Content data, PackContent(kDataContent, packed, part));
  out->data = FolderOfData(job.data, data.sha256);
  out->data_origin = folder;
  out->contents.push_back(std::move(data));
  return absl::OkStatus();
}

}  // namespace

std::string FolderOfData(const DataSource& data, const std::string& sha256) {
  if (!sha256.empty()) return "{store:" + sha256 + "}";
  switch (data.kind) {
    case DataSource::Kind::kOnHosts:
      return data.folder;
    case DataSource::Kind::kAuto:
      return "synthetic";
    case DataSource::Kind::kNone:
    case DataSource::Kind::kFolder:
      break;
  }
  return "";
}

absl::StatusOr<JobContents> PackJob(const Job& job, const Installation& installation,
                                    const std::string& data_folder, const std::filesystem::path& data_cache) {
  JobContents out;
  MUSTER_RETURN_IF_ERROR(job.program.empty() ? PackTrainer(installation, &out) : ReadProgramFiles(job, &out));
  switch (job.data.kind) {
    case DataSource::Kind::kNone:
      break;
    case DataSource::Kind::kOnHosts:
      out.data = FolderOfData(job.data, "");
      out.data_origin = job.data.folder + " on the hosts";
      break;
    case DataSource::Kind::kFolder:
      MUSTER_RETURN_IF_ERROR(PackData(job, job.data.folder, job.data.position.ToString(), &out));
      break;
    case DataSource::Kind::kAuto: {  // always of a model
      const DataSet& set = DataSetOfModel(job.model);
      if (!data_folder.empty()) {
        MUSTER_RETURN_IF_ERROR(PackData(job, data_folder, "MUSTER_DATA", &out));
      } else if (!data_cache.empty() && HasDataSet(data_cache, set)) {
        MUSTER_RETURN_IF_ERROR(PackData(job, data_cache.string(), "the data cache", &out));
      } else {
        out.data = FolderOfData(job.data, "");
        out.data_origin = absl::StrFormat(
            "synthetic (for the real set: `muster data fetch %s`, or MUSTER_DATA=FOLDER with %s/)", set.name,
            set.name);
      }
      break;
    }
  }
  return out;
}

}  // namespace muster
