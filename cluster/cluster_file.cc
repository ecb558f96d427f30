#include "cluster/cluster_file.h"

#include <nlohmann/json.hpp>

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<uint64_t> NumberAt(const Json& json, const char* key) {
  if (!json.contains(key) || !json[key].is_number_unsigned()) {
    return InvalidArgument("it has no whole number \"%s\"", key);
  }
  return json[key].get<uint64_t>();
}

absl::Status ParseAddresses(const Json& list, const std::string& role, std::vector<std::string>* addresses) {
  if (!list.is_array()) return InvalidArgument("cluster.%s is not a list of addresses", role);
  for (const Json& address : list) {
    if (!address.is_string()) return InvalidArgument("cluster.%s holds something that is no address", role);
    MUSTER_RETURN_IF_ERROR(Annotate(CheckAddress(address.get<std::string>()), "cluster." + role));
    addresses->push_back(address.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("it is not a JSON object");
  MUSTER_ASSIGN_OR_RETURN(const uint64_t version, NumberAt(json, "version"));
  if (version != kClusterFileVersion) {
    return FailedPrecondition("it has version %d, this program reads version %d", version,
                              kClusterFileVersion);
  }
  ClusterFile file;
  MUSTER_ASSIGN_OR_RETURN(file.generation, NumberAt(json, "generation"));
  if (!json.contains("cluster") || !json["cluster"].is_object()) {
    return InvalidArgument("it has no object \"cluster\"");
  }
  for (const auto& [role, list] : json["cluster"].items()) {
    std::vector<std::string>* const addresses = role == "ps"       ? &file.cluster.ps
                                                : role == "worker" ? &file.cluster.workers
                                                : role == "chief"  ? &file.cluster.chief
                                                                   : nullptr;
    if (addresses == nullptr) return InvalidArgument("cluster: '%s' is not ps, worker or chief", role);
    MUSTER_RETURN_IF_ERROR(ParseAddresses(list, role, addresses));
  }
  MUSTER_RETURN_IF_ERROR(CheckAddressesDiffer(file.cluster));
  return file;
}

std::string FormatClusterFile(const ClusterFile& file) {
  Json cluster = Json::object();
  for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
    const auto& addresses = file.cluster.addresses(role);
    if (!addresses.empty()) cluster[RoleName(role)] = addresses;
  }
  const Json json = {
      {"version", kClusterFileVersion}, {"generation", file.generation}, {"cluster", std::move(cluster)}};
  return json.dump() + "\n";
}

}  // namespace muster
