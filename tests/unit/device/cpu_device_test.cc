// Queues, events, the progress thread, launching kernels.
#include "device/cpu/cpu_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <numeric>
#include <vector>

#include "device/cpu/overlap.h"

namespace aliquot {
namespace {

Deadline soon() { return Deadline::after(5'000'000'000); }

std::shared_ptr<CpuDevice> device(int32_t progress = ALQ_PROGRESS_OFF) {
  auto made = cpu_device(std::make_shared<Context>(0, 1), progress);
  BOOST_REQUIRE(made.ok());
  return *made;
}

Queue& queue_of(const std::shared_ptr<Stream>& stream) {
  return static_cast<Queue&>(*stream);
}

// Waits for a flag, then notes its name.
class GateOp : public Op {
 public:
  GateOp(std::atomic<bool>* gate, std::vector<int>* log, int name)
      : gate_(gate), log_(log), name_(name) {}
  Step step(bool) override {
    if (!gate_->load()) return Step::kWaiting;
    log_->push_back(name_);
    return Step::kDone;
  }

 private:
  std::atomic<bool>* gate_;
  std::vector<int>* log_;
  int name_;
};

class FailingOp : public Op {
 public:
  Step step(bool) override { return Step::kFailed; }
  Status status() const override {
    return make_error(ALQ_INTERNAL, "this one fails");
  }
};

std::atomic<bool> open_gate{true};

BOOST_AUTO_TEST_CASE(a_queue_runs_in_order_only_when_someone_waits) {
  auto dev = device();
  auto stream = *dev->create_stream("s");
  std::vector<int> log;
  for (int i = 0; i < 100; ++i) {
    queue_of(stream).enqueue<GateOp>(&open_gate, &log, i);
  }
  BOOST_TEST(log.empty());
  BOOST_TEST(dev->runner()->busy());
  BOOST_TEST(dev->synchronize(*stream, soon()).ok());
  std::vector<int> want(100);
  std::iota(want.begin(), want.end(), 0);
  BOOST_TEST(log == want);
  BOOST_TEST(!dev->runner()->busy());
}

BOOST_AUTO_TEST_CASE(waiting_for_one_stream_runs_the_others) {
  auto dev = device();
  auto a = *dev->create_stream("a"), b = *dev->create_stream("b");
  std::vector<int> log;
  std::atomic<bool> gate{false};
  auto event = *dev->create_event();
  // b's kernel opens a's gate.
  queue_of(a).enqueue<GateOp>(&gate, &log, 1);
  uint8_t one = 1;
  kernels::CopyArgs copy{&gate, &one, 1};
  BOOST_TEST(
      dev->launch(b.get(), kernels::OpCode::kCopy, &copy, sizeof copy).ok());
  BOOST_TEST(dev->synchronize(*a, soon()).ok());
  BOOST_TEST(log.size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_event_orders_two_streams) {
  auto dev = device();
  auto a = *dev->create_stream("a"), b = *dev->create_stream("b");
  std::atomic<bool> gate{false};
  std::vector<int> log;
  auto event = *dev->create_event();
  BOOST_TEST(dev->done(*event));
  queue_of(a).enqueue<GateOp>(&gate, &log, 1);
  BOOST_TEST(dev->record(*event, a.get()).ok());
  BOOST_TEST(dev->wait(b.get(), *event, soon()).ok());
  queue_of(b).enqueue<GateOp>(&open_gate, &log, 2);
  BOOST_TEST(!dev->done(*event));
  Status late = dev->synchronize(*b, Deadline::after(20'000'000));
  BOOST_TEST(late.code() == ALQ_DEADLINE_EXCEEDED);
  BOOST_TEST(late.message().find("\"b\"") != std::string::npos);
  BOOST_TEST(log.empty());
  gate.store(true);
  BOOST_TEST(dev->synchronize(*b, soon()).ok());
  BOOST_TEST(dev->done(*event));
  BOOST_TEST(log == (std::vector<int>{1, 2}));
}

BOOST_AUTO_TEST_CASE(an_error_is_reported_once_and_follows_events) {
  auto dev = device();
  auto a = *dev->create_stream("a"), b = *dev->create_stream("b");
  auto event = *dev->create_event();
  queue_of(a).enqueue<FailingOp>();
  BOOST_TEST(dev->record(*event, a.get()).ok());
  BOOST_TEST(dev->wait(b.get(), *event, soon()).ok());
  BOOST_TEST(dev->synchronize(*b, soon()).message() == "this one fails");
  BOOST_TEST(dev->synchronize(*event, soon()).message() == "this one fails");
  BOOST_TEST(dev->synchronize(*a, soon()).code() == ALQ_INTERNAL);
  BOOST_TEST(dev->synchronize(*a, soon()).ok());
}

BOOST_AUTO_TEST_CASE(the_progress_thread_runs_what_nobody_waits_for) {
  auto dev = device(ALQ_PROGRESS_ON);
  BOOST_TEST(dev->runner()->has_progress_thread());
  auto stream = *dev->create_stream("s");
  auto event = *dev->create_event();
  int64_t from = 42, to = 0;
  kernels::CopyArgs copy{&to, &from, sizeof from};
  BOOST_TEST(
      dev->launch(stream.get(), kernels::OpCode::kCopy, &copy, sizeof copy)
          .ok());
  BOOST_TEST(dev->record(*event, stream.get()).ok());
  Deadline deadline = soon();
  while (!dev->done(*event) && !deadline.passed()) usleep(100);
  BOOST_TEST(dev->done(*event));
  BOOST_TEST(to == 42);
}

BOOST_AUTO_TEST_CASE(the_progress_thread_comes_and_goes_under_load) {
  auto dev = device(ALQ_PROGRESS_AUTO);
  auto stream = *dev->create_stream("s");
  std::atomic<bool> stop{false};
  std::thread toggler([&] {
    for (int i = 0; !stop.load(); ++i) {
      dev->runner()->set_progress_thread(i % 2 == 0);
    }
  });
  bool all = true;
  for (int64_t i = 1; i <= 2000; ++i) {
    int64_t to = 0;
    kernels::CopyArgs copy{&to, &i, sizeof i};
    all &= dev->launch(stream.get(), kernels::OpCode::kCopy, &copy, sizeof copy)
               .ok() &&
           dev->synchronize(*stream, soon()).ok() && to == i;
  }
  stop.store(true);
  toggler.join();
  BOOST_TEST(all);
}

BOOST_AUTO_TEST_CASE(overlap_is_measured_as_a_fraction) {
  auto dev = device(ALQ_PROGRESS_ON);
  auto times = measure_overlap(*dev, soon());
  BOOST_REQUIRE(times.ok());
  BOOST_TEST(times->compute > 0);
  BOOST_TEST(times->copy > 0);
  BOOST_TEST(times->both > 0);
  BOOST_TEST((OverlapTimes{1, 2, 2}.hidden()) == 1);
  BOOST_TEST((OverlapTimes{2, 1, 3}.hidden()) == 0);
  BOOST_TEST((OverlapTimes{2, 1, 2.5}.hidden()) == 0.5);
  BOOST_TEST((OverlapTimes{1, 1, 5}.hidden()) == 0);
  BOOST_TEST(OverlapTimes{}.hidden() == 0);
}

BOOST_AUTO_TEST_CASE(many_threads_wait_and_enqueue) {
  auto dev = device(ALQ_PROGRESS_ON);
  auto stream = *dev->create_stream("s");
  std::vector<int64_t> targets(4 * 500);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        kernels::FillArgs fill{&targets[static_cast<size_t>(t * 500 + i)], 1, 7,
                               8};
        Status status = dev->launch(stream.get(), kernels::OpCode::kFill, &fill,
                                    sizeof fill);
        if (i % 50 == 0) status = dev->synchronize(*stream, soon());
        if (!status.ok()) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  BOOST_TEST(dev->synchronize(*stream, soon()).ok());
  BOOST_TEST(failures == 0);
  BOOST_TEST(std::count(targets.begin(), targets.end(), 7) == 2000);
}

BOOST_AUTO_TEST_CASE(a_dropped_stream_still_runs_dry) {
  auto dev = device();
  std::vector<int> log;
  {
    auto stream = *dev->create_stream("gone");
    queue_of(stream).enqueue<GateOp>(&open_gate, &log, 1);
  }
  auto other = *dev->create_stream("other");
  Deadline deadline = soon();
  while (dev->runner()->busy() && !deadline.passed()) {
    dev->runner()->run_queues(false);
  }
  BOOST_TEST(log.size() == 1u);
}

BOOST_AUTO_TEST_CASE(bad_streams_are_refused) {
  auto dev = device();
  BOOST_TEST(*dev->from_abi(nullptr) == nullptr);
  auto stream = *dev->create_stream("s");
  alq_stream good{ALQ_DEVICE_CPU, 0, stream.get()};
  BOOST_TEST(*dev->from_abi(&good) == stream.get());
  int elsewhere = 0;
  alq_stream wild{ALQ_DEVICE_CPU, 0, &elsewhere};
  BOOST_TEST(dev->from_abi(&wild).status().code() == ALQ_INVALID_ARGUMENT);
  alq_stream cuda{ALQ_DEVICE_CUDA, 0, stream.get()};
  BOOST_TEST(dev->from_abi(&cuda).status().code() == ALQ_INVALID_ARGUMENT);
  char big[257] = {};
  BOOST_TEST(
      dev->launch(nullptr, kernels::OpCode::kCopy, big, sizeof big).code() ==
      ALQ_INVALID_ARGUMENT);
  BOOST_TEST(!cpu_device(std::make_shared<Context>(0, 1), 7).ok());
}

BOOST_AUTO_TEST_CASE(a_blocked_wait_uses_little_cpu_and_ends_in_time) {
  auto dev = device();
  auto stream = *dev->create_stream("s");
  std::vector<int> log;
  std::atomic<bool> gate{false};
  queue_of(stream).enqueue<GateOp>(&gate, &log, 1);
  timespec before, after;
  int64_t start = now_ns();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  Status status = dev->synchronize(*stream, Deadline::after(500'000'000));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  int64_t wall = now_ns() - start;
  int64_t cpu = (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec -
                before.tv_nsec;
  BOOST_TEST(status.code() == ALQ_DEADLINE_EXCEEDED);
  BOOST_TEST(wall >= 500'000'000);
  BOOST_TEST(cpu < wall / 50);
  gate.store(true);
  BOOST_TEST(dev->synchronize(*stream, soon()).ok());
}

// Ends by the clock, with nobody to ring.
class TimerOp : public Op {
 public:
  explicit TimerOp(int64_t at) : at_(at) {}
  Step step(bool) override {
    return now_ns() >= at_ ? Step::kDone : Step::kWaiting;
  }
  int64_t wake_at() const override { return at_; }

 private:
  int64_t at_;
};

BOOST_AUTO_TEST_CASE(an_operation_that_ends_by_the_clock_is_not_overslept) {
  auto dev = device();
  auto stream = *dev->create_stream("s");
  int64_t least = INT64_MAX;
  // The shortest of three: the machine may be busy.
  for (int i = 0; i < 3; ++i) {
    int64_t at = now_ns() + 5'000'000;
    queue_of(stream).enqueue<TimerOp>(at);
    BOOST_TEST(dev->synchronize(*stream, soon()).ok());
    BOOST_TEST(now_ns() >= at);
    least = std::min(least, now_ns() - at);
  }
  BOOST_TEST(least < 40'000'000);
}

// A child of fork has no progress thread; destroying the device must not wait.
BOOST_AUTO_TEST_CASE(a_forked_child_can_drop_the_device) {
  auto dev = device(ALQ_PROGRESS_ON);
  pid_t child = fork();
  if (child == 0) {
    alarm(5);
    dev.reset();
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFEXITED(status));
}

}  // namespace
}  // namespace aliquot
