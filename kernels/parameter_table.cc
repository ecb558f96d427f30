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
                               uint64_t seed, RowEviction eviction)
    : spec_(spec),
      seed_(RandomStream(seed, kTableStreams + index).Next()),
      eviction_(eviction),
      optimizer_(MakeOptimizer(optimizer, 0)) {
  MUSTER_CHECK(!eviction.is_on() || eviction.every > 0, "an eviction that is never due");
}

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
    optimizer_->Resize(static_cast<int64_t>(values_.size()));
  }
  if (eviction_.is_on()) last_updates_.push_back(updates_);
  InitializeValues(spec_.initializer, spec_.scale, seed_, id * width, RowAt(place));
  return place;
}

void ParameterTable::Apply(std::span<const int64_t> ids, std::span<const float> gradient_sums,
                           UpdateScale scale) {
  const int64_t width = spec_.width;
  touched_.clear();
  for (const int64_t id : ids) touched_.push_back(PlaceOf(id));
  optimizer_->ApplyRows(width, touched_, gradient_sums, scale, values_);
  ++updates_;
  if (!eviction_.is_on()) return;
  for (const int64_t place : touched_) last_updates_[place] = updates_;
  if (updates_ % eviction_.every == 0) Evict();
}

// The rows that stay move down in their order, into the places of those that go.
void ParameterTable::Evict() {
  const std::vector<int64_t> ids = IdsByPlace();
  std::vector<std::span<float>> arrays = optimizer_->slots();
  arrays.emplace_back(values_);
  const int64_t width = spec_.width;
  absl::flat_hash_map<int64_t, int64_t> places;
  for (size_t from = 0; from < ids.size(); ++from) {
    const uint64_t age = updates_ - std::min(updates_, last_updates_[from]);
    if (age / eviction_.every >= eviction_.after) continue;
    const int64_t to = static_cast<int64_t>(places.size());
    places.emplace(ids[from], to);
    last_updates_[to] = last_updates_[from];
    for (const std::span<float> array : arrays) {
      std::copy_n(array.begin() + static_cast<int64_t>(from) * width, width, array.begin() + to * width);
    }
  }
  if (places.size() == places_.size()) return;
  places_ = std::move(places);
  last_updates_.resize(places_.size());
  // Both end with the last row, so that what comes next finds fresh slots.
  values_.resize(places_.size() * width);
  optimizer_->Resize(static_cast<int64_t>(values_.size()));
}

void ParameterTable::SkipTo(uint64_t updates) {
  updates_ = updates;
  optimizer_->SkipTo(updates);
}

std::vector<int64_t> ParameterTable::IdsByPlace() const {
  std::vector<int64_t> ids(places_.size());
  for (const auto& [id, place] : places_) ids[place] = id;
  return ids;
}

TableRows ParameterTable::CopyRows() const {
  const int64_t floats = updated_rows() * spec_.width;
  TableRows rows{.ids = IdsByPlace(),
                 .values = {values_.begin(), values_.begin() + floats},
                 .last_updates = last_updates_};
  for (const std::span<float> slot : optimizer_->slots()) {
    rows.slots.emplace_back(slot.begin(), slot.begin() + floats);
  }
  return rows;
}

absl::Status ParameterTable::RestoreRows(const TableRows& rows, uint64_t made) {
  const size_t floats = rows.ids.size() * spec_.width;
  bool fits = rows.values.size() == floats && rows.slots.size() == optimizer_->slots().size();
  for (const std::vector<float>& slot : rows.slots) fits = fits && slot.size() == floats;
  fits = fits && (rows.last_updates.empty() || rows.last_updates.size() == rows.ids.size());
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
    const int64_t place = PlaceOf(rows.ids[i]), to = place * width, from = static_cast<int64_t>(i) * width;
    if (eviction_.is_on()) last_updates_[place] = rows.last_updates.empty() ? made : rows.last_updates[i];
    std::copy_n(rows.values.begin() + from, width, values_.begin() + to);
    const auto slots = optimizer_->slots();
    for (size_t s = 0; s < slots.size(); ++s)
      std::copy_n(rows.slots[s].begin() + from, width, slots[s].begin() + to);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ParameterTable>> MakeTables(std::span<const TableSpec> tables,
                                                       std::span<const OptimizerConfig> by_group,
                                                       uint64_t seed, RowEviction eviction) {
  MUSTER_RETURN_IF_ERROR(ValidateTables(tables, by_group.size()));
  std::vector<ParameterTable> made;
  for (size_t i = 0; i < tables.size(); ++i) {
    made.emplace_back(tables[i], static_cast<int>(i), by_group[tables[i].optimizer_group], seed, eviction);
  }
  return made;
}

}  // namespace muster
