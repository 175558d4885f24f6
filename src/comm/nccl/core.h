// NcclCore: one rank's state of an NCCL group.  The group, the handles on its
// operations and, while it lives, the watchdog share it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/board.h"
#include "comm/nccl/runtime.h"
#include "comm/nccl/staging.h"

namespace aliquot::nccl {

class NcclCore : public Watched {
 public:
  NcclCore(std::shared_ptr<Runtime> runtime, std::shared_ptr<Group> control,
           std::string name, std::unique_ptr<Board> board, CommHandle comm);
  ~NcclCore() override;
  NcclCore(const NcclCore&) = delete;
  NcclCore& operator=(const NcclCore&) = delete;

  const std::shared_ptr<Runtime> runtime;
  const std::shared_ptr<Group> control;
  const std::string name;
  const std::unique_ptr<Board> board;
  const uint64_t stamp;
  const int32_t rank, size;
  std::atomic<int64_t> timeout_ns;
  std::atomic<bool> closed{false};
  std::atomic<bool> reported{false};  // the cause was returned once
  std::atomic<bool> captured{false};  // some operation was
  bool shrunk = false;
  Consequences<NcclCore> consequences;

  GroupPlace place() const { return {name, rank, size}; }
  int32_t world_rank(int32_t q) const {
    return control->ranks()[static_cast<size_t>(q)];
  }
  Device& device() const { return *runtime->device; }
  // Events of the tracked operations; before the first call.
  Status prepare();

  // Issues a checked call.  stream null: the internal one, waited for.  *event
  // (if not null) happens when it is done; null where it is captured.
  Status issue(const Coll& coll, Stream* stream, std::shared_ptr<Event>* event);

  // Waits for the event, helping to find out what goes wrong.
  Status wait(Event& event, Deadline deadline);
  // Until all that was issued is done.
  Status drain(Deadline deadline);

  // ---- failure
  bool failed() const { return failed_.load(); }
  // The first failure known to any rank becomes this group's: the communicator
  // is aborted.  Returns what the group failed with.
  Status fail(const Status& cause);
  // What the group failed with, once failed().
  Status cause() const { return board->cause(); }
  // What is wrong by now.  holds_order: the caller has the runtime's order, and
  // hears from NCCL itself.
  Status check(bool holds_order = false);
  void tick() override { static_cast<void>(check()); }

  // The communicator; null once the group failed or closed.  Valid under the
  // runtime's order.
  CommHandle comm() const { return comm_.load(); }
  // Whoever takes it ends it.
  CommHandle take_comm() { return comm_.exchange(nullptr); }
  // For waits inside NCCL.
  Stop stop_when_failed() {
    return [this] { return check(true); };
  }

  GroupStats stats() const;

 private:
  // An operation whose end is not yet known.
  struct Tracked {
    uint64_t number = 0;  // on the board; 0: point to point
    int32_t peer = -1;
    Call call = {};
    char label[32] = {};
    std::shared_ptr<Event> event;
    int64_t since = 0;
    bool live = false;
  };
  static constexpr size_t kTracked = 32;

  Status supported(const Coll& coll) const;
  Call describe(const Coll& coll) const;
  Status enqueue(const Coll& coll, Staging& staging, Stream& stream,
                 uint64_t capture, uint64_t* number);
  Status chain(Stream& stream, uint64_t identity, uint64_t capture);
  Status call_nccl(const Wire& wire, Stream& stream);
  Result<std::shared_ptr<Event>> track(const Coll& coll, uint64_t number,
                                       Stream& stream);
  Result<NcclOp> premultiplied(const Wire& wire, CommHandle comm);
  void count(const Coll& coll);

  // Whether it happened before the group failed; an abort lets events happen
  // that mean nothing.
  bool ended_before_failure(const Event& event);
  // The oldest operation that is not done, by a copy of its entry.
  std::optional<Tracked> oldest();
  std::string what(const Tracked& op) const;
  Status told(const Coll& coll, uint64_t number, const Status& status) const;
  // The end of a long one tells more than its beginning.
  static void set_label(Tracked& op, const char* label);
  Status find_failure(bool holds_order);
  Status async_failure();
  Status device_failure() const;
  Status overdue(const Tracked& op);
  Status abandoned(const Tracked& op);

  // The board's part of a failure: nobody's operation is called good any more.
  void tell(const Status& cause);

  std::atomic<CommHandle> comm_;
  Scratch scratch_;
  std::unique_ptr<Memory> token_;  // what a barrier sums
  struct Last {
    std::shared_ptr<Event> event;
    uint64_t stream = 0;  // its identity
    uint64_t capture = 0;
  } last_;
  std::shared_ptr<Event> capture_event_;

  std::mutex track_mutex_;
  Tracked tracked_[kTracked];
  size_t next_ = 0, first_ = 0;  // slots, counted on
  int64_t progress_at_ = 0;      // when an operation was last seen to end
  std::mutex check_mutex_;
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> ops_{0}, read_{0}, written_{0}, received_{0}, sleeps_{0};
};

}  // namespace aliquot::nccl
