// Every collective, over the stand-ins, against sequential references.
#include <boost/test/unit_test.hpp>

#include "multi/nccl/gpu_ranks.h"

namespace aliquot::test {
namespace {

constexpr int64_t kGuard = 64;

struct Sizes {
  int64_t count;
  bool uneven;
};

// One case: buffers of all ranks and what this one must end with.
class Trial {
 public:
  Trial(Rank& rank, Gpu& gpu, Coll call)
      : rank_(rank), gpu_(gpu), coll_(call) {}

  // src and dst are laid out here; in_place: dst lies in src or the other way
  // round, `shift` bytes on.
  void run(const Buffer& src, const Buffer& before, const Buffer& want,
           bool in_place, int64_t shift, const std::string& what) {
    auto bytes = [](const Buffer& b) { return static_cast<int64_t>(b.size()); };
    Buffer room = before;
    room.resize(before.size() + kGuard, std::byte{0x5a});
    if (in_place) {
      in_one(src, want, shift, what);
      return;
    }
    GpuBytes from(rank_, gpu_, bytes(src)), to(rank_, gpu_, bytes(room));
    from.set(src);
    to.set(room);
    coll_.src = from.data();
    coll_.dst = to.data();
    issue(what);
    std::copy(want.begin(), want.end(), room.begin());
    check(to.get(gpu_.stream.get(), 0, bytes(room)), room, what);
  }

 private:
  // shift >= 0: dst is at src + shift; else src is at dst - shift.
  void in_one(const Buffer& src, const Buffer& want, int64_t shift,
              const std::string& what) {
    int64_t from = shift < 0 ? -shift : 0, to = shift < 0 ? 0 : shift;
    int64_t whole = std::max(from + static_cast<int64_t>(src.size()),
                             to + static_cast<int64_t>(want.size()));
    GpuBytes both(rank_, gpu_, whole);
    both.set(src, from);
    coll_.src = both.data() == nullptr ? nullptr : both.data() + from;
    coll_.dst = both.data() == nullptr ? nullptr : both.data() + to;
    issue(what);
    check(both.get(gpu_.stream.get(), to, static_cast<int64_t>(want.size())),
          want, what);
  }

  void issue(const std::string& what) {
    std::shared_ptr<Work> work;
    rank_.check_ok(gpu_.group->issue(coll_, gpu_.stream.get(), &work), what);
    if (work == nullptr) return;
    rank_.check_ok(work->wait(rank_.context->deadline(0)), what);
    rank_.check(work->done(), what + ": done after wait");
  }

  void check(const Buffer& got, const Buffer& want, const std::string& what) {
    std::string diff = difference(got.data(), want);
    rank_.check(diff.empty(), what + ": " + diff);
  }

