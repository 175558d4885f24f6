// Device, Stream, Event, Memory: what everything above is written against,
// without asking which device it is.
//
// A null Stream* means "now": what is launched is done on return.  On CPU the
// calling thread does it; an asynchronous device has a stream of its own for
// it, which it waits for.  On CPU a Stream is a queue of resumable operations;
// whoever waits for any of them runs all queues of its rank (see
// device/cpu/runner.h).  On CUDA it is a CUstream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/ops.h"

namespace aliquot {

class Stream {
 public:
  virtual ~Stream() = default;
};

class Event {
 public:
  virtual ~Event() = default;
};

// A block of device memory, freed by its destructor.  Shared memory can be read
// in place by the other ranks of the host.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 protected:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Whether a thread runs queued operations while the caller computes, and why.
struct Progress {
  bool on = false;
  // The measured part of a copy that it hides, -1: not measured; and the least
  // at which it pays.
  double hidden = -1, least_hidden = 0;
  const char* why = "";
};

class Device {
 public:
  virtual ~Device() = default;

  virtual Result<std::shared_ptr<Stream>> create_stream(std::string name) = 0;
  // The caller's stream as given through the ABI; null handle and CPU: nullptr.
  virtual Result<Stream*> from_abi(const alq_stream* stream) = 0;

  virtual Result<std::shared_ptr<Event>> create_event() = 0;
  virtual Status record(Event& event, Stream* stream) = 0;
  // Later work of `stream` starts after the event; null: blocks, helping.
  virtual Status wait(Stream* stream, Event& event, Deadline deadline) = 0;
  virtual bool done(const Event& event) const = 0;
  // Blocks the caller, helping.
  virtual Status synchronize(Event& event, Deadline deadline) = 0;
  virtual Status synchronize(Stream& stream, Deadline deadline) = 0;
  // Fails while the stream only notes its operations for later launches: then
  // the host can not wait for them.
  virtual Status check_waitable(Stream&) { return {}; }
  // The capture that notes the stream's operations, 0: none.
  virtual Result<uint64_t> capture(Stream&) { return 0; }

  // Keeps the object alive until the stream has done what it has now.
  virtual Status pin(Stream& stream, std::shared_ptr<void> object) = 0;

  // Runs a kernel on the stream; args is copied (args_bytes <= 256).
  virtual Status launch(Stream* stream, kernels::OpCode op, const void* args,
                        size_t args_bytes) = 0;

  // ALQ_PROGRESS_*: AUTO decides, measuring if need be; ON and OFF obey, unless
  // the context was opened with the contrary.
  virtual Result<Progress> set_progress(int32_t want, Deadline deadline) = 0;

  // Zeroed, 4096-byte aligned, pages touched, huge pages where possible.
  virtual Result<std::unique_ptr<Memory>> allocate(int64_t bytes,
                                                   std::string label) = 0;
  // Zeroed memory that both the host and kernels can read and write.
  virtual Result<std::unique_ptr<Memory>> allocate_host(int64_t bytes,
                                                        std::string label) = 0;

  // True: streams run by themselves, and memory of `allocate` is out of the
  // host's reach, so that everything on the way goes through streams and the
  // host reads a result only after it has synchronised.
  virtual bool asynchronous() const = 0;
};

}  // namespace aliquot
