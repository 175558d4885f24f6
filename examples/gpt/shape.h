// The model's sizes, and from them the list of its parameters and units.
//
// Unit 0 is the root: embedding, final norm and, unless tied, the head.  It
// stays open over the others.  Unit 1 + l is block l.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

constexpr int64_t kVocab = 256;  // bytes

struct Shape {
  int64_t layers = 4, hidden = 128, heads = 4, kv_heads = 2, ffn = 344;
  int64_t seq = 128, micro_batch = 4;
  bool tied = false;
  bool checkpoint = false;  // keep only the blocks' inputs

  int64_t head_dim() const { return hidden / heads; }
  int64_t kv_dim() const { return kv_heads * head_dim(); }
  int64_t rows() const { return micro_batch * seq; }
};

// Why a shape cannot be, with the numbers; empty if it can.
std::string why_not(const Shape& shape);

// Parameters of the root unit.
enum RootParam : int64_t { kEmbed, kFinalNorm, kHead, kRootParams };

// Parameters of a block.  Matrices are [out, in]: y = x W^T.
enum BlockParam : int64_t {
  kNorm1,
  kQ,
  kK,
  kV,
  kO,
  kNorm2,
  kGate,
  kUp,
  kDown,
  kBlockParams
};

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  double init_std;  // 0: ones
  bool decay;       // weight decay applies

  int64_t count() const;
};

struct UnitSpec {
  std::string name;
  bool root;
  std::vector<int64_t> params;  // indices into Layout::params
};

struct Layout {
  std::vector<ParamSpec> params;
  std::vector<UnitSpec> units;

  int64_t count() const;  // all parameters' elements
};

Layout layout_of(const Shape& shape);

}  // namespace gpt
