// Point to point: send and recv, numbered per ordered pair of ranks and
// independent of the group's collectives.
#pragma once

#include "comm/mem/coll_op.h"

namespace aliquot::mem {

// One send or recv as a resumable state machine.
class P2pOp : public Op {
 public:
  P2pOp(GroupCore& core, std::shared_ptr<GroupCore> keep, const Coll& coll,
        uint64_t number, std::shared_ptr<WorkState> work);
  ~P2pOp() override;
  P2pOp(const P2pOp&) = delete;
  P2pOp& operator=(const P2pOp&) = delete;

  void post() override;
  Step step(bool slow) override;
  Status status() const override { return status_; }
  void set_deadline(Deadline deadline) { deadline_ = deadline.at(); }

 private:
  enum class State { kTurn, kMeet, kMove, kDying, kDone };

  Step step_send(bool slow);
  Step step_recv(bool slow);
  void announce();
  Status compare() const;
  Status resolve();
  Step move(bool slow);
  Step move_staged(bool slow);
  Step fill_staged();
  void publish(Line& line, uint64_t value);
  Step waiting(bool slow);
  Status slow_checks();
  std::string what() const;
  Step fail(Status status);
  Step dying();
  bool in_process() const;
  bool read_here() const;
  void withdraw();
  Step finish();

  GroupCore& core_;
  const std::shared_ptr<GroupCore> keep_;
  const Coll coll_;
  const uint64_t number_;
  const std::shared_ptr<WorkState> work_;
  const uint64_t recorded_;  // by the flight recorder
  const bool sends_;
  const int64_t bytes_;
  Channel& channel_;
  std::atomic<uint64_t>& turn_;
  Bell& peer_bell_;
  State state_ = State::kTurn;
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Segment> held_;  // the sender's, of this process
  const std::byte* base_ = nullptr;
  bool staged_ = false, mapped_ = false, reading_ = false;
  bool said_where_ = false;
  int64_t pos_ = 0;
  uint64_t window_ = 0;
  int64_t deadline_ = 0, started_ = 0;
  Call call_;
  Status status_;
  GroupStats counts_;
};

}  // namespace aliquot::mem
