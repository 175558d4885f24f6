#include "comm/nccl/group.h"

#include "device/cpu/fork.h"

namespace aliquot::nccl {
namespace {

class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<NcclCore> core, std::shared_ptr<Event> event)
      : core_(std::move(core)), event_(std::move(event)) {}

  bool done() const override {
    return event_ == nullptr || core_->failed() ||
           core_->device().done(*event_);
  }
  Status wait(Deadline deadline) override {
    if (event_ != nullptr) return core_->wait(*event_, deadline);
    return make_error(ALQ_FAILED_PRECONDITION,
                      "an operation of group \"{}\" that was captured has no "
                      "end of its own; wait for the replay",
                      core_->name);
  }

 private:
  const std::shared_ptr<NcclCore> core_;
  const std::shared_ptr<Event> event_;
};

}  // namespace

Status NcclGroup::usable() const {
  if (fork_stamp() != core_->stamp) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "group \"{}\" belongs to the parent process; a forked "
                      "child must not use it",
                      core_->name);
  }
  if (core_->closed.load()) {
    return make_error(ALQ_FAILED_PRECONDITION, "group \"{}\" is closed",
                      core_->name);
  }
  return {};
}

Status NcclGroup::enter() {
  ALQ_TRY(usable());
  if (!core_->failed() && !core_->board->poisoned()) return {};
  Status cause = core_->check();
  if (cause.ok()) return {};
  if (!core_->reported.exchange(true)) return cause;
  return make_error(ALQ_GROUP_POISONED,
                    "group \"{}\" failed earlier and can not be used: {}",
                    core_->name, cause.message())
      .with_rank(cause.rank());
}

Status NcclGroup::issue(const Coll& call, Stream* stream,
                        std::shared_ptr<Work>* work) {
  ALQ_TRY(enter());
  Coll coll = call;
  ALQ_TRY(normalize(core_->place(), &coll));
  std::shared_ptr<Event> event;
  Status status = core_->issue(coll, stream, &event);
  if (!status.ok()) {
    if (core_->failed()) core_->reported.store(true);
    return status;
  }
  if (work != nullptr) {
    *work = std::make_shared<NcclWork>(core_, std::move(event));
  }
  return {};
}

Result<std::unique_ptr<Memory>> NcclGroup::allocate_common(int64_t bytes,
                                                           std::string label,
                                                           Deadline) {
  return make_error(ALQ_UNSUPPORTED,
                    "common memory \"{}\" of {} bytes: GPUs of group \"{}\" "
                    "share none",
                    label, bytes, core_->name);
}

void NcclGroup::set_timeout_ns(int64_t ns) {
  core_->timeout_ns.store(ns > 0 ? ns : core_->runtime->context->timeout_ns);
  core_->control->set_timeout_ns(ns);
}

Status NcclGroup::status() const {
  ALQ_TRY(usable());
  return core_->check();
}

void NcclGroup::abort(const Status& reason) {
  if (fork_stamp() != core_->stamp) return;
  int32_t self = core_->world_rank(core_->rank);
  int32_t culprit = reason.rank() >= 0 ? reason.rank() : self;
  static_cast<void>(core_->fail(
      make_error(ALQ_ABORTED, "group \"{}\" was aborted by rank {}: {}",
                 core_->name, self, reason.message())
          .with_rank(culprit)));
  // Ends what peers wait for there, and with the world all its groups.
  core_->control->abort(reason);
}

void NcclGroup::fail_with(Group& other) {
  auto* first = dynamic_cast<NcclGroup*>(&other);
  if (first != nullptr) first->core_->consequences.add(core_);
}

void NcclGroup::on_failure(std::shared_ptr<FailWord> word) {
  core_->consequences.add(word);
}

}  // namespace aliquot::nccl
