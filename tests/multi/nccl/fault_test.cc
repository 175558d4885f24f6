// What goes wrong is bounded, named, and the same on all ranks.
#include <signal.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "multi/nccl/gpu_ranks.h"

namespace aliquot::test {
namespace {

Coll sum_of(GpuBytes& bytes, int64_t count) {
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.dtype = ALQ_F32;
  coll.src = coll.dst = bytes.data();
  coll.count = count;
  coll.label = "unit 3";
  return coll;
}

// Issues and waits; what came of it.
Status outcome(Rank&, Gpu& gpu, const Coll& coll) {
  std::shared_ptr<Work> work;
  ALQ_TRY(gpu.group->issue(coll, gpu.stream.get(), &work));
  return work->wait(Deadline::after(20'000'000'000));
}

// All ranks saw the end of what was before.
void all_there(Rank& rank) {
  rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
}

void check_error(Rank& rank, const Status& status, alq_status code,
                 const std::vector<std::string>& words) {
  rank.check(status.code() == code,
             fmt::format("code {} is not {}: {}", status.code(), code,
                         status.message()));
  for (const std::string& word : words) {
    rank.check(status.message().find(word) != std::string::npos,
               fmt::format("no \"{}\" in: {}", word, status.message()));
  }
}

GpuOptions provoking() {
  GpuOptions options;
  options.violations_are_fine = true;
  return options;
}

// Every rank is told who called what first.
void mismatch(const std::function<void(Coll&)>& change, const std::string& left,
              const std::string& right) {
  gpu_everywhere(
      {2, 3},
      [&](Rank& rank, Gpu& gpu) {
        GpuBytes bytes(rank, gpu, 4000);
        Coll coll = sum_of(bytes, 100);
        rank.check_ok(outcome(rank, gpu, coll), "before");
        all_there(rank);
        if (rank.rank == rank.size - 1) change(coll);
        check_error(rank, outcome(rank, gpu, coll), ALQ_RANK_MISMATCH,
                    {"operation 5 of group \"world\"", left, right, "unit 3"});
        check_error(rank, outcome(rank, gpu, coll), ALQ_GROUP_POISONED, {left});
      },
      provoking());
}

BOOST_AUTO_TEST_CASE(another_count_is_named) {
  mismatch([](Coll& coll) { coll.count = 99; }, "all_reduce(100 x f32, sum)",
           "all_reduce(99 x f32, sum)");
}

BOOST_AUTO_TEST_CASE(another_dtype_or_operation_is_named) {
  mismatch([](Coll& coll) { coll.dtype = ALQ_I32; },
           "all_reduce(100 x f32, sum)", "all_reduce(100 x i32, sum)");
  mismatch(
      [](Coll& coll) {
        coll.kind = CollKind::kBroadcast;
        coll.root = 1;
      },
      "all_reduce(100 x f32, sum)", "broadcast(100 x f32, root 1)");
}

BOOST_AUTO_TEST_CASE(a_rank_that_does_not_come_is_named) {
  GpuOptions options;
  options.ranks.deadline_ms = 700;
  gpu_everywhere(
      {2, 3},
      [](Rank& rank, Gpu& gpu) {
        GpuBytes bytes(rank, gpu, 400);
        if (rank.rank == 1) {
          // Long enough for the others to give up.
          const int64_t end = now_ns() + 20'000'000'000;
          while (gpu.group->status().ok() && now_ns() < end) usleep(1000);
          check_error(rank, gpu.group->status(), ALQ_DEADLINE_EXCEEDED,
                      {"rank(s) 1", "have not arrived"});
          return;
        }
        check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)),
                    ALQ_DEADLINE_EXCEEDED,
                    {"operation 4 (all_reduce(100 x f32, sum), \"unit 3\") of "
                     "group \"world\"",
                     "rank(s) 1", "have not arrived"});
      },
      options);
}

BOOST_AUTO_TEST_CASE(a_rank_that_dies_is_named) {
  for (int32_t size : {2, 3}) {
    GpuOptions options;
    options.ranks.size = size;
    options.ranks.kind = RankKind::kProcesses;
    options.ends_badly = true;
    std::string text = run_gpu(options, [](Rank& rank, Gpu& gpu) {
      GpuBytes bytes(rank, gpu, 400);
      rank.check_ok(outcome(rank, gpu, sum_of(bytes, 100)), "before");
      if (rank.rank == 1) raise(SIGKILL);
      const int64_t start = now_ns();
      Status status = outcome(rank, gpu, sum_of(bytes, 100));
      check_error(rank, status, ALQ_PEER_FAILED, {"rank 1"});
      rank.check(status.rank() == 1, "names rank 1");
      rank.check(now_ns() - start < 5'000'000'000, "in time");
      rank.shared(0).fetch_add(1);
    });
    BOOST_TEST(text.empty(), size << ": " << text);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_leaves_is_named) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400);
    if (rank.rank == 1) {
      gpu.group.reset();
      const int64_t end = now_ns() + 20'000'000'000;
      while (rank.shared(0).load() == 0 && now_ns() < end) usleep(1000);
      return;
    }
    check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)), ALQ_PEER_FAILED,
                {"rank 1 left", "unit 3"});
    rank.shared(0).store(1);
  });
}

