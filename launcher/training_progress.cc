#include "launcher/training_progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace muster {
namespace {

using Json = nlohmann::json;

double Number(const Json& json, const char* key) {
  const auto value = json.find(key);
  return value != json.end() && value->is_number() ? value->get<double>() : 0;
}

uint64_t Step(const Json& json, const char* key, uint64_t otherwise = 0) {
  const auto value = json.find(key);
  return value != json.end() && value->is_number_unsigned() ? value->get<uint64_t>() : otherwise;
}

}  // namespace

std::vector<TrainingPoint> TrainingProgress::Feed(std::string_view bytes) {
  line_ += bytes;
  std::vector<TrainingPoint> points;
  size_t begin = 0;
  for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const Json json = Json::parse(line_.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    TrainingPoint point{.seconds = Number(json, "seconds"),
                        .step = Step(json, "step"),
                        .loss = Number(json, "loss"),
                        .samples_per_second = Number(json, "samples_per_second")};
    // A chief whose process is new does not know what was reached before it.
    reached_ = std::max(reached_, Step(json, "reached"));
    const uint64_t begun_at = Step(json, "begun_at", reached_);
    if (begun_at < reached_) point.lost = {.reached = reached_, .went_on_from = begun_at};
    reached_ = point.step;
    points.push_back(point);
  }
  line_.erase(0, begin);
  return points;
}

}  // namespace muster
