// Streams as threads, events as points in them, captures as lists of nodes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/doubles/cuda/state.h"

namespace aliquot::cuda_double {

// A place in a stream: reached once, never again.
class Point {
 public:
  void set();
  void wait();
  bool reached() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable reached_changed_;
  bool reached_ = false;
};

using Item = std::function<void()>;

// A captured item; runs after the nodes it names.  lane: its stream.
struct Node {
  Item run;
  std::vector<size_t> after;
  size_t lane = 0;
};

struct StreamImpl;

struct Capture {
  uint64_t id = 0;
  StreamImpl* origin = nullptr;
  int mode = kCaptureModeGlobal;
  std::thread::id owner;
  bool invalid = false, ended = false;
  std::vector<Node> nodes;
  std::vector<StreamImpl*> streams;  // lanes
};

// Also CUstream_st.  Its thread lives while it has items or the handle does.
struct StreamImpl {
  explicit StreamImpl(ContextImpl* context, unsigned flags);

  // Runs on the stream's thread, after all before it.
  void push(Item item);
  // Returns when all that was pushed is done.
  void drain();
  bool idle();
  // Ends the thread when it has nothing left.
  void close();

  ContextImpl* const context;
  const unsigned flags;
  int number = 0;   // of its context's, from 1
  uint64_t id = 0;  // of the process', never used again
  // Guarded by state().mutex.
  std::shared_ptr<Capture> capture;
  std::vector<size_t> tail;  // the captured nodes its next one comes after
  size_t lane = 0;

 private:
  struct Queue;
  static void run(std::shared_ptr<Queue> queue);
  const std::shared_ptr<Queue> queue_;
};

// Also CUevent_st.
struct EventImpl {
  unsigned flags = 0;
  // When it was made: how many streams its context had, and how many events
  // since the last of those.
  int streams = 0, number = 0;
  ContextImpl* context = nullptr;
  std::shared_ptr<Point> point;      // null: not recorded, counts as reached
  std::shared_ptr<Capture> capture;  // not null: recorded in it
  std::vector<size_t> after;
};

struct Handles {
  std::set<StreamImpl*> streams;
  std::set<EventImpl*> events;
  std::vector<std::weak_ptr<Capture>> captures;
  uint64_t created = 0;   // streams, for their seeds
  uint64_t captured = 0;  // captures, for their ids
};

Handles& handles();

// Null for what is no live handle.  Default streams: a violation, unless they
// are allowed.
StreamImpl* find_stream(CUstream stream, const char* caller);
EventImpl* find_event(CUevent event);

// Pushes or captures.  Checks the handle, the context and the capture.
CUresult submit(CUstream stream, const char* caller, Item item);

// The stream takes part in a capture from now on.
void join(StreamImpl* stream, const std::shared_ptr<Capture>& capture);
// The union, without repetition.
void add(std::vector<size_t>& into, const std::vector<size_t>& more);

// May the calling thread do what disturbs captures?  If not: the error, and
// those captures are no good any more.
CUresult check_capture();
// The same, and a violation in a step.
CUresult check_unsafe(const char* caller);

}  // namespace aliquot::cuda_double
