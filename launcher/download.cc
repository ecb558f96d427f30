#include "launcher/download.h"

#include <curl/curl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "base/file.h"

namespace muster {
namespace {

constexpr long kSlowestBytesPerSecond = 1000;
constexpr long kMaxRedirections = 5;
constexpr long kNothingBehindThere = 416;  // "Range Not Satisfiable", RFC 9110

struct CurlCleanup {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

// One transfer, as its callbacks see it.
struct Transfer {
  int fd;
  uint64_t size_at_start;
  uint64_t size;  // of the file
  const DownloadOptions& options;
  absl::Status status;  // why the transfer was given up here
};

size_t OnBytes(const char* data, size_t, size_t size, void* context) {
  Transfer& transfer = *static_cast<Transfer*>(context);
  if (transfer.size + size > transfer.options.max_bytes) {
    transfer.status =
        absl::DataLossError(absl::StrFormat("larger than the %d bytes allowed", transfer.options.max_bytes));
    return 0;
  }
  const absl::Status written = WriteAll(transfer.fd, {data, size});
  if (!written.ok()) {
    transfer.status = absl::InternalError(written.message());
    return 0;
  }
  transfer.size += size;
  return size;
}

int OnProgress(void* context, curl_off_t total, curl_off_t, curl_off_t, curl_off_t) {
  const Transfer& transfer = *static_cast<Transfer*>(context);
  if (transfer.options.progress) {
    transfer.options.progress(transfer.size,
                              total > 0 ? transfer.size_at_start + static_cast<uint64_t>(total) : 0);
  }
  return 0;
}

absl::StatusOr<uint64_t> SizeOf(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Internal("fstat: %s", std::string(ErrnoError(errno, "").message()));
  return static_cast<uint64_t>(info.st_size);
}

absl::Status StatusOf(CURL* curl, CURLcode code, const char* explanation, bool resumed) {
  const std::string text = explanation[0] != '\0' ? explanation : curl_easy_strerror(code);
  switch (code) {
    case CURLE_OK:
      return absl::OkStatus();
    case CURLE_HTTP_RETURNED_ERROR: {
      long http_status = 0;
      curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http_status);
      if (http_status == kNothingBehindThere && resumed) return absl::OkStatus();
      return NotFound("the server answers with status %d", http_status);
    }
    default:
      return Unavailable("%s", text);
  }
}

}  // namespace

absl::Status CheckUrl(const std::string& url) {
  const std::unique_ptr<CURLU, CurlCleanup> parsed(curl_url());
  if (parsed == nullptr) return Internal("libcurl did not start");
  const CURLUcode code = curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0);
  if (code == CURLUE_OK && (url.starts_with("http://") || url.starts_with("https://")))
    return absl::OkStatus();
  return InvalidArgument("expected a URL that begins with http:// or https://%s",
                         code == CURLUE_OK ? "" : absl::StrFormat(" (%s)", curl_url_strerror(code)));
}

absl::Status Download(const std::string& url, int fd, const DownloadOptions& options) {
  static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, CurlCleanup> owner(global == CURLE_OK ? curl_easy_init() : nullptr);
  CURL* const curl = owner.get();
  if (curl == nullptr) return Internal("libcurl did not start");
  MUSTER_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(fd));
  Transfer transfer{.fd = fd, .size_at_start = size, .size = size, .options = options};
  char explanation[CURL_ERROR_SIZE] = "";
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.stall_timeout);
  const auto connect = std::chrono::duration_cast<std::chrono::milliseconds>(options.connect_timeout);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirections);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "muster");
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, explanation);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect.count()));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowestBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(seconds.count()));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBytes);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(size));

  CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_RANGE_ERROR) {  // the server gives the whole file or nothing
    if (::ftruncate(fd, 0) != 0) return Internal("%s", std::string(ErrnoError(errno, "ftruncate").message()));
    transfer.size_at_start = transfer.size = 0;
    curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, curl_off_t{0});
    code = curl_easy_perform(curl);
  }
  return transfer.status.ok() ? StatusOf(curl, code, explanation, transfer.size_at_start > 0)
                              : transfer.status;
}

}  // namespace muster
