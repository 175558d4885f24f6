// The device of a context and the groups that fit it.
#include "api/opening.h"
#include "comm/nccl/group.h"

namespace aliquot::api {
namespace {

// On CUDA ranks communicate through NCCL; what they tell each other beside it
// goes through the control group.
Result<std::shared_ptr<Group>> make_group(const ContextState& state,
                                          std::shared_ptr<Group> control,
                                          Deadline deadline) {
  if (state.cuda == nullptr) return control;
  std::string name = control->name();
  return nccl::NcclGroup::create(state.context, state.device,
                                 std::move(control), std::move(name), deadline);
}

}  // namespace

Status check_device(const alq_open_desc& desc) {
  switch (desc.device_type) {
    case 0:
    case ALQ_DEVICE_CPU:
      if (desc.device_id == 0) return {};
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_open_desc: device_id {} must be 0 on CPU",
                        desc.device_id);
    case ALQ_DEVICE_CUDA:
      if (desc.device_id >= 0) return {};
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_open_desc: device_id {}: CUDA devices count from "
                        "0",
                        desc.device_id);
    default:
      return make_error(ALQ_INVALID_ARGUMENT,
                        "device type {} is none of CPU ({}) and CUDA ({})",
                        desc.device_type, ALQ_DEVICE_CPU, ALQ_DEVICE_CUDA);
  }
}

Status open_device(const alq_open_desc& desc, ContextState* state) {
  const bool cuda = desc.device_type == ALQ_DEVICE_CUDA;
  // Beside a GPU the host's queues carry control messages alone.
  const bool idle = cuda && desc.progress == ALQ_PROGRESS_ON;
  ALQ_ASSIGN(state->host, cpu_device(state->context,
                                     idle ? ALQ_PROGRESS_OFF : desc.progress));
  state->device = state->host;
  if (!cuda) return {};
  ALQ_ASSIGN(state->cuda, CudaDevice::open(state->context, desc.device_id));
  state->device = state->cuda;
  return {};
}

Status connect_world(ContextState* state, const std::vector<std::string>& blobs,
                     Deadline deadline) {
  ALQ_ASSIGN(std::shared_ptr<Group> control,
             state->join->connect(blobs, deadline));
  ALQ_ASSIGN(state->world, make_group(*state, std::move(control), deadline));
  state->join.reset();
  return {};
}

}  // namespace aliquot::api
