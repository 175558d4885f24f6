// Several communicators of one device: splits, the order of issue, streams,
// captures, and the counts of calls.
#include <boost/test/unit_test.hpp>

#include "multi/nccl/gpu_ranks.h"
#include "tests/doubles/cuda/calls.h"

namespace aliquot::test {
namespace {

Coll sum_of(std::byte* data, int64_t count) {
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.dtype = ALQ_F32;
  coll.src = coll.dst = data;
  coll.count = count;
  return coll;
}

Buffer ranks_sum(const Group& group, int64_t count) {
  std::vector<Buffer> all;
  for (int32_t q : group.ranks()) all.push_back(filled(ALQ_F32, count, q));
  return reduced(all, ALQ_F32, ALQ_F32, ALQ_SUM);
}

void check_sum(Rank& rank, Gpu& gpu, Group& group, const char* what) {
  const int64_t count = 3000;
  GpuBytes bytes(rank, gpu, 4 * count);
  bytes.set(filled(ALQ_F32, count, rank.rank));
  rank.check_ok(
      group.issue(sum_of(bytes.data(), count), gpu.stream.get(), nullptr),
      what);
  std::string diff =
      difference(bytes.get(gpu.stream.get(), 0, 4 * count).data(),
                 ranks_sum(group, count));
  rank.check(diff.empty(), fmt::format("{}: {}", what, diff));
}

std::shared_ptr<Group> split(Rank& rank, Group& group, int32_t color,
                             int32_t key, const char* name) {
  auto made = group.split(color, key, name, rank.context->deadline(0));
  rank.check_ok(made.status(), "split");
  return made.ok() ? *made : nullptr;
}

BOOST_AUTO_TEST_CASE(splits) {
  gpu_everywhere({1, 2, 4}, [](Rank& rank, Gpu& gpu) {
    auto half = split(rank, *gpu.group, rank.rank % 2, -rank.rank, "half");
    rank.check(half != nullptr && half->size() == (rank.size + 1) / 2,
               "size of a half");
    if (half == nullptr) return;
    rank.check(half->ranks()[static_cast<size_t>(half->rank())] == rank.rank,
               "reversed by key");
    check_sum(rank, gpu, *half, "half");
    auto none = gpu.group->split(rank.rank == 0 ? 0 : -1, 0, "first",
                                 rank.context->deadline(0));
    rank.check_ok(none.status(), "split without some");
    rank.check(none.ok() && (*none != nullptr) == (rank.rank == 0),
               "only rank 0 has it");
    auto again = split(rank, *half, 0, 0, "half of half");
    if (again != nullptr) check_sum(rank, gpu, *again, "half of half");
    check_sum(rank, gpu, *gpu.group, "world");
    rank.check_ok(half->close(rank.context->deadline(0)), "close");
    Status closed = half->issue(Coll(), nullptr, nullptr);
    rank.check(closed.code() == ALQ_FAILED_PRECONDITION, "closed");
  });
}

// Operations on two streams and two communicators keep their order.
BOOST_AUTO_TEST_CASE(streams_and_communicators_in_turn) {
  gpu_everywhere({2, 3}, [](Rank& rank, Gpu& gpu) {
    auto other = split(rank, *gpu.group, 0, 0, "other");
    auto second = gpu.make_stream(rank);
    if (other == nullptr || second == nullptr) return;
    const int64_t count = 500;
    GpuBytes bytes(rank, gpu, 4 * count);
    bytes.set(filled(ALQ_F32, count, rank.rank));
    // Each sums what the one before made, so a lost wait shows.
    for (int i = 0; i < 6; ++i) {
      Group& group = i % 3 == 0 ? *gpu.group : *other;
      Stream* stream = i % 2 == 0 ? gpu.stream.get() : second.get();
      rank.check_ok(group.issue(sum_of(bytes.data(), count), stream, nullptr),
                    "sum");
    }
    Buffer want = ranks_sum(*gpu.group, count);
    for (int i = 1; i < 6; ++i) {
      std::vector<Buffer> all(static_cast<size_t>(rank.size), want);
      want = reduced(all, ALQ_F32, ALQ_F32, ALQ_SUM);
    }
    bytes.get(gpu.stream.get(), 0, 4);
    std::string diff =
        difference(bytes.get(second.get(), 0, 4 * count).data(), want);
    rank.check(diff.empty(), diff);
  });
}

// A communicator that comes in another order on one rank: the stand-in sees it.
BOOST_AUTO_TEST_CASE(another_order_of_communicators_is_caught) {
  GpuOptions options;
  options.violations_are_fine = true;
  options.ranks.deadline_ms = 1500;
  gpu_everywhere(
      {2},
      [](Rank& rank, Gpu& gpu) {
        auto other = split(rank, *gpu.group, 0, 0, "other");
        if (other == nullptr) return;
        GpuBytes a(rank, gpu, 400), b(rank, gpu, 400);
        auto second = gpu.make_stream(rank);
        rank.check_ok(gpu.group->issue(Coll(), nullptr, nullptr), "barrier");
        auto one = [&] {
          static_cast<void>(gpu.group->issue(sum_of(a.data(), 100),
                                             gpu.stream.get(), nullptr));
        };
        auto two = [&] {
          static_cast<void>(
              other->issue(sum_of(b.data(), 100), second.get(), nullptr));
        };
        if (rank.rank == 0) {
          one();
          two();
        } else {
          two();
          one();
        }
        // Both wait for each other behind their device's chain, or neither.
        static_cast<void>(gpu.device->synchronize(
            *gpu.stream, Deadline::after(5'000'000'000)));
        rank.shared(0).fetch_add(1);
        const int64_t end = now_ns() + 10'000'000'000;
        while (rank.shared(0).load() < rank.size && now_ns() < end) {
          usleep(1000);
        }
        int seen = ALQ_DOUBLE("libcuda.so.1", double_violations)();
        rank.shared(1).fetch_add(seen);
        rank.shared(2).fetch_add(1);
        while (rank.shared(2).load() < rank.size && now_ns() < end) {
          usleep(1000);
        }
        rank.check(rank.shared(1).load() > 0, "nobody noticed");
      },
      options);
}

// What was issued while the stream was captured happens at every replay; a sum
// that needs scratch memory only where that is there already.
BOOST_AUTO_TEST_CASE(captured_and_replayed) {
  gpu_everywhere({1, 2, 3}, [](Rank& rank, Gpu& gpu) {
    const int64_t count = 900;
    GpuBytes src(rank, gpu, 2 * count), dst(rank, gpu, 4 * count);
    dst.set(Buffer(static_cast<size_t>(4 * count)));
    Coll coll;
    coll.kind = CollKind::kReduceScatter;
    coll.dtype = ALQ_BF16;
    coll.out_dtype = ALQ_F32;
    coll.accumulate = true;
    coll.count = count / rank.size;
    coll.src = src.data();
    coll.dst = dst.data();
    auto* stream = static_cast<CUstream>(gpu.device->native(*gpu.stream));
    auto begin = ALQ_DOUBLE("libcuda.so.1", cuStreamBeginCapture_v2);
    auto end = ALQ_DOUBLE("libcuda.so.1", cuStreamEndCapture);
    CUgraph graph = nullptr;
    // Thread-local mode: other threads' calls are none of its business.
    begin(stream, 1);
    Status early = gpu.group->issue(coll, gpu.stream.get(), nullptr);
    end(stream, &graph);
    if (early.code() != ALQ_FAILED_PRECONDITION) {
      rank.check(false, "captured without scratch memory: " + early.message());
    }
    rank.check_ok(gpu.group->status(), "still well");
    src.set(filled(ALQ_BF16, count, rank.rank, 0));
    rank.check_ok(gpu.group->issue(coll, gpu.stream.get(), nullptr), "first");
    bool captured = begin(stream, 1) == 0;
    std::shared_ptr<Work> work;
    rank.check_ok(gpu.group->issue(coll, gpu.stream.get(), &work), "captured");
    captured = captured && end(stream, &graph) == 0;
    CUgraphExec exec = nullptr;
    captured =
        captured && ALQ_DOUBLE("libcuda.so.1", cuGraphInstantiateWithFlags)(
                        &exec, graph, 0) == 0;
    rank.check(captured, "capture");
    if (!captured) return;
    rank.check(
        work->wait(Deadline::after(1000)).code() == ALQ_FAILED_PRECONDITION,
        "a captured operation has no end");
    Buffer want(static_cast<size_t>(4 * coll.count));
    for (int i = 0; i < 4; ++i) {
      if (i > 0) {
        src.set(filled(ALQ_BF16, count, rank.rank, i));
        ALQ_DOUBLE("libcuda.so.1", cuGraphLaunch)(exec, stream);
      }
      std::vector<Buffer> parts;
      for (int32_t q = 0; q < rank.size; ++q) {
        parts.push_back(slice(filled(ALQ_BF16, count, q, i), ALQ_BF16,
                              rank.rank * coll.count, coll.count));
      }
      want = reduced(parts, ALQ_BF16, ALQ_F32, ALQ_SUM, &want);
      std::string diff =
          difference(dst.get(gpu.stream.get(), 0, 4 * coll.count).data(), want);
      rank.check(diff.empty(), fmt::format("replay {}: {}", i, diff));
    }
    check_sum(rank, gpu, *gpu.group, "after replays");
    ALQ_DOUBLE("libcuda.so.1", cuGraphExecDestroy)(exec);
    ALQ_DOUBLE("libcuda.so.1", cuGraphDestroy)(graph);
  });
}

// NCCL ends no communicator that a graph may use again.
BOOST_AUTO_TEST_CASE(a_graph_keeps_its_communicator) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    const int64_t count = 100;
    GpuBytes bytes(rank, gpu, 4 * count);
    auto* stream = static_cast<CUstream>(gpu.device->native(*gpu.stream));
    CUgraph graph = nullptr;
    ALQ_DOUBLE("libcuda.so.1", cuStreamBeginCapture_v2)(stream, 1);
    rank.check_ok(gpu.group->issue(sum_of(bytes.data(), count),
                                   gpu.stream.get(), nullptr),
                  "captured");
    ALQ_DOUBLE("libcuda.so.1", cuStreamEndCapture)(stream, &graph);
    Status closed = gpu.group->close(Deadline::after(300'000'000));
    rank.check(closed.code() == ALQ_DEADLINE_EXCEEDED &&
                   closed.message().find("CUDA graph") != std::string::npos,
               "says why: " + closed.message());
    ALQ_DOUBLE("libcuda.so.1", cuGraphDestroy)(graph);
  });
}

// The thread's own context is current again after every call.
BOOST_AUTO_TEST_CASE(the_callers_context_stays_current) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    auto retain = ALQ_DOUBLE("libcuda.so.1", cuDevicePrimaryCtxRetain);
    auto current = reinterpret_cast<CUresult (*)(CUcontext*)>(
        double_symbol("libcuda.so.1", "cuCtxGetCurrent"));
    const CUdevice other = 1 - rank.rank % 2;
    CUcontext theirs = nullptr, now = nullptr;
    retain(&theirs, other);
    ALQ_DOUBLE("libcuda.so.1", cuCtxPushCurrent_v2)(theirs);
    auto check = [&](const char* what) {
      current(&now);
      rank.check(now == theirs, fmt::format("{} changed the context", what));
    };
    GpuBytes bytes(rank, gpu, 400);
    check("allocate");
    check_sum(rank, gpu, *gpu.group, "a sum");
    check("a sum");
    auto half =
        gpu.group->split(0, rank.rank, "half", rank.context->deadline(0));
    rank.check_ok(half.status(), "split");
    check("split");
    if (half.ok()) {
      rank.check_ok((*half)->close(rank.context->deadline(0)), "close");
    }
    check("close");
    ALQ_DOUBLE("libcuda.so.1", cuCtxPopCurrent_v2)(&now);
    ALQ_DOUBLE("libcuda.so.1", cuDevicePrimaryCtxRelease_v2)(other);
  });
}

