#include "comm/nccl/runtime.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device/cpu/thread.h"

namespace aliquot::nccl {
namespace {

constexpr int64_t kTickNs = 4'000'000;
// How long peers may take to end a communicator that this rank has left.
constexpr int64_t kGraveNs = 3'000'000'000;
constexpr int64_t kAbortNs = 5'000'000'000;

void sleep_ns(int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

bool nccl_orders_launches(const Api& api) {
  const char* flag = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return (api.can & kLaunchOrder) != 0 && flag != nullptr &&
         std::strcmp(flag, "1") == 0;
}

Config config() {
  Config config;
  config.blocking = 0;
  config.split_share = 0;
  return config;
}

}  // namespace

void Naps::take() {
  if (count_++ < 16) {
    sched_yield();
    return;
  }
  ++sleeps_;
  sleep_ns(std::min<int64_t>(20'000 * (count_ - 16), 1'000'000));
}

Result<std::shared_ptr<Runtime>> Runtime::of(
    const std::shared_ptr<Context>& context,
    const std::shared_ptr<Device>& device) {
  auto* port = dynamic_cast<CudaPort*>(device.get());
  if (port == nullptr) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "groups of NCCL need a CUDA device");
  }
  std::lock_guard lock(port->shared_mutex);
  if (auto there = std::static_pointer_cast<Runtime>(port->shared.lock())) {
    return there;
  }
  auto path = context->library_paths.find("nccl");
  ALQ_ASSIGN(Api api,
             load(port->libraries(), port->library_dirs(),
                  path == context->library_paths.end() ? "" : path->second));
  std::shared_ptr<Runtime> made(new Runtime(api, context, device, *port));
  if (!made->watchdog_.joinable()) {
    return make_error(ALQ_RESOURCE_EXHAUSTED,
                      "rank {}: the system gives no thread to watch NCCL; "
                      "allow more threads or memory",
                      context->rank)
        .with_rank(context->rank);
  }
  port->shared = made;
  return made;
}

Runtime::Runtime(Api table, std::shared_ptr<Context> ctx,
                 std::shared_ptr<Device> dev, CudaPort& cuda)
    : api(table),
      context(std::move(ctx)),
      device(std::move(dev)),
      port(cuda),
      chains(!nccl_orders_launches(table)),
      shared_(std::make_shared<Shared>()),
      stamp_(fork_stamp()) {
  start_thread(&watchdog_, [this] { run_watchdog(); });
}

Runtime::~Runtime() {
  if (fork_stamp() != stamp_) {
    // A child has no such thread; its handle must not be joined.
    new std::thread(std::move(watchdog_));
    return;
  }
  stop_.store(true);
  if (watchdog_.joinable()) watchdog_.join();
  Deadline deadline = Deadline::after(context->scaled(kGraveNs));
  Naps naps;
  while (!graves_.empty() && !deadline.passed()) {
    dig_all();
    naps.take();
  }
  for (Grave& grave : graves_) abort(grave.comm);
  if (!aborts_done(Deadline::after(context->scaled(kAbortNs)))) {
    context->log.warn("nccl",
                      "rank {}: ncclCommAbort still blocks; the communicator "
                      "and its memory stay until the process ends (destroy "
                      "CUDA graphs before the context whose steps they hold)",
                      context->rank);
  }
}

Result<Runtime::Lock> Runtime::lock(Deadline deadline, const Stop& stop) {
  Naps naps;
  for (;;) {
    Lock lock = try_lock();
    if (lock.owns_lock()) return lock;
    if (stop) ALQ_TRY(stop());
    if (deadline.passed()) {
      return make_error(ALQ_DEADLINE_EXCEEDED,
                        "another thread of rank {} is inside NCCL for this "
                        "device and does not come back",
                        context->rank);
    }
    naps.take();
  }
}

Status Runtime::error(const char* what, NcclResult result,
                      CommHandle comm) const {
  alq_status code = ALQ_INTERNAL;
  if (result == kRemoteError) code = ALQ_PEER_FAILED;
  if (result == kSystemError) code = ALQ_UNAVAILABLE;
  return make_error(code, "{}", api.failure(what, result, comm))
      .with_native(ALQ_DOMAIN_NCCL, result);
}

Status Runtime::settle(const char* what, NcclResult result, CommHandle comm,
                       Deadline deadline, const Stop& stop) {
  Naps naps;
  for (;;) {
    if (result != kSuccess && result != kInProgress) {
      return error(what, result, comm);
    }
    NcclResult state = kSuccess;
    result = api.async_error(comm, &state);
    if (result != kSuccess) return error("ncclCommGetAsyncError", result, comm);
    if (state == kSuccess) return {};
    if (state != kInProgress) return error(what, state, comm);
    if (stop) ALQ_TRY(stop());
    if (deadline.passed()) {
      return make_error(ALQ_DEADLINE_EXCEEDED,
                        "{} is still in progress: some rank does not take part",
                        what);
    }
    result = kInProgress;
    naps.take();
  }
}

Result<CommHandle> Runtime::init(const UniqueId& id, int32_t rank, int32_t size,
                                 Deadline deadline, const Stop& stop) {
  Config options = config();
  CommHandle comm = nullptr;
  NcclResult result = api.init_rank(&comm, size, id, rank, &options);
  if (comm == nullptr) {
    return error("ncclCommInitRankConfig",
                 result == kSuccess ? kInternalError : result, nullptr);
  }
  Status status =
      settle("ncclCommInitRankConfig", result, comm, deadline, stop);
  if (status.ok()) return comm;
  abort(comm);
  return status;
}

Result<CommHandle> Runtime::split(CommHandle parent, int32_t color, int32_t key,
                                  Deadline deadline, const Stop& stop) {
  Config options = config();
  // NCCL writes it when the parent leaves "in progress", so after a failure it
  // must not be on the stack.
  auto child = std::make_unique<CommHandle>(nullptr);
  NcclResult result = api.split(parent, color < 0 ? kNoColor : color, key,
                                child.get(), &options);
  Status status = settle("ncclCommSplit", result, parent, deadline, stop);
  if (!status.ok()) {
    static_cast<void>(child.release());
    return status;
  }
  CommHandle comm = *child;
  if (color < 0) return CommHandle{nullptr};
  if (comm == nullptr) return error("ncclCommSplit", kInternalError, parent);
  status = settle("ncclCommSplit", kInProgress, comm, deadline, stop);
  if (status.ok()) return comm;
  abort(comm);
  return status;
}

Status Runtime::finish(CommHandle comm, Deadline deadline, const Stop& stop) {
  Status status =
      settle("ncclCommFinalize", api.finalize(comm), comm, deadline, stop);
  if (!status.ok()) {
    abort(comm);
    return status;
  }
  NcclResult result = api.destroy(comm);
  if (result == kSuccess || result == kInProgress) return {};
  return error("ncclCommDestroy", result, nullptr);
}

void Runtime::abort(CommHandle comm) {
  if (comm == nullptr) return;
  shared_->aborting.fetch_add(1);
  // Only what outlives this object is captured.
  auto body = [comm, shared = shared_, table = api, keep = device,
               bounds = context->scaled(kAbortNs)] {
    {
      // Whoever is inside NCCL sees that the group failed and comes out; one
      // that does not is blocked there, and the abort may free it.
      Deadline deadline = Deadline::after(bounds);
      Lock lock(shared->order, std::try_to_lock);
      Naps naps;
      while (!lock.owns_lock() && !deadline.passed()) {
        naps.take();
        static_cast<void>(lock.try_lock());
      }
      CudaBound bound(*dynamic_cast<CudaPort*>(keep.get()));
      if (bound.status().ok()) table.abort(comm);
    }
    shared->aborting.fetch_sub(1);
  };
  std::thread thread;
  if (start_thread(&thread, std::move(body))) return thread.detach();
  // Aborting here might block, which callers must not: it stays.
  shared_->aborting.fetch_sub(1);
  context->log.warn("nccl",
                    "rank {}: the system gives no thread for ncclCommAbort; "
                    "a communicator is left behind",
                    context->rank);
}

bool Runtime::aborts_done(Deadline deadline) const {
  Naps naps;
  while (shared_->aborting.load() != 0) {
    if (deadline.passed()) return false;
    naps.take();
  }
  return true;
}

void Runtime::bury(CommHandle comm, std::shared_ptr<Event> after) {
  if (comm == nullptr) return;
  std::lock_guard lock(graves_mutex_);
  graves_.push_back({comm, std::move(after),
                     Deadline::after(context->scaled(kGraveNs)).at()});
}

bool Runtime::dig(Grave& grave) {
  if (now_ns() > grave.give_up_at) {
    abort(grave.comm);
    return true;
  }
  if (grave.after != nullptr && !device->done(*grave.after)) return false;
  Lock lock = try_lock();
  if (!lock.owns_lock()) return false;
  if (!grave.finalizing) {
    NcclResult result = api.finalize(grave.comm);
    grave.finalizing = true;
    if (result != kSuccess && result != kInProgress) {
      abort(grave.comm);
      return true;
    }
  }
  NcclResult state = kSuccess;
  NcclResult result = api.async_error(grave.comm, &state);
  if (result == kSuccess && state == kInProgress) return false;
  if (result == kSuccess && state == kSuccess) {
    api.destroy(grave.comm);
  } else {
    abort(grave.comm);
  }
  return true;
}

void Runtime::dig_all() {
  std::lock_guard lock(graves_mutex_);
  if (graves_.empty()) return;
  CudaBound bound(port);
  if (!bound.status().ok()) return;
  std::erase_if(graves_, [this](Grave& grave) { return dig(grave); });
}

void Runtime::watch(Watched* group) {
  std::lock_guard lock(watched_mutex_);
  watched_.push_back(group);
}

void Runtime::unwatch(Watched* group) {
  std::lock_guard lock(watched_mutex_);
  std::erase(watched_, group);
}

void Runtime::run_watchdog() {
  while (!stop_.load()) {
    {
      std::lock_guard lock(watched_mutex_);
      for (Watched* group : watched_) group->tick();
    }
    dig_all();
    sleep_ns(kTickNs);
  }
}

}  // namespace aliquot::nccl
