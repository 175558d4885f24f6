#include "mesh/mesh.h"

#include <algorithm>
#include <charconv>

namespace aliquot {

namespace {

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> items;
  while (!text.empty()) {
    size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    items.push_back(item);
  }
  return items;
}

bool good_name(std::string_view name) {
  return !name.empty() && name.size() <= 32 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

Status add_axis(std::string_view item, std::vector<Axis>* axes) {
  size_t equals = item.find('=');
  std::string_view name = item.substr(0, equals);
  int32_t size = 0;
  if (equals != std::string_view::npos) {
    std::string_view number = item.substr(equals + 1);
    auto [end, ec] =
        std::from_chars(number.data(), number.data() + number.size(), size);
    if (ec != std::errc() || end != number.data() + number.size()) size = 0;
  }
  if (!good_name(name) || (size < 1 && size != -1)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "mesh axis \"{}\": write name=size with a size of at "
                      "least 1 (or -1 for the rest), as in \"dp_shard=4\"",
                      item);
  }
  for (const Axis& axis : *axes) {
    if (axis.name == name) {
      return make_error(ALQ_INVALID_ARGUMENT, "mesh axis \"{}\" is given twice",
                        name);
    }
  }
  axes->push_back({std::string(name), size});
  return {};
}

}  // namespace

Result<std::vector<Axis>> parse_mesh(std::string_view spec, int32_t world) {
  std::vector<Axis> axes;
  for (std::string_view item : split_commas(spec)) {
    ALQ_TRY(add_axis(item, &axes));
  }
  if (axes.empty()) axes.push_back({"dp_shard", world});
  int64_t product = 1;
  Axis* rest = nullptr;
  for (Axis& axis : axes) {
    if (axis.size == -1) {
      if (rest != nullptr) {
        return make_error(ALQ_INVALID_ARGUMENT,
                          "mesh \"{}\": only one axis may be -1", spec);
      }
      rest = &axis;
    } else {
      product *= axis.size;
      if (product > world) break;
    }
  }
  if (rest != nullptr && product <= world && world % product == 0) {
    rest->size = static_cast<int32_t>(world / product);
    product = world;
  }
  if (product != world) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "mesh \"{}\": the axes {} to {} ranks but the world has "
                      "{}; change the sizes or start that many ranks",
                      spec, rest != nullptr ? "do not divide" : "multiply",
                      product, world);
  }
  return axes;
}

int32_t Mesh::axis_size(std::string_view name) const {
  for (const Axis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int32_t Mesh::coordinate(std::string_view name, int32_t rank) const {
  for (size_t i = axes_.size(); i-- > 0;) {
    int32_t at = rank % axes_[i].size;
    if (axes_[i].name == name) return at;
    rank /= axes_[i].size;
  }
  return 0;
}

Result<std::vector<bool>> Mesh::select(std::string_view axes) const {
  std::vector<bool> selected(axes_.size(), false);
  for (std::string_view name : split_commas(axes)) {
    auto it = std::find_if(axes_.begin(), axes_.end(),
                           [&](const Axis& a) { return a.name == name; });
    // An axis that the mesh does not have is one of size 1.
    if (it == axes_.end()) {
      if (!good_name(name)) {
        return make_error(ALQ_INVALID_ARGUMENT, "bad axis name \"{}\"", name);
      }
      continue;
    }
    selected[static_cast<size_t>(it - axes_.begin())] = true;
  }
  return selected;
}

Result<std::vector<int32_t>> Mesh::ranks(std::string_view axes,
                                         int32_t rank) const {
  ALQ_ASSIGN(std::vector<bool> selected, select(axes));
  std::vector<int32_t> out;
  for (int32_t other = 0; other < world_->size(); ++other) {
    int32_t a = rank, b = other;
    bool same = true;
    for (size_t i = axes_.size(); i-- > 0;) {
      int32_t size = axes_[i].size;
      same = same && (selected[i] || a % size == b % size);
      a /= size;
      b /= size;
    }
    if (same) out.push_back(other);
  }
  return out;
}

Result<std::string> Mesh::key_of(std::string_view axes,
                                 std::string_view purpose) const {
  ALQ_ASSIGN(std::vector<bool> selected, select(axes));
  std::string key;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (selected[i]) key += (key.empty() ? "" : ",") + axes_[i].name;
  }
  if (!purpose.empty()) key += fmt::format(" {}", purpose);
  return key;
}

Result<std::shared_ptr<Group>> Mesh::make(const std::string& key,
                                          std::string_view axes, Group* parent,
                                          Deadline deadline) {
  ALQ_ASSIGN(std::vector<int32_t> members, ranks(axes, world_->rank()));
  ALQ_ASSIGN(std::shared_ptr<Group> group,
             parent->split(members.front(), world_->rank(), key, deadline));
  groups_[key] = group;
  return group;
}

Result<std::shared_ptr<Group>> Mesh::group(std::string_view axes,
                                           std::string_view purpose,
                                           Deadline deadline) {
  ALQ_ASSIGN(std::string key, key_of(axes, purpose));
  if (auto it = groups_.find(key); it != groups_.end()) return it->second;
  return make(key, axes, world_.get(), deadline);
}

Result<std::shared_ptr<Group>> Mesh::renew(std::string_view axes,
                                           std::string_view purpose,
                                           Group* parent, Deadline deadline) {
  ALQ_ASSIGN(std::string key, key_of(axes, purpose));
  return make(key, axes, parent, deadline);
}

}  // namespace aliquot
