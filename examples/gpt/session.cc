#include "session.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpt {

void Status::check(alq_status status) const {
  if (status == ALQ_OK) return;
  throw Error(fmt::format("{}: {}", alq_status_name(status), error_.message));
}

Session::Session(const Place& place, const std::string& mesh_spec) {
  Status status;
  auto desc = make_desc<alq_open_desc>();
  if (place.size > 0) {
    desc.bootstrap = ALQ_BOOTSTRAP_LOCAL;
    desc.rank = place.rank;
    desc.world_size = place.size;
    desc.world_name = place.world_name.c_str();
  }
  alq_context* context = nullptr;
  status.check(alq_open(ALQ_ABI_VERSION, &desc, &context, status));
  context_.reset(context);
  alq_group* world = nullptr;
  status.check(alq_group_world(context, &world, status));
  world_.reset(world);
  alq_mesh* mesh = nullptr;
  status.check(alq_mesh_create(context, mesh_spec.c_str(), &mesh, status));
  mesh_.reset(mesh);
  const int32_t data_ranks = alq_mesh_axis_size(mesh, "dp_replicate") *
                             alq_mesh_axis_size(mesh, "dp_shard");
  if (data_ranks != size()) {
    throw Error(fmt::format(
        "--mesh {}: dp_replicate and dp_shard cover {} of {} ranks; this "
        "program uses the data axes only",
        mesh_spec, data_ranks, size()));
  }
}

int32_t Session::data_rank() const {
  return alq_mesh_coordinate(mesh_.get(), "dp_replicate") *
             alq_mesh_axis_size(mesh_.get(), "dp_shard") +
         alq_mesh_coordinate(mesh_.get(), "dp_shard");
}

std::vector<double> Session::gather(const std::vector<double>& own) {
  // Each rank sends its number ahead, for the mesh may order ranks as it likes.
  std::vector<double> message = {static_cast<double>(data_rank())};
  message.insert(message.end(), own.begin(), own.end());
  std::vector<double> all(message.size() * static_cast<size_t>(size()));
  Status status;
  status.check(alq_group_all_gather(world_.get(), message.data(), all.data(),
                                    static_cast<int64_t>(message.size()),
                                    ALQ_F64, nullptr, nullptr, status));
  std::vector<double> sorted(own.size() * static_cast<size_t>(size()));
  for (size_t at = 0; at < all.size(); at += message.size()) {
    const size_t to = static_cast<size_t>(all[at]) * own.size();
    std::copy_n(all.data() + at + 1, own.size(), sorted.data() + to);
  }
  return sorted;
}

void Session::close() {
  Status status;
  mesh_.reset();
  world_.reset();
  status.check(alq_close(context_.get(), 0, status));
}

void Session::abort(const std::string& reason) {
  alq_abort(context_.get(), reason.c_str(), nullptr);
}

}  // namespace gpt
