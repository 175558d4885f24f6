// Mesh: named axes over the world's ranks, first axis slowest, and the groups
// over one axis or several flattened ones.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace aliquot {

struct Axis {
  std::string name;
  int32_t size = 1;
};

// "dp_replicate=2,dp_shard=-1" over `world` ranks; -1 takes the rest, "" is one
// axis dp_shard.
Result<std::vector<Axis>> parse_mesh(std::string_view spec, int32_t world);

class Mesh {
 public:
  Mesh(std::shared_ptr<Group> world, std::vector<Axis> axes)
      : world_(std::move(world)), axes_(std::move(axes)) {}

  const std::vector<Axis>& axes() const { return axes_; }
  const std::shared_ptr<Group>& world() const { return world_; }
  int32_t axis_size(std::string_view name) const;
  // Coordinate of a world rank.
  int32_t coordinate(std::string_view name, int32_t rank) const;

  // World ranks that differ from `rank` only in the named axes, in mesh order.
  Result<std::vector<int32_t>> ranks(std::string_view axes, int32_t rank) const;

  // Collective on first use of a set of axes; `purpose` makes a communicator of
  // its own ("gather", "reduce") over the same ranks.
  Result<std::shared_ptr<Group>> group(std::string_view axes,
                                       std::string_view purpose,
                                       Deadline deadline);
  // Takes the place of that communicator, which has failed: made by a healthy
  // one of at least the same ranks.  Collective over `parent`.
  Result<std::shared_ptr<Group>> renew(std::string_view axes,
                                       std::string_view purpose, Group* parent,
                                       Deadline deadline);

 private:
  Result<std::string> key_of(std::string_view axes,
                             std::string_view purpose) const;
  Result<std::shared_ptr<Group>> make(const std::string& key,
                                      std::string_view axes, Group* parent,
                                      Deadline deadline);
  // For each axis of the mesh: is it named?
  Result<std::vector<bool>> select(std::string_view axes) const;

  std::shared_ptr<Group> world_;
  std::vector<Axis> axes_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

}  // namespace aliquot
