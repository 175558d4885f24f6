#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/plan.h"

namespace aliquot {

using namespace cuda;  // NOLINT: the driver's names

namespace {

constexpr size_t kArgsBytes = 256;

std::string what_of(Stream& stream) {
  return fmt::format("stream \"{}\"", static_cast<CudaStream&>(stream).name);
}

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<Context> context,
                       std::shared_ptr<CudaCore> core)
    : context_(std::move(context)),
      core_(std::move(core)),
      pins_(std::make_shared<Pins>(core_)),
      internal_(std::make_shared<CudaStream>(core_, core_->internal(), false,
                                             "internal")) {}

CudaDevice::~CudaDevice() { close(); }

// ------------------------------------------------------------------- streams

Result<std::shared_ptr<Stream>> CudaDevice::create_stream(std::string name) {
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  CUstream handle = nullptr;
  ALQ_TRY(core_->check(core_->api().stream_create(&handle, kStreamNonBlocking),
                       "cuStreamCreate"));
  return std::shared_ptr<Stream>(
      std::make_shared<CudaStream>(core_, handle, true, std::move(name)));
}

Result<Stream*> CudaDevice::from_abi(const alq_stream* stream) {
  if (stream == nullptr) return static_cast<Stream*>(nullptr);
  if (stream->device_type != ALQ_DEVICE_CUDA ||
      stream->device_id != ordinal()) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "stream of device type {}, device {} given to a context "
                      "of CUDA device {}",
                      stream->device_type, stream->device_id, ordinal());
  }
  if (stream->handle == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "stream handle 0 is ambiguous: pass 1 for the legacy "
                      "default stream, 2 for the thread's, or a stream");
  }
  auto handle = static_cast<CUstream>(stream->handle);
  std::lock_guard lock(mutex_);
  auto it = callers_.find(handle);
  if (it != callers_.end()) return it->second.get();
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  CUcontext context = core_->context();
  if (handle != legacy_stream() && handle != per_thread_stream()) {
    ALQ_TRY(core_->check(core_->api().stream_context(handle, &context),
                         "cuStreamGetCtx"));
  }
  if (context != core_->context()) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "stream {} is of another CUDA context than the primary "
                      "one of device {}; create it there",
                      fmt::ptr(stream->handle), ordinal());
  }
  auto wrapped = std::make_shared<CudaStream>(
      core_, handle, false, fmt::format("{}", fmt::ptr(stream->handle)));
  return (callers_[handle] = std::move(wrapped)).get();
}

Status CudaDevice::check_waitable(Stream& stream) {
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  ALQ_ASSIGN(uint64_t captured, core_->capture(handle_of(stream)));
  if (captured == 0) return {};
  return make_error(ALQ_FAILED_PRECONDITION,
                    "{} is being captured and can not be waited for",
                    what_of(stream));
}

Status CudaDevice::synchronize(Stream& stream, Deadline deadline) {
  ALQ_TRY(check_waitable(stream));
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  return core_->drain(handle_of(stream), deadline, what_of(stream).c_str());
}

Status CudaDevice::pin(Stream& stream, std::shared_ptr<void> object) {
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  ALQ_ASSIGN(uint64_t captured, core_->capture(handle_of(stream)));
  return pins_->add(handle_of(stream), captured, std::move(object));
}

// -------------------------------------------------------------------- events

Result<std::shared_ptr<Event>> CudaDevice::create_event() {
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  CUevent handle = nullptr;
  ALQ_TRY(core_->check(core_->api().event_create(&handle, kEventDisableTiming),
                       "cuEventCreate"));
  return std::shared_ptr<Event>(std::make_shared<CudaEvent>(core_, handle));
}

Status CudaDevice::record(Event& event, Stream* stream) {
  CudaEvent& e = cuda_event(event);
  if (stream == nullptr) {  // all that it could wait for is done
    e.recorded = false;
    return {};
  }
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  ALQ_ASSIGN(uint64_t captured, core_->capture(handle_of(*stream)));
  ALQ_TRY(core_->check(core_->api().event_record(e.handle, handle_of(*stream)),
                       "cuEventRecord"));
  e.capture = captured;
  e.recorded = true;
  return {};
}

Status CudaDevice::wait(Stream* stream, Event& event, Deadline deadline) {
  CudaEvent& e = cuda_event(event);
  if (!e.recorded) return {};
  if (stream == nullptr) return synchronize(event, deadline);
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  const uint64_t inside = e.capture;
  ALQ_ASSIGN(uint64_t captured, core_->capture(handle_of(*stream)));
  if (captured != 0 && captured != inside) {
    return inside == 0 ? wait_outside(e.handle, deadline) : Status{};
  }
  // Joins the capture, if that is still going on.
  CUresult result =
      core_->api().stream_wait_event(handle_of(*stream), e.handle, 0);
  if (inside != 0 && result == kCapturedEvent) return {};
  return core_->check(result, "cuStreamWaitEvent");
}

// A capture can not wait for what is outside of it, and need not for what has
// happened: every launch of the graph comes later.  The other way round nobody
// waits for a capture: it did nothing, and its graph's launches are known to
// the caller alone, who orders them.  What is nearly done, as a prefetch that
// the caller knows nothing of, is waited for: nothing runs in a capture.
Status CudaDevice::wait_outside(CUevent event, Deadline deadline) {
  constexpr int64_t kMostNs = 1'000'000'000;
  Deadline most = Deadline::after(std::min(kMostNs, deadline.left()));
  Status ended = core_->wait(event, most, "work from before the capture");
  if (ended.code() != ALQ_DEADLINE_EXCEEDED) return ended;
  return make_error(ALQ_FAILED_PRECONDITION,
                    "CUDA device {}: work from before the capture is not done "
                    "yet; synchronise before a capture begins",
                    ordinal());
}

