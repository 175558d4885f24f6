#include "engine/model.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace aliquot::engine {

namespace {

constexpr int64_t kAlignBytes = 64;
constexpr int64_t kCutElements = 16;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Moves every cut that falls inside a row back to the row's begin.
void keep_rows_whole(const std::vector<Param>& params, Segment* segment) {
  for (size_t i = 1; i + 1 < segment->cuts.size(); ++i) {
    int64_t cut = segment->cuts[i];
    // The last parameter that begins before the cut.
    auto after = std::partition_point(
        segment->params.begin(), segment->params.end(),
        [&](int32_t p) { return params[static_cast<size_t>(p)].offset < cut; });
    if (after != segment->params.begin()) {
      const Param& param = params[static_cast<size_t>(*(after - 1))];
      if (cut < param.offset + param.count) {
        cut = param.offset + (cut - param.offset) / param.row() * param.row();
      }
    }
    segment->cuts[i] = std::max(cut, segment->cuts[i - 1]);
  }
}

// Each shard is cut again, for its replicas.
std::vector<int64_t> cut_twice(int64_t count, int32_t shards,
                               int32_t replicas) {
  std::vector<int64_t> coarse = even_cuts(count, shards), cuts;
  for (size_t i = 0; i + 1 < coarse.size(); ++i) {
    std::vector<int64_t> fine = even_cuts(coarse[i + 1] - coarse[i], replicas);
    fine.pop_back();  // the next shard begins there
    for (int64_t cut : fine) cuts.push_back(coarse[i] + cut);
  }
  cuts.push_back(count);
  return cuts;
}

// Differences of `n` neighbouring cuts, from cut `first` on, `step` apart.
std::vector<int64_t> counts_between(const std::vector<int64_t>& cuts,
                                    size_t first, size_t step, size_t n) {
  std::vector<int64_t> counts(n);
  for (size_t i = 0; i < n; ++i) {
    counts[i] = cuts[first + (i + 1) * step] - cuts[first + i * step];
  }
  return counts;
}

}  // namespace

void Model::place(int32_t id) {
  Param& param = params[static_cast<size_t>(id)];
  Bundle& bundle = bundles[static_cast<size_t>(param.bundle)];
  std::vector<Segment>& segments = bundle.segments;
  auto it =
      std::find_if(segments.begin(), segments.end(), [&](const Segment& s) {
        return s.dtype == param.dtype && s.trainable == param.trainable;
      });
  if (it == segments.end()) {
    Segment segment;
    segment.dtype = param.dtype;
    segment.trainable = param.trainable;
    it = segments.insert(segments.end(), std::move(segment));
  }
  param.segment = static_cast<int32_t>(it - segments.begin());
  param.offset = it->count;
  it->params.push_back(id);
  it->count =
      round_up(it->count + param.count, kAlignBytes / dtype_size(param.dtype));
  if (it->runs.empty() || it->runs.back().group != param.optim_group) {
    it->runs.push_back({param.optim_group, param.offset, it->count});
  }
  it->runs.back().end = it->count;
  bundle.trainable_params += param.trainable ? 1 : 0;
  bundle.has_frozen = bundle.has_frozen || !param.trainable;
}

std::vector<int64_t> Segment::shard_counts() const {
  size_t step = static_cast<size_t>(replicas);
  return counts_between(cuts, 0, step, (cuts.size() - 1) / step);
}

std::vector<int64_t> Segment::part_counts(int32_t shard) const {
  size_t step = static_cast<size_t>(replicas);
  return counts_between(cuts, static_cast<size_t>(shard) * step, 1, step);
}

Range Segment::range(Extent extent, int32_t shard, int32_t replica) const {
  if (extent == Extent::kWhole) return {0, count};
  bool part = extent == Extent::kPart;
  size_t first = static_cast<size_t>(shard) * static_cast<size_t>(replicas) +
                 static_cast<size_t>(part ? replica : 0);
  size_t last = first + static_cast<size_t>(part ? 1 : replicas);
  return {cuts[first], cuts[last] - cuts[first]};
}

std::vector<int64_t> even_cuts(int64_t count, int32_t shards) {
  int64_t chunk = round_up((count + shards - 1) / shards, kCutElements);
  std::vector<int64_t> cuts(static_cast<size_t>(shards) + 1);
  for (size_t i = 0; i < cuts.size(); ++i) {
    cuts[i] = std::min(count, static_cast<int64_t>(i) * chunk);
  }
  return cuts;
}

Status Model::build_bundles(int32_t shards, int32_t replicas) {
  bundles.clear();
  for (Unit& unit : units) unit.bundles.clear();

  // A bundle per distinct set of units, in order of first use.
  std::map<std::vector<int32_t>, int32_t> by_units;
  for (size_t u = 0; u < units.size(); ++u) {
    for (int32_t p : units[u].params) {
      Param& param = params[static_cast<size_t>(p)];
      auto [it, added] = by_units.try_emplace(
          param.units, static_cast<int32_t>(bundles.size()));
      if (added) {
        Bundle bundle;
        bundle.units = param.units;
        bundle.resident = param.units.size() > 1 || units[u].root;
        bundle.name = units[u].name + (param.units.size() > 1 ? " (tied)" : "");
        bundles.push_back(std::move(bundle));
      }
      param.bundle = it->second;
      std::vector<int32_t>& used = units[u].bundles;
      if (std::find(used.begin(), used.end(), it->second) == used.end()) {
        used.push_back(it->second);
      }
    }
  }

  for (const Param& param : params) {
    if (param.units.empty()) {
      return make_error(ALQ_FAILED_PRECONDITION,
                        "parameter \"{}\" is in no unit; add it to one with "
                        "alq_unit_add before planning",
                        param.name);
    }
  }
  std::vector<int32_t> order(params.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return params[static_cast<size_t>(a)].optim_group <
           params[static_cast<size_t>(b)].optim_group;
  });
  // Sums stay far from overflow whatever the element size.
  constexpr int64_t kMostElements = int64_t{1} << 52;
  int64_t elements = 0;
  for (const Param& param : params) {
    elements += param.count;
    if (elements > kMostElements) {
      return make_error(ALQ_RESOURCE_EXHAUSTED,
                        "the model has more than 2^52 elements up to parameter "
                        "\"{}\"; check the shapes",
                        param.name);
    }
  }
  for (int32_t p : order) place(p);

  for (Bundle& bundle : bundles) {
    for (Segment& segment : bundle.segments) {
      segment.replicas = replicas;
      segment.cuts = cut_twice(segment.count, shards, replicas);
      keep_rows_whole(params, &segment);
    }
  }
  return {};
}

}  // namespace aliquot::engine