// A caller's new stream gets the handle of one that was destroyed with work on
// it; what it issues still comes after that.
BOOST_AUTO_TEST_CASE(a_handle_that_comes_back_is_another_stream) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    const int64_t count = 5000;
    GpuBytes bytes(rank, gpu, 4 * count);
    const Coll sum = sum_of(bytes.data(), count);
    auto create = ALQ_DOUBLE("libcuda.so.1", cuStreamCreate);
    auto destroy = ALQ_DOUBLE("libcuda.so.1", cuStreamDestroy_v2);
    CudaBound bound(*gpu.device);
    rank.check_ok(bound.status(), "bind");
    int64_t again = 0;
    void* before = nullptr;
    ALQ_DOUBLE("libcuda.so.1", double_reset_counts)();
    for (int i = 0; i < 8; ++i) {
      CUstream raw = nullptr;
      rank.check(create(&raw, kStreamNonBlocking) == kSuccess, "create");
      again += raw == before;
      before = raw;
      alq_stream given = {ALQ_DEVICE_CUDA, gpu.device->ordinal(), raw};
      auto stream = gpu.device->from_abi(&given);
      rank.check_ok(stream.status(), "from_abi");
      rank.check_ok(gpu.group->issue(sum, *stream, nullptr), "sum");
      destroy(raw);
    }
    rank.check(again > 0, "no handle came back");
    if (rank.kind == RankKind::kProcesses) {
      int64_t waits = ALQ_DOUBLE("libcuda.so.1", double_count)("wait");
      rank.check(waits == 8, fmt::format("{} waits", waits));
    }
    check_sum(rank, gpu, *gpu.group, "afterwards");
  });
}

