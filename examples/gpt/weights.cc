#include "weights.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "rng.h"
#include "session.h"

namespace gpt {
namespace {

constexpr int64_t kPiece = 65536;          // elements in flight
constexpr uint64_t kFirstInitStream = 16;  // below: the sampler's

void draw(const ParamSpec& spec, uint64_t seed, uint64_t stream, int64_t begin,
          std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    const uint64_t bits =
        random_bits(seed, stream, static_cast<uint64_t>(begin) + i);
    (*values)[i] =
        spec.init_std > 0 ? spec.init_std * random_normal(bits) : 1.0;
  }
}

}  // namespace

void init_weights(Engine& engine, const Layout& layout, uint64_t seed) {
  Status status;
  std::vector<double> values;
  for (size_t p = 0; p < layout.params.size(); ++p) {
    const int64_t id = engine.param(p);
    auto own = make_desc<alq_shard>();
    status.check(alq_shard_view(engine.handle(), id, ALQ_VALUE, &own, status));
    const int64_t end = own.begin + own.count;
    for (int64_t begin = own.begin; begin < end; begin += kPiece) {
      values.resize(static_cast<size_t>(std::min(kPiece, end - begin)));
      draw(layout.params[p], seed, kFirstInitStream + p, begin, &values);
      status.check(alq_param_write(
          engine.handle(), id, ALQ_VALUE, values.data(), begin,
          static_cast<int64_t>(values.size()), ALQ_F64, status));
    }
  }
}

uint64_t hash_weights(Engine& engine, const Layout& layout) {
  Status status;
  std::vector<double> values;
  uint64_t hash = 0;
  for (size_t p = 0; p < layout.params.size(); ++p) {
    const int64_t count = layout.params[p].count();
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      values.resize(static_cast<size_t>(std::min(kPiece, count - begin)));
      status.check(alq_param_read(
          engine.handle(), engine.param(p), ALQ_VALUE, values.data(), begin,
          static_cast<int64_t>(values.size()), ALQ_F64, status));
      for (const double v : values) {
        hash = mix(hash ^ std::bit_cast<uint64_t>(v));
      }
    }
  }
  return hash;
}

}  // namespace gpt
