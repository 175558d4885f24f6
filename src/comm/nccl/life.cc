// The birth and the end of groups: create, split, shrink, close.  All of it is
// collective and happens outside steps.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "comm/nccl/group.h"

namespace aliquot::nccl {
namespace {

// What a rank brings to the making of a communicator.
struct Offer {
  int32_t code = ALQ_OK, version = 0;
  UniqueId id = {};  // rank 0's
  char text[400] = {};
};

// mine of every rank to every rank.  No other time-out than the deadline's.
Status exchange(Group& control, const void* mine, void* all, int64_t bytes,
                Deadline deadline) {
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = mine;
  coll.dst = all;
  coll.count = bytes;
  coll.label = "nccl";
  const int64_t before = control.timeout_ns();
  control.set_timeout_ns(std::max<int64_t>(deadline.left(), 1));
  Status status = control.issue(coll, nullptr, nullptr);
  control.set_timeout_ns(before);
  return status;
}

// Everyone learns the first rank's failure, and rank 0's id.
Status agree(Group& control, const Status& mine, Offer offer, Offer* first,
             Deadline deadline) {
  offer.code = mine.code();
  copy_text(offer.text, mine.message());
  std::vector<Offer> all(static_cast<size_t>(control.size()));
  ALQ_TRY(exchange(control, &offer, all.data(), sizeof offer, deadline));
  for (size_t q = 0; q < all.size(); ++q) {
    Offer& other = all[q];
    other.text[sizeof other.text - 1] = '\0';
    int32_t world = control.ranks()[q];
    if (other.code != ALQ_OK) {
      return make_error(other.code, "rank {}: {}", world, other.text)
          .with_rank(world);
    }
    if (other.version != all[0].version) {
      return make_error(ALQ_UNAVAILABLE,
                        "rank {} has NCCL {}, rank {} has {}; all ranks need "
                        "the same version",
                        control.ranks()[0], version_text(all[0].version), world,
                        version_text(other.version))
          .with_rank(world);
    }
  }
  if (first != nullptr) *first = all[0];
  return {};
}

// A failure of the control group ends a wait for NCCL.
Stop stop_with(const std::shared_ptr<Group>& control) {
  return [control] { return control->status(); };
}

// The first operations connect ranks, which takes long and allocates.
Status warm_up(NcclCore& core) {
  ALQ_ASSIGN(auto memory,
             core.device().allocate(8 * core.size, "warm-up of " + core.name));
  auto* one = reinterpret_cast<float*>(memory->data());
  float* all = one + core.size;
  Coll coll;
  coll.dtype = coll.out_dtype = ALQ_F32;
  coll.count = 1;
  coll.label = "warm-up";
  coll.kind = CollKind::kAllReduce;
  coll.src = coll.dst = one;
  ALQ_TRY(core.issue(coll, nullptr, nullptr));
  coll.kind = CollKind::kAllGather;
  coll.dst = all;
  ALQ_TRY(core.issue(coll, nullptr, nullptr));
  coll.kind = CollKind::kReduceScatter;
  coll.src = all;
  coll.dst = one;
  return core.issue(coll, nullptr, nullptr);
}

// The group of a communicator that this rank has, or the failure of any rank.
Result<std::shared_ptr<Group>> make_group(std::shared_ptr<Runtime> runtime,
                                          std::shared_ptr<Group> control,
                                          std::string name,
                                          Result<CommHandle> comm,
                                          Deadline deadline) {
  Status status = comm.status();
  std::shared_ptr<NcclCore> core;
  auto board = Board::create(*control, name, deadline);
  if (!board.ok()) {
    if (comm.ok()) runtime->abort(*comm);
    return status.ok() ? board.status() : status;
  }
  if (comm.ok()) {
    core = std::make_shared<NcclCore>(runtime, control, std::move(name),
                                      std::move(*board), *comm);
    int32_t rank = -1;
    NcclResult result = runtime->api.user_rank(*comm, &rank);
    if (result != kSuccess) {
      status = runtime->error("ncclCommUserRank", result, *comm);
    } else if (rank != core->rank) {
      status =
          make_error(ALQ_INTERNAL, "NCCL numbers rank {} of group \"{}\" as {}",
                     core->rank, core->name, rank);
    }
    if (status.ok()) status = core->prepare();
  }
  Offer offer;
  offer.version = runtime->api.version;
  Status all = agree(*control, status, offer, nullptr, deadline);
  if (all.ok()) all = warm_up(*core);
  if (all.ok()) {
    return std::shared_ptr<Group>(std::make_shared<NcclGroup>(core));
  }
  if (core != nullptr) static_cast<void>(core->fail(all));
  return all;
}

// A communicator over the control group's ranks, with an id of its own.
Result<CommHandle> connect(const std::shared_ptr<Runtime>& runtime,
                           const std::shared_ptr<Group>& control,
                           const UniqueId& id, Deadline deadline) {
  ALQ_ASSIGN(auto lock, runtime->lock(deadline, stop_with(control)));
  CudaBound bound(runtime->port);
  ALQ_TRY(bound.status());
  return runtime->init(id, control->rank(), control->size(), deadline,
                       stop_with(control));
}

}  // namespace

Result<std::shared_ptr<Group>> NcclGroup::create(
    std::shared_ptr<Context> context, std::shared_ptr<Device> device,
    std::shared_ptr<Group> control, std::string name, Deadline deadline) {
  auto runtime = Runtime::of(context, device);
  Status status = runtime.status();
  Offer offer, first;
  if (runtime.ok()) {
    offer.version = (*runtime)->api.version;
    if (control->rank() == 0) {
      CudaBound bound((*runtime)->port);
      status = bound.status();
      NcclResult result = (*runtime)->api.get_unique_id(&offer.id);
      if (status.ok() && result != kSuccess) {
        status = (*runtime)->error("ncclGetUniqueId", result, nullptr);
      }
    }
  }
  ALQ_TRY(agree(*control, status, offer, &first, deadline));
  auto comm = connect(*runtime, control, first.id, deadline);
  return make_group(*runtime, control, std::move(name), std::move(comm),
                    deadline);
}

Result<std::shared_ptr<Group>> NcclGroup::split(int32_t color, int32_t key,
                                                std::string name,
                                                Deadline deadline) {
  ALQ_TRY(enter());
  Runtime& runtime = *core_->runtime;
  // NCCL splits a communicator only when nothing is under way on it.
  ALQ_TRY(core_->drain(deadline));
  ALQ_ASSIGN(auto control, core_->control->split(color, key, name, deadline));
  Result<CommHandle> comm = CommHandle{nullptr};
  {
    ALQ_ASSIGN(auto lock, runtime.lock(deadline, core_->stop_when_failed()));
    if (core_->failed()) return core_->cause();
    CudaBound bound(runtime.port);
    ALQ_TRY(bound.status());
    comm = runtime.split(core_->comm(), color, key, deadline,
                         core_->stop_when_failed());
  }
  if (!comm.ok()) {
    Status cause =
        make_error(comm.status().code(), "split of group \"{}\" on rank {}: {}",
                   core_->name, core_->world_rank(core_->rank),
                   comm.status().message())
            .with_native(comm.status().domain(), comm.status().native_code())
            .with_rank(comm.status().rank());
    return core_->fail(cause);
  }
  if (control == nullptr) return std::shared_ptr<Group>();
  std::string full = control->name();
  return make_group(core_->runtime, control, std::move(full), std::move(comm),
                    deadline);
}

Result<std::shared_ptr<Group>> NcclGroup::shrink(Deadline deadline) {
  ALQ_TRY(usable());
  if (core_->check().ok() || core_->shrunk) {
    return make_error(
        ALQ_FAILED_PRECONDITION,
        "group \"{}\" {}; only a group that has failed is shrunk, and once",
        core_->name, core_->shrunk ? "was shrunk" : "is well");
  }
  if (core_->control->status().ok()) core_->control->abort(core_->cause());
  ALQ_ASSIGN(auto control, core_->control->shrink(deadline));
  core_->shrunk = true;
  std::string name = control->name();
  return create(core_->runtime->context, core_->runtime->device, control,
                std::move(name), deadline);
}

Status NcclGroup::close(Deadline deadline) {
  ALQ_TRY(enter());
  ALQ_TRY(core_->drain(deadline));
  ALQ_TRY(core_->control->close(deadline));
  Runtime& runtime = *core_->runtime;
  ALQ_ASSIGN(auto lock, runtime.lock(deadline, core_->stop_when_failed()));
  if (core_->failed()) return core_->cause();
  CudaBound bound(runtime.port);
  ALQ_TRY(bound.status());
  core_->closed.store(true);
  CommHandle comm = core_->take_comm();
  if (comm == nullptr) return core_->cause();
  // All ranks are here, so the control group's state no longer matters.
  Status ended = runtime.finish(comm, deadline, nullptr);
  if (ended.code() != ALQ_DEADLINE_EXCEEDED || !core_->captured.load()) {
    return ended;
  }
  return make_error(ended.code(),
                    "group \"{}\" does not end while a CUDA graph that "
                    "captured its operations is there, on any rank; destroy "
                    "such graphs first ({})",
                    core_->name, ended.message())
      .with_native(ended.domain(), ended.native_code());
}

}  // namespace aliquot::nccl