// One handle is another stream for every thread.
BOOST_AUTO_TEST_CASE(per_thread_default_streams_are_ordered) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    ALQ_DOUBLE("libcuda.so.1", double_default_streams)(1);
    GpuBytes bytes(rank, gpu, 400);
    const Coll sum = sum_of(bytes.data(), 100);
    for (int i = 0; i < 4; ++i) {
      for (void* handle : {static_cast<void*>(per_thread_stream()),
                           static_cast<void*>(legacy_stream())}) {
        std::thread([&] {
          CudaBound bound(*gpu.device);
          alq_stream given = {ALQ_DEVICE_CUDA, gpu.device->ordinal(), handle};
          auto stream = gpu.device->from_abi(&given);
          rank.check_ok(stream.status(), "from_abi");
          rank.check_ok(gpu.group->issue(sum, *stream, nullptr), "sum");
        }).join();
      }
    }
    check_sum(rank, gpu, *gpu.group, "afterwards");
  });
}

// A capture that went wrong fails the call and not the group.
BOOST_AUTO_TEST_CASE(a_spoilt_capture_is_refused) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400);
    auto* stream = static_cast<CUstream>(gpu.device->native(*gpu.stream));
    auto query = reinterpret_cast<CUresult (*)(CUstream)>(
        double_symbol("libcuda.so.1", "cuStreamQuery"));
    CUgraph graph = nullptr;
    ALQ_DOUBLE("libcuda.so.1", cuStreamBeginCapture_v2)(stream, 1);
    query(stream);
    Status refused =
        gpu.group->issue(sum_of(bytes.data(), 100), gpu.stream.get(), nullptr);
    rank.check(refused.code() == ALQ_FAILED_PRECONDITION,
               "refused: " + refused.message());
    ALQ_DOUBLE("libcuda.so.1", cuStreamEndCapture)(stream, &graph);
    rank.check_ok(gpu.group->status(), "still well");
    check_sum(rank, gpu, *gpu.group, "after the capture");
  });
}