BOOST_AUTO_TEST_CASE(abort_reaches_all_and_shrink_goes_on) {
  gpu_everywhere({2, 3}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400);
    if (rank.rank == 1) {
      gpu.group->abort(make_error(ALQ_ABORTED, "enough"));
    } else {
      check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)), ALQ_ABORTED,
                  {"\"world\" was aborted by rank 1", "enough"});
    }
    auto after = gpu.group->shrink(rank.context->deadline(0));
    rank.check_ok(after.status(), "shrink");
    if (!after.ok()) return;
    gpu.group = *after;
    rank.check(gpu.group->size() == rank.size, "all go on");
    rank.check_ok(outcome(rank, gpu, sum_of(bytes, 100)), "after shrink");
  });
}

// An asynchronous error of one rank ends the group on all.
BOOST_AUTO_TEST_CASE(an_error_of_nccl_is_told) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400);
    rank.check_ok(outcome(rank, gpu, sum_of(bytes, 100)), "before");
    all_there(rank);
    if (rank.rank == 1) {
      ALQ_DOUBLE("libnccl.so.2", double_nccl_fail)(1, 6);
    } else if (rank.kind == RankKind::kThreads) {
      usleep(100'000);  // the first launch from now is rank 1's
    }
    check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)), ALQ_PEER_FAILED,
                {"remote process exited", "rank 1 says"});
  });
}

// A card that breaks lets every event happen: no result is made of that, and
// the peers hear of it.
BOOST_AUTO_TEST_CASE(a_device_that_fails_is_told) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400);
    rank.check_ok(outcome(rank, gpu, sum_of(bytes, 100)), "before");
    all_there(rank);
    if (rank.rank == 1) {
      ALQ_DOUBLE("libcuda.so.1", double_fail)("kernel", 700, 1);
      kernels::FillArgs fill{bytes.data(), 100, 0, 4};
      rank.check_ok(gpu.device->launch(gpu.stream.get(), kernels::OpCode::kFill,
                                       &fill, sizeof fill),
                    "launch");
    }
    check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)), ALQ_INTERNAL,
                {"rank 1 says", "CUDA_ERROR_ILLEGAL_ADDRESS"});
  });
}

// An abort lets streams go on with what the operation left: a kernel that comes
// next sees the word, and groups that follow have failed.
BOOST_AUTO_TEST_CASE(what_comes_next_on_a_stream_knows_of_a_failure) {
  gpu_everywhere({2}, [](Rank& rank, Gpu& gpu) {
    GpuBytes bytes(rank, gpu, 400), seen(rank, gpu, 64);
    auto memory = gpu.device->allocate_host(64, "word");
    auto other = gpu.group->split(0, 0, "other", rank.context->deadline(0));
    rank.check_ok(memory.status(), "memory");
    rank.check_ok(other.status(), "split");
    if (!memory.ok() || !other.ok()) return;
    auto* word = new ((*memory)->data()) std::atomic<uint32_t>(0);
    auto fail = std::make_shared<FailWord>(word);
    gpu.group->on_failure(fail);
    (*other)->fail_with(*gpu.group);
    rank.check_ok(outcome(rank, gpu, sum_of(bytes, 100)), "before");
    rank.check(word->load() == 0, "raised too early");
    if (rank.rank == 0) {
      const Coll sum = sum_of(bytes, 100);
      kernels::CopyArgs copy{seen.data(), word, sizeof *word};
      rank.check_ok(gpu.group->issue(sum, gpu.stream.get(), nullptr), "issue");
      rank.check_ok(gpu.device->launch(gpu.stream.get(), kernels::OpCode::kCopy,
                                       &copy, sizeof copy),
                    "launch");
    }
    all_there(rank);
    if (rank.rank == 1) {
      gpu.group->abort(make_error(ALQ_ABORTED, "enough").with_rank(1));
    } else {
      uint32_t value = 0;
      std::memcpy(&value, seen.get(gpu.stream.get(), 0, 4).data(), 4);
      rank.check(value == 1, fmt::format("{} was seen", value));
    }
    rank.check((*other)->status().code() == ALQ_ABORTED, "the other failed");
    fail->take_back();
  });
}

BOOST_AUTO_TEST_CASE(an_abort_that_blocks_does_not_block_the_host) {
  GpuOptions options;
  options.environment = {{"ALIQUOT_DOUBLE_NCCL_ABORT_MS", "1500"}};
  gpu_everywhere(
      {2},
      [](Rank& rank, Gpu& gpu) {
        GpuBytes bytes(rank, gpu, 400);
        const int64_t start = now_ns();
        if (rank.rank == 0) {
          gpu.group->abort(make_error(ALQ_ABORTED, "enough"));
        } else {
          check_error(rank, outcome(rank, gpu, sum_of(bytes, 100)), ALQ_ABORTED,
                      {"enough"});
        }
        rank.check(now_ns() - start < 1'200'000'000, "did not wait for it");
      },
      options);
}

}  // namespace
}  // namespace aliquot::test
