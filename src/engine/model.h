// What the host registered: parameters, units, and the bundles they form.
//
// A bundle is what is gathered and freed together: the parameters that one unit
// has for itself, or those that the same set of units shares (tied).  A
// bundle's parameters lie in one flat buffer, in segments of equal (dtype,
// trainable), so that a gather or a reduction is one operation per segment
// whatever is mixed in a unit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/placement.h"

namespace aliquot::engine {

struct Param {
  std::string name;
  std::vector<int64_t> shape;
  int64_t count = 0;
  Dtype dtype = ALQ_F32;
  bool trainable = false;
  bool whole_rows = false;
  int32_t optim_group = 0;
  std::vector<int32_t> units;  // those that use it
  // Set by build_bundles: where it lies.
  int32_t bundle = -1, segment = -1;
  int64_t offset = 0;  // in elements, in the segment's full buffer

  int64_t row() const {  // elements that may not be split
    return whole_rows && !shape.empty() && shape[0] > 0 ? count / shape[0] : 1;
  }
};

struct Unit {
  std::string name;
  std::vector<int32_t> params;
  bool root = false;
  std::vector<int32_t> bundles;         // set by build_bundles
  std::optional<AxisMasks> place = {};  // instead of the plan's placement
};

// Neighbouring parameters of one optimizer group: one launch per step.
struct Run {
  int32_t group = 0;
  int64_t begin = 0, end = 0;  // elements of the segment
};

// Elements [begin, begin + count) of a segment.
struct Range {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
};

struct Segment {
  Dtype dtype = ALQ_F32;
  bool trainable = false;
  std::vector<int32_t> params;  // ascending offsets, ascending optim_group
  std::vector<Run> runs;
  int64_t count = 0;  // elements, with alignment gaps
  // Part j of shard i begins at cuts[i * replicas + j]; the next cut ends it.
  std::vector<int64_t> cuts;
  int32_t replicas = 1;

  int64_t bytes() const { return count * dtype_size(dtype); }
  // Elements that a rank at this place keeps.
  Range range(Extent extent, int32_t shard, int32_t replica) const;
  std::vector<int64_t> shard_counts() const;
  std::vector<int64_t> part_counts(int32_t shard) const;
};

struct Bundle {
  std::string name;
  std::vector<int32_t> units;
  bool resident = false;  // root or tied: memory of its own
  std::vector<Segment> segments;
  int32_t trainable_params = 0;
  bool has_frozen = false;
};

struct Model {
  std::vector<Param> params;
  std::vector<Unit> units;
  std::vector<Bundle> bundles;

  // Groups parameters into bundles and lays out their segments, each parameter
  // aligned to 64 bytes, cut evenly over `shards` ranks and each shard over
  // `replicas` (whole rows stay whole).  Parameters in no unit are an error
  // naming them.
  Status build_bundles(int32_t shards, int32_t replicas = 1);

 private:
  void place(int32_t param);
};

// Even cuts of [0, count) in `shards` parts, multiples of 16 elements except
// the end; later parts may be empty.
std::vector<int64_t> even_cuts(int64_t count, int32_t shards);

}  // namespace aliquot::engine
