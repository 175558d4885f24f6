#include "device/cpu/overlap.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace aliquot {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr size_t kBlock = size_t{256} << 10;
constexpr int kTries = 3;
// Each part takes about as long as gathering a small unit.
constexpr double kSeconds = 0.003;
constexpr int64_t kMostRounds = 100'000'000;

struct Buffers {
  std::vector<std::byte> from = std::vector<std::byte>(kBytes, std::byte{1});
  std::vector<std::byte> to = std::vector<std::byte>(kBytes);
};

class CopyOp : public Op {
 public:
  CopyOp(std::shared_ptr<Buffers> buffers, size_t bytes)
      : buffers_(std::move(buffers)), left_(bytes) {}
  Step step(bool) override {
    size_t n = std::min(left_, kBlock), at = left_ % (kBytes - kBlock);
    std::memcpy(buffers_->to.data() + at, buffers_->from.data() + at, n);
    left_ -= n;
    return left_ == 0 ? Step::kDone : Step::kProgress;
  }

 private:
  const std::shared_ptr<Buffers> buffers_;
  size_t left_;
};

double seconds_since(int64_t start) {
  return static_cast<double>(now_ns() - start) * 1e-9;
}

// Arithmetic without memory.  Its first and last values are volatile: the
// compiler may not move the work out from between two looks at the clock.
void compute(int64_t rounds) {
  volatile double ends = 1;
  double x = ends;
  for (int64_t i = 0; i < rounds; ++i) x = x * 0.999999 + 1e-6;
  ends = x;
}

// The bound ends the search should the clock stand still.
int64_t rounds_for(double seconds) {
  int64_t rounds = 100'000;
  for (; rounds < kMostRounds; rounds *= 2) {
    int64_t start = now_ns();
    compute(rounds);
    double took = seconds_since(start);
    if (took >= seconds / 2) {
      return static_cast<int64_t>(static_cast<double>(rounds) * seconds / took);
    }
  }
  return rounds;
}

}  // namespace

double OverlapTimes::hidden() const {
  double shorter = std::min(compute, copy);
  if (!(shorter > 0)) return 0;
  return std::clamp((compute + copy - both) / shorter, 0.0, 1.0);
}

Result<OverlapTimes> measure_overlap(CpuDevice& device, Deadline deadline) {
  auto buffers = std::make_shared<Buffers>();
  std::shared_ptr<Queue> queue = device.runner()->create_queue("overlap");
  const int64_t rounds = rounds_for(kSeconds);
  size_t bytes = kBytes;
  OverlapTimes best;
  for (int attempt = 0; attempt <= kTries; ++attempt) {
    OverlapTimes t;
    int64_t start = now_ns();
    CopyOp alone(buffers, bytes);
    while (alone.step(false) != Step::kDone) {
    }
    t.copy = seconds_since(start);
    start = now_ns();
    compute(rounds);
    t.compute = seconds_since(start);
    start = now_ns();
    queue->enqueue<CopyOp>(buffers, bytes);
    compute(rounds);
    ALQ_TRY(device.synchronize(*queue, deadline));
    t.both = seconds_since(start);
    if (attempt == 0) {  // warms up, and sizes the copy
      double scale = std::clamp(kSeconds / std::max(t.copy, 1e-6), 0.1, 50.0);
      bytes = static_cast<size_t>(static_cast<double>(kBytes) * scale);
    } else if (attempt == 1 || t.hidden() > best.hidden()) {
      best = t;
    }
  }
  return best;
}

}  // namespace aliquot
