// Meshes.
#include <algorithm>

#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;

alq_status alq_mesh_create(alq_context* ctx, const char* spec, alq_mesh** out,
                           alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "mesh"));
    *out = nullptr;
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (state->world == nullptr || state->closed) {
      return make_error(ALQ_FAILED_PRECONDITION, "the context is {}",
                        state->closed ? "closed" : "not connected");
    }
    std::shared_ptr<Group> world = state->living_world();
    ALQ_ASSIGN(std::vector<Axis> axes,
               parse_mesh(spec == nullptr ? "" : spec, world->size()));
    auto mesh = std::make_shared<MeshState>();
    mesh->ctx = pool<alq_context>().share(ctx);
    mesh->mesh = std::make_shared<Mesh>(std::move(world), std::move(axes));
    *out = pool<alq_mesh>().make(std::move(mesh));
    return {};
  });
}

int32_t alq_mesh_axis_size(const alq_mesh* mesh, const char* axis) {
  MeshState* state = pool<alq_mesh>().get(mesh);
  if (state == nullptr || axis == nullptr) return -1;
  return state->mesh->axis_size(axis);
}

int32_t alq_mesh_coordinate(const alq_mesh* mesh, const char* axis) {
  MeshState* state = pool<alq_mesh>().get(mesh);
  if (state == nullptr || axis == nullptr) return -1;
  return state->mesh->coordinate(axis, state->mesh->world()->rank());
}

alq_status alq_mesh_group(alq_mesh* mesh, const char* axes, alq_group** out,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "group"));
    *out = nullptr;
    ALQ_ASSIGN(MeshState * state, resolve(mesh));
    auto group = std::make_shared<GroupState>();
    group->ctx = state->ctx;
    ALQ_ASSIGN(group->group,
               state->mesh->group(axes == nullptr ? "" : axes, "",
                                  state->ctx->context->deadline(0)));
    *out = pool<alq_group>().make(std::move(group));
    return {};
  });
}

alq_status alq_mesh_ranks(const alq_mesh* mesh, const char* axes, int32_t rank,
                          int32_t* out, int32_t cap, int32_t* count,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(MeshState * state, resolve(mesh));
    int32_t world = state->mesh->world()->size();
    if (rank < 0 || rank >= world) {
      return make_error(ALQ_OUT_OF_RANGE, "no rank {} in a world of {}", rank,
                        world);
    }
    ALQ_ASSIGN(std::vector<int32_t> ranks,
               state->mesh->ranks(axes == nullptr ? "" : axes, rank));
    if (count != nullptr) *count = static_cast<int32_t>(ranks.size());
    if (out == nullptr && cap == 0) return {};
    if (out == nullptr || cap < static_cast<int32_t>(ranks.size())) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "there are {} ranks, the array has room for {}",
                        ranks.size(), out == nullptr ? 0 : cap);
    }
    std::copy(ranks.begin(), ranks.end(), out);
    return {};
  });
}

void alq_mesh_release(alq_mesh* mesh) { release_handle(mesh); }