  Rank& rank_;
  Gpu& gpu_;
  Coll coll_;
};

Buffer joined(const std::vector<Buffer>& parts) {
  Buffer all;
  for (const Buffer& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

std::vector<int64_t> counts_of(int32_t size, Sizes sizes) {
  std::vector<int64_t> out;
  for (int32_t q = 0; q < size; ++q) {
    out.push_back(sizes.uneven ? (q == 1 ? 0 : sizes.count + 3 * q)
                               : sizes.count);
  }
  return out;
}

// Sums as NCCL's stand-in forms them: of half types rounded at each step.
Buffer summed(const std::vector<Buffer>& srcs, Dtype dtype, alq_reduce_op op) {
  Buffer sum = srcs[0];
  if (dtype_size(dtype) != 2) return reduced(srcs, dtype, dtype, op);
  for (size_t q = 1; q < srcs.size(); ++q) {
    sum = reduced({sum, srcs[q]}, dtype, dtype, op);
  }
  return sum;
}

Coll call(CollKind kind, Dtype dtype, const std::vector<int64_t>& counts,
          bool uneven, int32_t rank) {
  Coll coll;
  coll.kind = kind;
  coll.dtype = dtype;
  coll.count = counts[static_cast<size_t>(rank)];
  if (uneven) coll.counts = counts;
  coll.label = "unit";
  return coll;
}

void moves(Rank& rank, Gpu& gpu, Dtype dtype, Sizes sizes, bool in_place) {
  const std::vector<int64_t> counts = counts_of(rank.size, sizes);
  const int64_t element = dtype_size(dtype), me = rank.rank;
  std::vector<Buffer> parts;
  for (int32_t q = 0; q < rank.size; ++q) {
    parts.push_back(filled(dtype, counts[static_cast<size_t>(q)], q, 1));
  }
  const Buffer all = joined(parts), &mine = parts[static_cast<size_t>(me)];
  int64_t before = 0;
  for (int64_t q = 0; q < me; ++q) before += counts[static_cast<size_t>(q)];
  before *= element;
  std::string what =
      fmt::format("{} x {}{}{}", sizes.count, dtype_name(dtype),
                  sizes.uneven ? " uneven" : "", in_place ? " in place" : "");
  auto made = [&](CollKind kind) {
    return call(kind, dtype, counts, sizes.uneven, rank.rank);
  };
  Trial(rank, gpu, made(CollKind::kAllGather))
      .run(mine, Buffer(all.size()), all, in_place, -before,
           "all_gather " + what);
  for (int32_t root = 0; root < rank.size; root += 2) {
    bool is_root = root == me;
    Coll gather = made(CollKind::kGather);
    gather.root = root;
    Trial(rank, gpu, gather)
        .run(mine, is_root ? Buffer(all.size()) : Buffer(),
             is_root ? all : Buffer(), in_place && is_root, -before,
             "gather " + what);
    Coll scatter = made(CollKind::kScatter);
    scatter.root = root;
    Trial(rank, gpu, scatter)
        .run(is_root ? all : Buffer(), Buffer(mine.size()), mine,
             in_place && is_root, before, "scatter " + what);
    if (sizes.uneven) continue;
    Coll broadcast = made(CollKind::kBroadcast);
    broadcast.root = root;
    Trial(rank, gpu, broadcast)
        .run(parts[static_cast<size_t>(is_root ? root : me)],
             Buffer(mine.size()), parts[static_cast<size_t>(root)], in_place, 0,
             "broadcast " + what);
  }
}

void sums(Rank& rank, Gpu& gpu, Dtype dtype, Sizes sizes, alq_reduce_op op,
          bool in_place) {
  const std::vector<int64_t> counts = counts_of(rank.size, sizes);
  int64_t total = 0, before = 0;
  for (int32_t q = 0; q < rank.size; ++q) {
    if (q == rank.rank) before = total;
    total += counts[static_cast<size_t>(q)];
  }
  std::vector<Buffer> srcs;
  for (int32_t q = 0; q < rank.size; ++q) {
    srcs.push_back(filled(dtype, total, q, 2));
  }
  const Buffer sum = summed(srcs, dtype, op);
  const Buffer& mine = srcs[static_cast<size_t>(rank.rank)];
  const Buffer part =
      slice(sum, dtype, before, counts[static_cast<size_t>(rank.rank)]);
  std::string what =
      fmt::format("{} x {} op {}{}{}", sizes.count, dtype_name(dtype), op,
                  sizes.uneven ? " uneven" : "", in_place ? " in place" : "");
  Coll scatter =
      call(CollKind::kReduceScatter, dtype, counts, sizes.uneven, rank.rank);
  scatter.op = op;
  Trial(rank, gpu, scatter)
      .run(mine, Buffer(part.size()), part, in_place,
           before * dtype_size(dtype), "reduce_scatter " + what);
  Coll reduce = scatter;
  reduce.kind = CollKind::kAllReduce;
  reduce.counts = {};
  reduce.count = total;
  Trial(rank, gpu, reduce)
      .run(mine, Buffer(sum.size()), sum, in_place, 0, "all_reduce " + what);
  reduce.kind = CollKind::kReduce;
  reduce.root = rank.size - 1;
  bool root = rank.rank == reduce.root;
  Trial(rank, gpu, reduce)
      .run(mine, root ? Buffer(sum.size()) : Buffer(), root ? sum : Buffer(),
           in_place && root, 0, "reduce " + what);
}

Buffer cast(const Buffer& from, Dtype in, Dtype out) {
  const auto count = static_cast<int64_t>(from.size()) / dtype_size(in);
  Buffer to(static_cast<size_t>(count * dtype_size(out)));
  kernels::CastArgs args{to.data(), from.data(), count, out, in, 1.0};
  kernels::run_cpu(kernels::OpCode::kCast, &args);
  return to;
}

// Formed in f64 if either dtype is.
Buffer sum_into(const std::vector<Buffer>& srcs, Dtype in, Dtype out,
                const Buffer* onto) {
  if (in != ALQ_F64 && out != ALQ_F64) {
    return reduced(srcs, in, out, ALQ_SUM, onto);
  }
  std::vector<Buffer> wide;
  for (const Buffer& src : srcs) wide.push_back(cast(src, in, ALQ_F64));
  Buffer wide_onto;
  if (onto != nullptr) wide_onto = cast(*onto, out, ALQ_F64);
  const Buffer sum = reduced(wide, ALQ_F64, ALQ_F64, ALQ_SUM,
                             onto == nullptr ? nullptr : &wide_onto);
  return cast(sum, ALQ_F64, out);
}

void converted(Rank& rank, Gpu& gpu, Dtype in, Dtype out, bool accumulate) {
  const int64_t count = 777, total = count * rank.size;
  std::vector<Buffer> srcs;
  for (int32_t q = 0; q < rank.size; ++q) {
    srcs.push_back(filled(in, total, q, 3));
  }
  const Buffer before = filled(out, count, rank.rank, 4);
  std::vector<Buffer> parts;
  for (const Buffer& src : srcs) {
    parts.push_back(slice(src, in, rank.rank * count, count));
  }
  const Buffer part = sum_into(parts, in, out, accumulate ? &before : nullptr);
  Coll coll;
  coll.kind = CollKind::kReduceScatter;
  coll.dtype = in;
  coll.out_dtype = out;
  coll.accumulate = accumulate;
  coll.count = count;
  std::string what = fmt::format("{} to {}{}", dtype_name(in), dtype_name(out),
                                 accumulate ? " accumulated" : "");
  const Buffer& mine = srcs[static_cast<size_t>(rank.rank)];
  Trial(rank, gpu, coll)
      .run(mine, before, part, false, 0, "reduce_scatter " + what);
  if (accumulate) return;
  const Buffer sum = sum_into(srcs, in, out, nullptr);
  coll.kind = CollKind::kAllReduce;
  coll.count = total;
  Trial(rank, gpu, coll)
      .run(mine, Buffer(sum.size()), sum, false, 0, "all_reduce " + what);
}

void to_all(Rank& rank, Gpu& gpu, Dtype dtype, bool uneven) {
  const int64_t element = dtype_size(dtype);
  const int32_t n = rank.size, me = rank.rank;
  // What rank a has for rank b.
  auto count = [&](int32_t a, int32_t b) -> int64_t {
    return uneven ? (a + 2 * b) % 4 * 501 : 3001;
  };
  auto part = [&](int32_t a, int32_t b) {
    return filled(dtype, count(a, b), a, 100 + b);
  };
  std::vector<Buffer> out, in;
  std::vector<int64_t> out_counts, in_counts;
  for (int32_t q = 0; q < n; ++q) {
    out.push_back(part(me, q));
    in.push_back(part(q, me));
    out_counts.push_back(count(me, q));
    in_counts.push_back(count(q, me));
  }
  Coll coll;
  coll.kind = uneven ? CollKind::kAllToAllV : CollKind::kAllToAll;
  coll.dtype = dtype;
  coll.count = 3001;
  if (uneven) {
    coll.counts = out_counts;
    coll.recv_counts = in_counts;
  }
  const Buffer want = joined(in);
  Trial(rank, gpu, coll)
      .run(joined(out), Buffer(want.size()), want, false, 0,
           fmt::format("all_to_all {} {}", element, uneven));
}

void messages(Rank& rank, Gpu& gpu) {
  if (rank.size < 2) return;
  const int32_t next = (rank.rank + 1) % rank.size,
                last = (rank.rank + rank.size - 1) % rank.size;
  const Buffer mine = filled(ALQ_F32, 5000, rank.rank, 7);
  GpuBytes from(rank, gpu, 20000), to(rank, gpu, 20000);
  from.set(mine);
  Coll send, recv;
  send.kind = CollKind::kSend;
  recv.kind = CollKind::kRecv;
  send.dtype = recv.dtype = ALQ_F32;
  send.count = recv.count = 5000;
  send.src = from.data();
  recv.dst = to.data();
  send.root = next;
  recv.root = last;
  // Even ranks send first: what is not in one call blocks the device.
  bool first = rank.rank % 2 == 0 && rank.rank != rank.size - 1;
  for (int i = 0; i < 2; ++i) {
    rank.check_ok(gpu.group->issue((i == 0) == first ? send : recv,
                                   gpu.stream.get(), nullptr),
                  "message");
  }
  std::string diff = difference(to.get(gpu.stream.get(), 0, 20000).data(),
                                filled(ALQ_F32, 5000, last, 7));
  rank.check(diff.empty(), "message: " + diff);
}

BOOST_AUTO_TEST_CASE(moves_of_every_dtype) {
  gpu_everywhere({1, 2, 3, 4}, [](Rank& rank, Gpu& gpu) {
    for (Dtype dtype :
         {ALQ_F32, ALQ_BF16, ALQ_F64, ALQ_I16, ALQ_U8, ALQ_BOOL, ALQ_F8E4M3}) {
      moves(rank, gpu, dtype, {1, false}, false);
      moves(rank, gpu, dtype, {700, true}, false);
    }
    moves(rank, gpu, ALQ_F32, {0, false}, false);
    moves(rank, gpu, ALQ_F32, {20'000, false}, true);
    moves(rank, gpu, ALQ_BF16, {20'000, true}, true);
  });
}

BOOST_AUTO_TEST_CASE(sums_of_every_dtype) {
  gpu_everywhere({1, 2, 3, 4}, [](Rank& rank, Gpu& gpu) {
    for (Dtype dtype : {ALQ_F32, ALQ_F64, ALQ_F16, ALQ_BF16, ALQ_I8, ALQ_U8,
                        ALQ_I32, ALQ_U32, ALQ_I64, ALQ_U64}) {
      sums(rank, gpu, dtype, {333, false}, ALQ_SUM, false);
      if (dtype_size(dtype) != 8) {
        sums(rank, gpu, dtype, {10, true}, ALQ_MAX, false);
      }
    }
    for (alq_reduce_op op : {ALQ_MIN, ALQ_AVG, ALQ_SUM}) {
      sums(rank, gpu, ALQ_F32, {12'000, false}, op, true);
      sums(rank, gpu, ALQ_F64, {500, true}, op, true);
    }
    sums(rank, gpu, ALQ_F32, {0, false}, ALQ_SUM, false);
  });
}

BOOST_AUTO_TEST_CASE(sums_in_another_dtype_and_on_top) {
  gpu_everywhere({1, 2, 3}, [](Rank& rank, Gpu& gpu) {
    for (Dtype in : {ALQ_F32, ALQ_BF16, ALQ_F16, ALQ_F64}) {
      for (Dtype out : {ALQ_F32, ALQ_BF16, ALQ_F64}) {
        if (in != out) converted(rank, gpu, in, out, false);
        converted(rank, gpu, in, out, true);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(all_to_all_and_messages) {
  gpu_everywhere({1, 2, 3, 4}, [](Rank& rank, Gpu& gpu) {
    to_all(rank, gpu, ALQ_F32, false);
    to_all(rank, gpu, ALQ_F32, true);
    to_all(rank, gpu, ALQ_U8, true);
    messages(rank, gpu);
  });
}

// The sum of factor * src: each rank has a factor of its own.
BOOST_AUTO_TEST_CASE(premultiplied_sums) {
  gpu_everywhere({1, 3}, [](Rank& rank, Gpu& gpu) {
    for (Dtype dtype : {ALQ_F32, ALQ_F64, ALQ_BF16}) {
      const int64_t count = 1000;
      Dtype wide = accumulate_dtype(dtype);
      std::vector<Buffer> scaled;
      for (int32_t q = 0; q < rank.size; ++q) {
        Buffer src = filled(dtype, count, q, 5);
        Buffer product(static_cast<size_t>(count * dtype_size(wide)));
        kernels::CastArgs cast{product.data(), src.data(), count,
                               wide,           dtype,      0.3 + 1.7 * q};
        kernels::run_cpu(kernels::OpCode::kCast, &cast);
        scaled.push_back(product);
      }
      const Buffer want = reduced(scaled, wide, dtype, ALQ_SUM);
      Coll coll;
      coll.kind = CollKind::kAllReduce;
      coll.dtype = dtype;
      coll.count = count;
      coll.factor = 0.3 + 1.7 * rank.rank;
      Trial(rank, gpu, coll)
          .run(filled(dtype, count, rank.rank, 5), Buffer(want.size()), want,
               false, 0, fmt::format("premultiplied {}", dtype_name(dtype)));
    }
  });
}

// Without a stream: host memory as well, and done on return.
BOOST_AUTO_TEST_CASE(calls_of_the_host) {
  gpu_everywhere({1, 2, 3}, [](Rank& rank, Gpu& gpu) {
    std::vector<float> mine(100, static_cast<float>(rank.rank + 1)), sum(100);
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_F32;
    coll.count = 100;
    coll.src = mine.data();
    coll.dst = sum.data();
    rank.check_ok(gpu.group->issue(coll, nullptr, nullptr), "host all_reduce");
    float want = 0;
    for (int32_t q = 0; q < rank.size; ++q) want += static_cast<float>(q + 1);
    rank.check(sum[0] == want && sum[99] == want,
               fmt::format("sum {} {} is not {}", sum[0], sum[99], want));
    Coll barrier;
    for (int i = 0; i < 3; ++i) {
      rank.shared(i).fetch_add(1);
      rank.check_ok(gpu.group->issue(barrier, nullptr, nullptr), "barrier");
      rank.check(rank.shared(i).load() == rank.size, "all came to the barrier");
    }
    // Three to connect, then these.
    rank.check(gpu.group->stats().ops == 7,
               fmt::format("{} operations", gpu.group->stats().ops));
  });
}

BOOST_AUTO_TEST_CASE(what_is_refused) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    int16_t small[4] = {};
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_I16;
    coll.count = 4;
    coll.src = coll.dst = small;
    Status status = gpu.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_UNSUPPORTED &&
                   status.message().find("i16") != std::string::npos,
               status.message());
    coll.dtype = ALQ_F32;
    coll.count = -1;
    status = gpu.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_INVALID_ARGUMENT, status.message());
    auto common = gpu.group->allocate_common(64, "x", Deadline::after(1000));
    rank.check(common.status().code() == ALQ_UNSUPPORTED,
               common.status().message());
    rank.check_ok(gpu.group->status(), "refusals leave the group well");
  });
}

}  // namespace
}  // namespace aliquot::test
