// What tests of collectives share: cases, their buffers, running them on all
// kinds of ranks.
#pragma once

#include <boost/test/unit_test.hpp>
#include <functional>

#include "multi/comm/reference.h"
#include "support/ranks.h"

namespace aliquot::test {

// Where a rank's buffers lie: its own heap or memory that peers can map.
enum class Where { kPrivate, kShared };

struct Case {
  Dtype dtype = ALQ_F32;
  int64_t count = 0;
  bool in_place = false;
  Where where = Where::kPrivate;
  alq_reduce_op op = ALQ_SUM;
  Dtype out = 0;
  bool accumulate = false;
  std::vector<int64_t> counts = {};

  std::string text() const {
    return fmt::format(
        "{} x {}{}{}{}{}", count, dtype_name(dtype),
        in_place ? " in place" : "", where == Where::kShared ? " shared" : "",
        counts.empty() ? "" : " uneven", accumulate ? " accumulate" : "");
  }
};

// Bytes that live as long as the test case, in the asked place.
class Bytes {
 public:
  Bytes(Rank& rank, Where where, int64_t bytes) {
    if (bytes == 0) return;
    if (where == Where::kPrivate) {
      heap_.resize(static_cast<size_t>(bytes));
      data_ = heap_.data();
      return;
    }
    auto memory = rank.device->allocate(bytes, "test");
    rank.check_ok(memory.status(), "allocate");
    memory_ = std::move(*memory);
    data_ = memory_->data();
  }
  std::byte* data() { return data_; }
  void set(const Buffer& from) {
    if (!from.empty()) std::memcpy(data_, from.data(), from.size());
  }

 private:
  Buffer heap_;
  std::unique_ptr<Memory> memory_;
  std::byte* data_ = nullptr;
};

inline Coll coll_of(CollKind kind, const Case& c) {
  Coll coll;
  coll.kind = kind;
  coll.count = c.count;
  coll.counts = c.counts;
  coll.dtype = c.dtype;
  coll.out_dtype = c.out;
  coll.op = c.op;
  coll.accumulate = c.accumulate;
  return coll;
}

inline int64_t count_of(const Case& c, int32_t q) {
  return c.counts.empty() ? c.count : c.counts[static_cast<size_t>(q)];
}

inline int64_t begin_of(const Case& c, int32_t q) {
  int64_t begin = 0;
  for (int32_t i = 0; i < q; ++i) begin += count_of(c, i);
  return begin;
}

inline std::vector<Buffer> all_filled(Rank& rank, const Case& c,
                                      int64_t count) {
  std::vector<Buffer> all;
  for (int32_t q = 0; q < rank.size; ++q) {
    all.push_back(filled(c.dtype, count, q, c.count));
  }
  return all;
}

inline void check_bits(Rank& rank, const std::byte* got, const Buffer& want,
                       const char* what, const Case& c) {
  std::string diff = difference(got, want);
  rank.check(diff.empty(), fmt::format("{} {}: {}", what, c.text(), diff));
}

inline void everywhere(const std::vector<int32_t>& sizes,
                       const std::function<void(Rank&)>& body,
                       std::vector<RankKind> ways = kinds()) {
  for (RankKind kind : ways) {
    for (int32_t size : sizes) {
      auto result = run_ranks(options(size, kind), body);
      BOOST_TEST(result.ok(),
                 size << " " << kind_name(kind) << ": " << result.text());
    }
  }
}

}  // namespace aliquot::test