bool CudaDevice::done(const Event& event) const {
  const auto& e = static_cast<const CudaEvent&>(event);
  if (!e.recorded || !core_->healthy().ok()) return true;
  if (e.capture != 0) return false;  // to ask would spoil the capture
  ContextScope scope(*core_);
  CUresult result = core_->query(e.handle);
  if (result == kNotReady) return false;
  // Remembered; nothing runs any more.
  static_cast<void>(core_->check(result, "cuEventQuery"));
  return true;
}

Status CudaDevice::synchronize(Event& event, Deadline deadline) {
  CudaEvent& e = cuda_event(event);
  ALQ_TRY(core_->healthy());
  if (!e.recorded || e.capture != 0) return {};
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  return core_->wait(e.handle, deadline, "an event");
}

// ------------------------------------------------------------------- kernels

Status CudaDevice::launch(Stream* stream, kernels::OpCode op, const void* args,
                          size_t args_bytes) {
  if (args_bytes > kArgsBytes) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "kernel {}: {} bytes of arguments, at most {} are copied",
                      static_cast<int32_t>(op), args_bytes, kArgsBytes);
  }
  ALQ_TRY(core_->healthy());
  ContextScope scope(*core_);
  ALQ_TRY(scope.status());
  if (stream != nullptr) return run(handle_of(*stream), op, args, args_bytes);
  ALQ_TRY(run(core_->internal(), op, args, args_bytes));
  return core_->drain(core_->internal(), context_->deadline(0),
                      "an operation without a stream");
}

Status CudaDevice::run(CUstream stream, kernels::OpCode op, const void* args,
                       size_t args_bytes) {
  if (op == kernels::OpCode::kCopy) {
    return copy(stream, *static_cast<const kernels::CopyArgs*>(args));
  }
  kernels::CudaLaunch plan = kernels::cuda_plan(op, args, multiprocessors_);
  if (plan.kernel == nullptr) return {};
  ALQ_ASSIGN(CUfunction function, kernels_->find(plan.kernel));
  // The driver takes it without const, and copies it.
  alignas(16) std::array<std::byte, kArgsBytes> own;
  std::memcpy(own.data(), args, args_bytes);
  if (op == kernels::OpCode::kStamp) {
    kernels::StampArgs stamp = *static_cast<const kernels::StampArgs*>(args);
    stamp.offset += clock_offset_;
    std::memcpy(own.data(), &stamp, sizeof stamp);
  }
  void* parameters[] = {own.data()};
  CUresult result = core_->api().launch_kernel(
      function, plan.grid, 1, 1, plan.block, 1, 1, plan.shared_bytes, stream,
      parameters, nullptr);
  if (result == kSuccess) return {};
  return core_->check(result,
                      fmt::format("cuLaunchKernel of {}", plan.kernel).c_str());
}

Status CudaDevice::copy(CUstream stream, const kernels::CopyArgs& args) {
  if (args.bytes <= 0) return {};
  return core_->check(
      core_->api().memory_copy(reinterpret_cast<CUdeviceptr>(args.dst),
                               reinterpret_cast<CUdeviceptr>(args.src),
                               static_cast<size_t>(args.bytes), stream),
      "cuMemcpyAsync");
}

Result<Progress> CudaDevice::set_progress(int32_t want, Deadline) {
  if (want < ALQ_PROGRESS_AUTO || want > ALQ_PROGRESS_ON) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "progress {} is none of AUTO (0), OFF (1), ON (2)", want);
  }
  Progress progress;
  progress.why = "streams of a GPU run by themselves";
  return progress;
}

// -------------------------------------------------------------------- memory

Result<std::unique_ptr<Memory>> CudaDevice::allocate(int64_t bytes,
                                                     std::string label) {
  return allocate_device(core_, bytes, label, context_->deadline(0));
}

Result<std::unique_ptr<Memory>> CudaDevice::allocate_host(int64_t bytes,
                                                          std::string label) {
  return allocate_pinned(core_, bytes, label);
}

// ---------------------------------------------------------------------- port

void* CudaDevice::native(Stream& stream) { return handle_of(stream); }

Result<bool> CudaDevice::bind_thread() {
  CUcontext current = nullptr;
  ALQ_TRY(
      core_->check(core_->api().context_current(&current), "cuCtxGetCurrent"));
  if (current == core_->context()) return false;
  ALQ_TRY(core_->check(core_->api().context_push(core_->context()),
                       "cuCtxPushCurrent"));
  return true;
}

void CudaDevice::unbind_thread() {
  CUcontext popped = nullptr;
  core_->api().context_pop(&popped);
}

Result<uint64_t> CudaDevice::identity(Stream& stream) {
  unsigned long long id = 0;
  ALQ_TRY(core_->check(core_->api().stream_id(handle_of(stream), &id),
                       "cuStreamGetId"));
  return uint64_t{id};
}

Result<uint64_t> CudaDevice::capture(Stream& stream) {
  ALQ_TRY(core_->healthy());
  return core_->capture(handle_of(stream));
}

bool CudaDevice::visible(const void* address) {
  ContextScope scope(*core_);
  int type = 0;
  return core_->api().pointer_attribute(
             &type, kPointerMemoryType,
             reinterpret_cast<CUdeviceptr>(address)) == kSuccess &&
         type != 0;
}

}  // namespace aliquot
