// What the scripted host computes on its stream, as a caller's own kernels do:
// copies of what it sees, and gradients that depend on it.  Over the stand-in
// for the driver `alq_test_op` is put on a stream with double_enqueue, on the
// CPU device it is called.
#include <time.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

extern "C" {

// Mirrored in scripted.py.
struct TestOp {
  int32_t kind;   // 0: seen = view; 1: a gradient; 2: sleeps count us
  int32_t dtype;  // 0 f64, 1 f32, 2 bf16
  int64_t count;
  const void* view;  // parameter, or null: as if zero
  void* seen;        // what the forward saw
  const double* draw;
  void* grad;
  int32_t adds;    // to what is in grad
  int32_t spoils;  // the last element is NaN
};

__attribute__((visibility("default"))) void alq_test_op(void* op);
}

namespace {

struct Bf16 {
  uint16_t bits;
};
double wide(double x) { return x; }
double wide(float x) { return static_cast<double>(x); }
double wide(Bf16 x) {
  return static_cast<double>(
      std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16));
}
void narrow(double x, double* to) { *to = x; }
void narrow(double x, float* to) { *to = static_cast<float>(x); }
void narrow(double x, Bf16* to) {  // truncates
  to->bits = static_cast<uint16_t>(
      std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
}

template <typename T>
void gradient(const TestOp& op) {
  const T* seen = static_cast<const T*>(op.seen);
  const T* view = static_cast<const T*>(op.view);
  T* grad = static_cast<T*>(op.grad);
  for (int64_t i = 0; i < op.count; ++i) {
    double g = op.draw[i] + 0.25 * wide(seen[i]) + 0.125 * wide(view[i]);
    if (op.adds != 0) g += wide(grad[i]);
    if (op.spoils != 0 && i + 1 == op.count) {
      g = std::numeric_limits<double>::quiet_NaN();
    }
    narrow(g, &grad[i]);
  }
}

}  // namespace

void alq_test_op(void* argument) {
  const TestOp& op = *static_cast<const TestOp*>(argument);
  constexpr size_t kWidth[] = {8, 4, 2};
  if (op.kind == 2) {
    timespec t{0, static_cast<long>(op.count) * 1000};
    nanosleep(&t, nullptr);
    return;
  }
  if (op.kind == 0) {
    std::memcpy(op.seen, op.view,
                static_cast<size_t>(op.count) * kWidth[op.dtype]);
    return;
  }
  switch (op.dtype) {
    case 0: return gradient<double>(op);
    case 1: return gradient<float>(op);
    default: return gradient<Bf16>(op);
  }
}
