#include "tools/bench_calls.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace aliquot::tools {
namespace {

constexpr int64_t kBlock = 262144;  // elements that are fetched to be added
constexpr size_t kHuge = size_t{2} << 20;

}  // namespace

void CallsFloor::Free::operator()(float* p) const { std::free(p); }

// On huge pages if it is as large as what the library moves to them.
CallsFloor::Memory CallsFloor::allocate(int64_t floats) {
  auto bytes = static_cast<size_t>(floats) * sizeof(float);
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  Memory memory(static_cast<float*>(std::aligned_alloc(kHuge, bytes)));
  if (memory != nullptr && bytes > 2 * kHuge) {
    madvise(memory.get(), bytes, MADV_HUGEPAGE);
  }
  return memory;
}

CallsFloor::CallsFloor(Team& team, Op op, int64_t elements)
    : team_(team),
      op_(op),
      elements_(elements),
      part_(elements / team.size()) {}

std::unique_ptr<CallsFloor> CallsFloor::make(Team& team, Op op,
                                             int64_t elements, bool in_place) {
  const bool known =
      op == Op::kAllReduce || op == Op::kAllGather || op == Op::kReduceScatter;
  if (team.size() != 2 || !known || elements == 0) return nullptr;
  std::unique_ptr<CallsFloor> floor(new CallsFloor(team, op, elements));
  const bool good = floor->prepare(in_place);
  if (team.largest(good ? 0 : 1) != 0) return nullptr;
  return floor;
}

bool CallsFloor::prepare(bool in_place) {
  const int me = team_.rank();
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
  memory_ = allocate(2 * elements_);
  scratch_ = allocate(std::min(kBlock, elements_));
  if (memory_ != nullptr) {
    std::memset(memory_.get(), 0, static_cast<size_t>(2 * elements_) * 4);
    float* own_part = memory_.get() + part_ * me;
    src_ = dst_ = memory_.get();
    if (!in_place) {
      dst_ += elements_;
    } else if (op_ == Op::kAllGather) {
      src_ = own_part;
    } else if (op_ == Op::kReduceScatter) {
      dst_ = own_part;
    }
  }
  const PeerMemory theirs =
      team_.tell_memory({getpid(), src_, dst_})[static_cast<size_t>(1 - me)];
  their_pid_ = theirs.pid;
  their_src_ = theirs.src;
  their_dst_ = theirs.dst;
  if (memory_ == nullptr || scratch_ == nullptr || their_src_ == nullptr) {
    return false;
  }
  fetch(scratch_.get(), their_src_, 1);
  return !failed_;
}

void CallsFloor::fetch(float* to, const float* from, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  iovec local{to, bytes};
  iovec remote{const_cast<float*>(from), bytes};
  failed_ |= process_vm_readv(their_pid_, &local, 1, &remote, 1, 0) !=
             static_cast<ssize_t>(bytes);
}

// out = both ranks' src from `at`, in rank order.
void CallsFloor::sum(float* out, int64_t at, int64_t count) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    fetch(scratch_.get(), their_src_ + at + i, n);
    const float* both[] = {src_ + at + i, scratch_.get()};
    const int first = team_.rank();
    add_floats(out + i, both[first], both[1 - first], n);
  }
}

void CallsFloor::copy_parts() {
  const int me = team_.rank();
  float* own = dst_ + part_ * me;
  if (own != src_) {
    std::memcpy(own, src_, static_cast<size_t>(part_) * sizeof(float));
  }
  fetch(dst_ + part_ * (1 - me), their_src_, part_);
}

void CallsFloor::all_reduce() {
  const int me = team_.rank();
  auto begin = [&](int r) { return elements_ * r / 2; };
  sum(dst_ + begin(me), begin(me), begin(me + 1) - begin(me));
  team_.barrier();
  const int other = 1 - me;
  fetch(dst_ + begin(other), their_dst_ + begin(other),
        begin(other + 1) - begin(other));
}

void CallsFloor::run() {
  team_.barrier();
  if (op_ == Op::kAllGather) copy_parts();
  if (op_ == Op::kReduceScatter) sum(dst_, part_ * team_.rank(), part_);
  if (op_ == Op::kAllReduce) all_reduce();
  if (failed_) team_.fail("process_vm_readv between the ranks failed");
  team_.barrier();
}

}  // namespace aliquot::tools
