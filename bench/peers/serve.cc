#include "serve.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

namespace aliquot::peers {
namespace {

// Small integers: their sums are exact in any order.
float input(int64_t i, int rank) {
  return static_cast<float>((i * 7 + rank * 13) % 251);
}

bool op_of(const std::string& name, Op* op) {
  static constexpr const char* kNames[] = {"all_reduce", "reduce_scatter",
                                           "all_gather", "gather", "scatter"};
  for (int i = 0; i < 5; ++i) {
    if (name == kNames[i]) return *op = static_cast<Op>(i), true;
  }
  return false;
}

class Shape {
 public:
  Shape(const Contestant& c, Op op, const Buffers& b)
      : op_(op), rank_(c.rank()), size_(c.size()), b_(b) {}

  int64_t src_count() const {
    bool own = op_ == Op::kAllGather || op_ == Op::kGather;
    return own ? b_.part : b_.elements;
  }
  int64_t dst_count() const {
    if (op_ == Op::kGather && rank_ != 0) return 0;
    bool own = op_ == Op::kReduceScatter || op_ == Op::kScatter;
    return own ? b_.part : b_.elements;
  }
  float expected(int64_t i) const {
    switch (op_) {
      case Op::kAllReduce: return sum(i);
      case Op::kReduceScatter: return sum(b_.part * rank_ + i);
      case Op::kScatter: return input(b_.part * rank_ + i, 0);
      default: return input(i % b_.part, static_cast<int>(i / b_.part));
    }
  }

 private:
  float sum(int64_t i) const {
    float value = 0;
    for (int r = 0; r < size_; ++r) value += input(i, r);
    return value;
  }
  const Op op_;
  const int rank_, size_;
  const Buffers b_;
};

std::string check(Contestant& c, Op op, const Buffers& b) {
  const Shape shape(c, op, b);
  if (b.dst != b.src) std::fill(b.dst, b.dst + shape.dst_count(), -1.0f);
  for (int64_t i = 0; i < shape.src_count(); ++i) b.src[i] = input(i, c.rank());
  c.barrier();
  c.run(op, b);
  c.barrier();
  std::string wrong;
  for (int64_t i = 0; i < shape.dst_count() && wrong.empty(); ++i) {
    if (b.dst[i] == shape.expected(i)) continue;
    std::ostringstream text;
    text << "rank " << c.rank() << ": element " << i << " of "
         << shape.dst_count() << " is " << b.dst[i] << ", expected "
         << shape.expected(i);
    wrong = text.str();
  }
  // Zeros stay zeros, however often they are summed in place.
  std::fill(b.src, b.src + b.elements, 0.0f);
  std::fill(b.dst, b.dst + b.elements, 0.0f);
  return wrong.empty() ? "ok" : wrong;
}

int64_t clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::string run(Contestant& c, Op op, const Buffers& b, int64_t calls) {
  c.barrier();
  int64_t begin = clock_ns();
  for (int64_t i = 0; i < calls; ++i) c.run(op, b);
  int64_t end = clock_ns();
  c.barrier();
  return std::to_string(begin) + " " + std::to_string(end);
}

std::string answer(Contestant& c, const std::string& line) {
  std::istringstream words(line);
  std::string what, name, kind;
  int64_t bytes = 0, calls = 0;
  words >> what >> name >> bytes >> kind >> calls;
  Op op;
  if (!op_of(name, &op) || bytes < 4 * c.size()) return "unknown: " + line;
  float* base = c.memory(kind, 2 * bytes);
  if (base == nullptr) return "no such memory: " + line;
  Buffers b;
  b.elements = bytes / int64_t{sizeof(float)};
  b.part = b.elements / c.size();
  b.src = base;
  b.dst = op == Op::kAllReduce ? base : base + b.elements;
  if (what == "check") return check(c, op, b);
  if (what == "run") return run(c, op, b, calls);
  return "unknown: " + line;
}

}  // namespace

int serve(Contestant& contestant, const std::string& dir) {
  const std::string rank = std::to_string(contestant.rank());
  std::ifstream in(dir + "/in-" + rank);
  std::ofstream out(dir + "/out-" + rank);
  out << "ready" << std::endl;
  std::string line;
  while (std::getline(in, line)) {
    if (line == "end") {
      out << "ok" << std::endl;
      return 0;
    }
    out << answer(contestant, line) << std::endl;
  }
  return 1;
}

}  // namespace aliquot::peers
