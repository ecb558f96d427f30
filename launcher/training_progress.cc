#include "launcher/training_progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace muster {
namespace {

using Json = nlohmann::json;

template <typename T>
T Number(const Json& json, const char* key, T otherwise) {
  const auto value = json.find(key);
  return value != json.end() && value->is_number() ? value->get<T>() : otherwise;
}

}  // namespace

std::vector<TrainingPoint> TrainingProgress::Feed(std::string_view bytes) {
  line_ += bytes;
  std::vector<TrainingPoint> points;
  size_t begin = 0;
  for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const Json json = Json::parse(line_.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    TrainingPoint point{.seconds = Number(json, "seconds", 0.0),
                        .step = Number(json, "step", uint64_t{0}),
                        .loss = Number(json, "loss", 0.0),
                        .samples_per_second = Number(json, "samples_per_second", 0.0)};
    // A chief whose process is new does not know what was reached before it.
    reached_ = std::max(reached_, Number(json, "reached", uint64_t{0}));
    const uint64_t begun_at = Number(json, "begun_at", reached_);
    if (begun_at < reached_) point.lost = {.reached = reached_, .went_on_from = begun_at};
    reached_ = point.step;
    points.push_back(point);
  }
  line_.erase(0, begin);
  return points;
}

}  // namespace muster
