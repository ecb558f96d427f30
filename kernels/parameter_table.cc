#include "kernels/parameter_table.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/random.h"

namespace muster {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxWidth = 1 << 16;
constexpr int64_t kFirstRoom = 64;  // rows

// Tensors of a layout draw from the streams 0, 1, ...
constexpr uint64_t kTableStreams = uint64_t{1} << 32;

}  // namespace

absl::Status ValidateTables(std::span<const TableSpec> tables, size_t optimizer_count) {
  std::set<std::string> names;
  for (const TableSpec& table : tables) {
    if (!names.insert(table.name).second) return InvalidArgument("two tables are named '%s'", table.name);
    if (table.rows < 1 || table.rows > kMaxRows) {
      return InvalidArgument("table '%s' has %d rows, expected 1 to %d", table.name, table.rows, kMaxRows);
    }
    if (table.width < 1 || table.width > kMaxWidth) {
      return InvalidArgument("a row of table '%s' has %d numbers, expected 1 to %d", table.name, table.width,
                             kMaxWidth);
    }
    if (table.optimizer_group < 0 || static_cast<size_t>(table.optimizer_group) >= optimizer_count) {
      return InvalidArgument("table '%s' is of optimizer group %d, for which there is no optimizer",
                             table.name, table.optimizer_group);
    }
  }
  return absl::OkStatus();
}

ParameterTable::ParameterTable(const TableSpec& spec, int index, const OptimizerConfig& optimizer,
                               uint64_t seed)
    : spec_(spec),
      seed_(RandomStream(seed, kTableStreams + index).Next()),
      optimizer_(MakeOptimizer(optimizer, 0)) {}

void ParameterTable::Read(std::span<const int64_t> ids, std::span<float> values) const {
  const int64_t width = spec_.width;
  MUSTER_CHECK(values.size() == ids.size() * width);
  float* to = values.data();
  for (const int64_t id : ids) {
    MUSTER_CHECK(id >= 0 && id < spec_.rows, "a row outside the table");
    if (const auto found = places_.find(id); found != places_.end()) {
      std::copy_n(values_.data() + found->second * width, width, to);
    } else {
      InitializeValues(spec_.initializer, spec_.scale, seed_, id * width, {to, static_cast<size_t>(width)});
    }
    to += width;
  }
}

// Of a row that is there, or is there from now on with its initial values.
int64_t ParameterTable::PlaceOf(int64_t id) {
  const int64_t width = spec_.width;
  MUSTER_CHECK(id >= 0 && id < spec_.rows, "a row outside the table");
  const auto [found, is_new] = places_.try_emplace(id, updated_rows());
  const int64_t place = found->second;
  if (!is_new) return place;
  const int64_t room = static_cast<int64_t>(values_.size()) / width;
  if (place == room) {
    values_.resize(std::max(kFirstRoom, 2 * room) * width);
    optimizer_->Grow(static_cast<int64_t>(values_.size()));
  }
  InitializeValues(spec_.initializer, spec_.scale, seed_, id * width, RowAt(place));
  return place;
}

void ParameterTable::Apply(std::span<const int64_t> ids, std::span<const float> gradient_sums,
                           UpdateScale scale) {
  const int64_t width = spec_.width;
  touched_.clear();
  for (const int64_t id : ids) touched_.push_back(PlaceOf(id));
  optimizer_->ApplyRows(width, touched_, gradient_sums, scale, values_);
}

TableRows ParameterTable::CopyRows() const {
  const int64_t count = updated_rows(), floats = count * spec_.width;
  TableRows rows{.ids = std::vector<int64_t>(count), .values = {values_.begin(), values_.begin() + floats}};
  for (const auto& [id, place] : places_) rows.ids[place] = id;
  for (const std::span<float> slot : optimizer_->slots()) {
    rows.slots.emplace_back(slot.begin(), slot.begin() + floats);
  }
  return rows;
}

absl::Status ParameterTable::RestoreRows(const TableRows& rows) {
  const size_t floats = rows.ids.size() * spec_.width;
  bool fits = rows.values.size() == floats && rows.slots.size() == optimizer_->slots().size();
  for (const std::vector<float>& slot : rows.slots) fits = fits && slot.size() == floats;
  if (!fits)
    return InvalidArgument("%d rows of table '%s' with values of other sizes", rows.ids.size(), spec_.name);
  absl::flat_hash_set<int64_t> distinct;
  for (const int64_t id : rows.ids) {
    if (id < 0 || id >= spec_.rows)
      return InvalidArgument("row %d of table '%s', which has %d", id, spec_.name, spec_.rows);
    if (places_.contains(id) || !distinct.insert(id).second) {
      return InvalidArgument("row %d of table '%s' is there twice", id, spec_.name);
    }
  }
  const int64_t width = spec_.width;
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    const int64_t to = PlaceOf(rows.ids[i]) * width, from = static_cast<int64_t>(i) * width;
    std::copy_n(rows.values.begin() + from, width, values_.begin() + to);
    const auto slots = optimizer_->slots();
    for (size_t s = 0; s < slots.size(); ++s)
      std::copy_n(rows.slots[s].begin() + from, width, slots[s].begin() + to);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ParameterTable>> MakeTables(std::span<const TableSpec> tables,
                                                       std::span<const OptimizerConfig> by_group,
                                                       uint64_t seed) {
  MUSTER_RETURN_IF_ERROR(ValidateTables(tables, by_group.size()));
  std::vector<ParameterTable> made;
  for (size_t i = 0; i < tables.size(); ++i) {
    made.emplace_back(tables[i], static_cast<int>(i), by_group[tables[i].optimizer_group], seed);
  }
  return made;
}

}  // namespace muster
