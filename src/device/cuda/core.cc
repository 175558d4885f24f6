#include "device/cuda/core.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

namespace aliquot::cuda {
namespace {

constexpr int kBusyPolls = 20, kYieldPolls = 50;
constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 1'000'000;

void nap(int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

Status no_such_device(int32_t ordinal, int count) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return make_error(ALQ_INVALID_ARGUMENT,
                    "device_id {}: the driver shows {} CUDA devices, counted "
                    "from 0{}{}",
                    ordinal, count,
                    visible == nullptr ? "" : "; CUDA_VISIBLE_DEVICES is ",
                    visible == nullptr ? "" : visible);
}

}  // namespace

Result<std::shared_ptr<CudaCore>> CudaCore::open(
    std::shared_ptr<const Driver> driver, int32_t ordinal) {
  std::shared_ptr<CudaCore> core(new CudaCore(std::move(driver), ordinal));
  const Driver& api = core->api();
  int count = 0;
  ALQ_TRY(api.error(api.device_count(&count), "cuDeviceGetCount", -1));
  if (ordinal < 0 || ordinal >= count) return no_such_device(ordinal, count);
  ALQ_TRY(core->check(api.device_get(&core->device_, ordinal), "cuDeviceGet"));
  int unified = 0;
  ALQ_TRY(core->check(api.device_attribute(
                          &unified, kAttributeUnifiedAddressing, core->device_),
                      "cuDeviceGetAttribute"));
  if (unified == 0) {
    return make_error(ALQ_UNSUPPORTED,
                      "CUDA device {} has no unified addressing; use another "
                      "card",
                      ordinal);
  }
  ALQ_TRY(core->check(api.primary_retain(&core->context_, core->device_),
                      "cuDevicePrimaryCtxRetain"));
  ContextScope scope(*core);
  ALQ_TRY(scope.status());
  ALQ_TRY(core->check(api.stream_create(&core->internal_, kStreamNonBlocking),
                      "cuStreamCreate"));
  return core;
}

// Errors are of no use any more: the process may be ending.
CudaCore::~CudaCore() {
  if (context_ == nullptr) return;
  {
    ContextScope scope(*this);
    OutsideCaptures outside(api());
    for (CUevent event : spare_events_) api().event_destroy(event);
    if (internal_ != nullptr) api().stream_destroy(internal_);
  }
  api().primary_release(device_);
}

Status CudaCore::healthy() const {
  if (!failed_.load()) return {};
  std::lock_guard lock(mutex_);
  return failure_;
}

Status CudaCore::check(CUresult result, const char* call) {
  if (result == kSuccess) return {};
  Status status = api().error(result, call, ordinal_);
  if (is_sticky(result)) {
    std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) {
      failure_ = Status(status.code(),
                        "the device failed earlier: " + status.message())
                     .with_native(ALQ_DOMAIN_CUDA, result);
    }
  }
  return status;
}

CUresult CudaCore::query(CUevent event) const {
  OutsideCaptures outside(api());
  return api().event_query(event);
}

Status CudaCore::wait(CUevent event, Deadline deadline, const char* what) {
  const int64_t start = now_ns();
  int64_t sleep = kFirstNapNs;
  for (int64_t polls = 0;; ++polls) {
    CUresult result = query(event);
    if (result != kNotReady) return check(result, "cuEventQuery");
    if (polls < kBusyPolls) continue;
    int64_t left = deadline.left();
    if (left == 0) break;
    if (polls < kYieldPolls) {
      sched_yield();
      continue;
    }
    nap(std::min(sleep, left));
    sleep = std::min(2 * sleep, kLongestNapNs);
  }
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "CUDA device {}: {} is not done after {} ms", ordinal_,
                    what, (now_ns() - start) / 1'000'000);
}

Status CudaCore::drain(CUstream stream, Deadline deadline, const char* what) {
  ALQ_ASSIGN(CUevent event, take_event());
  Status status = check(api().event_record(event, stream), "cuEventRecord");
  if (status.ok()) status = wait(event, deadline, what);
  give_event(event);
  return status;
}

Result<CUevent> CudaCore::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!spare_events_.empty()) {
      CUevent event = spare_events_.back();
      spare_events_.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  ALQ_TRY(
      check(api().event_create(&event, kEventDisableTiming), "cuEventCreate"));
  return event;
}

void CudaCore::give_event(CUevent event) {
  std::lock_guard lock(mutex_);
  spare_events_.push_back(event);
}

Result<uint64_t> CudaCore::capture(CUstream stream) {
  int status = kCaptureStatusNone;
  uint64_t id = 0;
  ALQ_TRY(check(api().stream_capture_info(stream, &status, &id, nullptr,
                                          nullptr, nullptr),
                "cuStreamGetCaptureInfo"));
  // An invalid one has no number.
  if (status == kCaptureStatusInvalidated) {
    return api().error(kCaptureInvalidated, "cuStreamGetCaptureInfo", ordinal_);
  }
  return status == kCaptureStatusNone ? 0 : id;
}

ContextScope::ContextScope(const CudaCore& core) : core_(core) {
  CUcontext current = nullptr;
  if (core.api().context_current(&current) == kSuccess &&
      current == core.context()) {
    return;
  }
  result_ = core.api().context_push(core.context());
  pushed_ = result_ == kSuccess;
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) core_.api().context_pop(&popped);
}

OutsideCaptures::OutsideCaptures(const Driver& api) : api_(api) {
  changed_ = api_.exchange_capture_mode(&mode_) == kSuccess;
}

OutsideCaptures::~OutsideCaptures() {
  if (changed_) api_.exchange_capture_mode(&mode_);
}

}  // namespace aliquot::cuda