// One event, one launch per operation; the second stream costs one wait.
BOOST_AUTO_TEST_CASE(counts_of_calls) {
  GpuOptions options;
  options.ranks.kind = RankKind::kProcesses;
  options.ranks.size = kThreadSanitizer ? 1 : 2;
  if (kThreadSanitizer) options.ranks.kind = RankKind::kThreads;
  std::string text = run_gpu(options, [](Rank& rank, Gpu& gpu) {
    const int64_t count = 100;
    GpuBytes bytes(rank, gpu, 4 * count * rank.size);
    auto second = gpu.make_stream(rank);
    Coll sum = sum_of(bytes.data(), count);
    std::vector<int64_t> parts(static_cast<size_t>(rank.size), 25);
    parts[0] = 24;  // uneven parts take one call per rank, in one launch
    Coll gather;
    gather.kind = CollKind::kAllGather;
    gather.dtype = ALQ_F32;
    gather.counts = parts;
    gather.src = bytes.data() + (rank.rank == 0 ? 0 : 100 * rank.rank - 4);
    gather.dst = bytes.data();
    rank.check_ok(gpu.group->issue(sum, gpu.stream.get(), nullptr), "first");
    auto counted = ALQ_DOUBLE("libcuda.so.1", double_count);
    auto calls = ALQ_DOUBLE("libnccl.so.2", double_nccl_count);
    ALQ_DOUBLE("libcuda.so.1", double_reset_counts)();
    ALQ_DOUBLE("libnccl.so.2", double_nccl_reset_counts)();
    for (int i = 0; i < 4; ++i) {
      rank.check_ok(
          gpu.group->issue(i % 2 == 0 ? sum : gather,
                           i < 2 ? gpu.stream.get() : second.get(), nullptr),
          "one of four");
    }
    auto expect = [&](const char* what, int64_t got, int64_t want) {
      rank.check(got == want, fmt::format("{} {}, not {}", got, what, want));
    };
    expect("launches of NCCL", calls("launch"), 4);
    expect("calls of NCCL", calls("call"), 2 + 2 * rank.size);
    expect("records", counted("record"), 4);
    expect("waits", counted("wait"), 1);
    expect("allocations", counted("alloc"), 0);
    expect("host waits", counted("host_sync"), 0);
    expect("kernels", counted("launch"), 0);
    bytes.get(second.get(), 0, 4);
  });
  BOOST_TEST(text.empty(), text);
}

}  // namespace
}  // namespace aliquot::test
