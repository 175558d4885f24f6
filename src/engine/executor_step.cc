// What a step asks of the executor's streams, where those run by themselves.
#include "engine/executor.h"

namespace aliquot::engine {

Status Executor::order_before(Stream* caller, Deadline deadline) {
  // A stream without work is no part of a capture, and could not be recorded.
  if (gathering_) {
    ALQ_TRY(device_->record(*gathers_, gather_stream_.get()));
    ALQ_TRY(device_->wait(caller, *gathers_, deadline));
  }
  if (reducing_) {
    ALQ_TRY(device_->record(*reductions_, reduce_stream_.get()));
    ALQ_TRY(device_->wait(caller, *reductions_, deadline));
  }
  gathering_ = reducing_ = false;
  return {};  // reductions come after updates: open_grads waited for them
}

Status Executor::meet_after(Event& decided) {
  Stream* stream = reduce_stream_.get();
  reducing_ = true;
  ALQ_TRY(device_->wait(stream, decided, context_->deadline(0)));
  Coll barrier;
  barrier.label = "step decided";
  ALQ_TRY(communicate(*groups_.exchange, barrier, stream));
  return device_->record(*met_, stream);
}

Status Executor::set_steps(int64_t steps) {
  kernels::FillArgs set{&step_memory_.counters->steps, 1,
                        static_cast<uint64_t>(steps), 8};
  if (!asynchronous_) return launch(nullptr, kernels::OpCode::kFill, set);
  Stream* stream = gather_stream_.get();
  gathering_ = true;
  ALQ_TRY(device_->wait(stream, *updated_, context_->deadline(0)));
  // Steps come after all that is on this stream, see order_before.
  return launch(stream, kernels::OpCode::kFill, set);
}

}  // namespace aliquot::engine
