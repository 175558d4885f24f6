#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace gpt {

void Status::check(alq_status status) const {
  if (status == ALQ_OK) return;
  throw Error(fmt::format("{}: {}", alq_status_name(status), error_.message));
}

namespace {

// The GPU that a rank takes: the launcher counts the ranks of a host.
int32_t gpu_of(const Place& place, const Device& device) {
  if (device.id >= 0) return device.id;
  if (place.size > 0) return place.rank;
  for (const char* name : {"ALIQUOT_LOCAL_RANK", "LOCAL_RANK"}) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return 0;
}

}  // namespace

void Session::open(const Place& place, const Device& device) {
  Status status;
  auto desc = make_desc<alq_open_desc>();
  if (place.size > 0) {
    desc.bootstrap = ALQ_BOOTSTRAP_LOCAL;
    desc.rank = place.rank;
    desc.world_size = place.size;
    desc.world_name = place.world_name.c_str();
  }
  desc.device_type = device.type;
  if (device.type == ALQ_DEVICE_CUDA) desc.device_id = gpu_of(place, device);
  alq_context* context = nullptr;
  status.check(alq_open(ALQ_ABI_VERSION, &desc, &context, status));
  context_.reset(context);
  if (device.type != ALQ_DEVICE_CUDA) return;
  status.check(alq_stream_create(context, &stream_, status));
}

Session::Session(const Place& place, const Device& device,
                 const std::string& mesh_spec) {
  open(place, device);
  Status status;
  alq_group* world = nullptr;
  status.check(alq_group_world(context_.get(), &world, status));
  world_.reset(world);
  alq_mesh* mesh = nullptr;
  status.check(
      alq_mesh_create(context_.get(), mesh_spec.c_str(), &mesh, status));
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

void Session::wait() const {
  if (stream() == nullptr) return;
  Status status;
  status.check(alq_stream_sync(context_.get(), stream(), 0, status));
}

std::string Session::driver_path() const {
  Status status;
  size_t need = 0;
  status.check(alq_runtime_info(context_.get(), nullptr, 0, &need, status));
  std::string text(need, '\0');
  status.check(alq_runtime_info(context_.get(), text.data(), text.size(), &need,
                                status));
  const auto info = nlohmann::json::parse(text.c_str());
  for (const auto& library : info.at("libraries")) {
    if (library.value("name", "") == "cuda") return library.value("path", "");
  }
  return "libcuda.so.1";
}

void Session::close() {
  Status status;
  if (stream() != nullptr) alq_stream_release(context_.get(), &stream_);
  mesh_.reset();
  world_.reset();
  status.check(alq_close(context_.get(), 0, status));
}

void Session::abort(const std::string& reason) {
  alq_abort(context_.get(), reason.c_str(), nullptr);
}

}  // namespace gpt
