#include "trainer/data/mnist.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/gzip.h"
#include "trainer/data/idx.h"

namespace muster {
namespace {

absl::StatusOr<Dataset> LoadPart(const std::filesystem::path& folder, const std::string& part) {
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path images_path,
                          FindPlainOrGzip(folder, part + "-images-idx3-ubyte"));
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path labels_path,
                          FindPlainOrGzip(folder, part + "-labels-idx1-ubyte"));
  MUSTER_ASSIGN_OR_RETURN(IdxArray images, ReadIdxFile(images_path, 3));
  MUSTER_ASSIGN_OR_RETURN(IdxArray labels, ReadIdxFile(labels_path, 1));

  if (images.shape[0] == 0) return InvalidArgument("%s: byte 4: no images", images_path.string());
  for (int d = 1; d <= 2; ++d) {
    if (images.shape[d] != kMnistSide) {
      return InvalidArgument("%s: byte %d: images of %dx%d where %dx%d are expected", images_path.string(),
                             4 + 4 * d, images.shape[1], images.shape[2], kMnistSide, kMnistSide);
    }
  }
  if (labels.shape[0] != images.shape[0]) {
    return InvalidArgument("%s: byte 4: %d labels for the %d images of %s", labels_path.string(),
                           labels.shape[0], images.shape[0], images_path.string());
  }
  const auto bad = std::find_if(labels.values.begin(), labels.values.end(),
                                [](uint8_t label) { return label >= kMnistClasses; });
  if (bad != labels.values.end()) {
    constexpr int64_t kHeaderSize = 8;
    return InvalidArgument("%s: byte %d: label %d where 0 to 9 are expected", labels_path.string(),
                           kHeaderSize + (bad - labels.values.begin()), *bad);
  }
  return Dataset{
      .feature_count = kMnistPixels, .bytes = std::move(images.values), .labels = std::move(labels.values)};
}

}  // namespace

absl::StatusOr<TrainTestData> LoadMnist(const std::filesystem::path& data_dir) {
  TrainTestData mnist;
  MUSTER_ASSIGN_OR_RETURN(mnist.train, LoadPart(data_dir / "mnist", "train"));
  MUSTER_ASSIGN_OR_RETURN(mnist.test, LoadMnistTestSet(data_dir));
  return mnist;
}

absl::StatusOr<Dataset> LoadMnistTestSet(const std::filesystem::path& data_dir) {
  return LoadPart(data_dir / "mnist", "t10k");
}

}  // namespace muster
