// The bare loops of private memory, between two ranks: what the other has is
// read where it is by process_vm_readv, which is the one way there without a
// copy more, as few calls as its caches allow, and nothing else.  Beside the
// loops on mapped memory they show what the system call itself costs.
#pragma once

#include <cstdint>
#include <memory>

#include "tools/bench_floor.h"

namespace aliquot::tools {

class CallsFloor {
 public:
  // Null where there is none: not two ranks, an operation without such a loop,
  // no memory, or no permission.  All ranks call it and get the same answer.
  static std::unique_ptr<CallsFloor> make(Team& team, Op op, int64_t elements,
                                          bool in_place);

  float* src() const { return src_; }
  float* dst() const { return dst_; }
  // One operation; both ranks call it.
  void run();

 private:
  struct Free {
    void operator()(float* p) const;
  };
  using Memory = std::unique_ptr<float, Free>;
  static Memory allocate(int64_t floats);

  CallsFloor(Team& team, Op op, int64_t elements);
  bool prepare(bool in_place);
  void fetch(float* to, const float* from, int64_t count);
  void sum(float* out, int64_t at, int64_t count);
  void copy_parts();
  void all_reduce();

  Team& team_;
  const Op op_;
  const int64_t elements_, part_;
  Memory memory_, scratch_;
  float* src_ = nullptr;
  float* dst_ = nullptr;
  const float* their_src_ = nullptr;  // addresses in the other process
  const float* their_dst_ = nullptr;
  int their_pid_ = 0;
  bool failed_ = false;
};

}  // namespace aliquot::tools
