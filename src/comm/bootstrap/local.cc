// Local bootstrap: threads of one process meet by the world's name.  The name
// is free again as soon as all ranks have joined, or all have left.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/missing.h"

namespace aliquot {
namespace {

enum class Seat { kEmpty, kJoined, kLeft };

struct Exchange {
  std::vector<Bytes> values;
  std::vector<bool> has_value;
  int32_t arrived = 0, taken = 0;
};

struct World {
  World(std::string given_name, int32_t given_size)
      : name(std::move(given_name)),
        size(given_size),
        seats(static_cast<size_t>(given_size), Seat::kEmpty) {}

  const std::string name;
  const int32_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Seat> seats;
  int32_t joined = 0, left = 0;
  std::map<std::string, Exchange> exchanges;
  Status failed;
};

// Worlds that still wait for ranks.  Leaked: nothing happens at exit.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> open;
};
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

void close_name(const std::shared_ptr<World>& world) {
  std::lock_guard lock(registry().mutex);
  auto it = registry().open.find(world->name);
  if (it != registry().open.end() && it->second == world) {
    registry().open.erase(it);
  }
}

std::vector<std::pair<int32_t, std::string>> missing_ranks(
    const World& world, const Exchange& exchange) {
  std::vector<std::pair<int32_t, std::string>> out;
  for (int32_t r = 0; r < world.size; ++r) {
    size_t i = static_cast<size_t>(r);
    if (exchange.has_value[i]) continue;
    out.emplace_back(r, world.seats[i] == Seat::kEmpty  ? "never joined"
                        : world.seats[i] == Seat::kLeft ? "left"
                                                        : "joined");
  }
  return out;
}

class LocalBootstrap final : public Bootstrap {
 public:
  LocalBootstrap(std::shared_ptr<World> world, int32_t rank)
      : world_(std::move(world)), rank_(rank) {}
  ~LocalBootstrap() override;
  Result<std::vector<Bytes>> all_gather(const std::string& key, Bytes mine,
                                        Deadline deadline) override;

 private:
  Status wait_for_all(const std::string& key, const Exchange& exchange,
                      Deadline deadline, std::unique_lock<std::mutex>& lock);
  Status fail(Status status);

  const std::shared_ptr<World> world_;
  const int32_t rank_;
  std::set<std::string> used_keys_;
};

LocalBootstrap::~LocalBootstrap() {
  bool last = false;
  {
    std::lock_guard lock(world_->mutex);
    world_->seats[static_cast<size_t>(rank_)] = Seat::kLeft;
    last = ++world_->left == world_->joined;
  }
  world_->changed.notify_all();
  if (last) close_name(world_);
}

Result<std::vector<Bytes>> LocalBootstrap::all_gather(const std::string& key,
                                                      Bytes mine,
                                                      Deadline deadline) {
  if (!used_keys_.insert(key).second) {
    return make_error(ALQ_INVALID_ARGUMENT, "exchange \"{}\" was used before",
                      key);
  }
  std::unique_lock lock(world_->mutex);
  if (!world_->failed.ok()) return world_->failed;
  Exchange& exchange = world_->exchanges[key];
  size_t size = static_cast<size_t>(world_->size);
  exchange.values.resize(size);
  exchange.has_value.resize(size);
  exchange.values[static_cast<size_t>(rank_)] = std::move(mine);
  exchange.has_value[static_cast<size_t>(rank_)] = true;
  if (++exchange.arrived == world_->size) world_->changed.notify_all();
  ALQ_TRY(wait_for_all(key, exchange, deadline, lock));
  std::vector<Bytes> out = exchange.values;
  if (++exchange.taken == world_->size) world_->exchanges.erase(key);
  return out;
}

Status LocalBootstrap::wait_for_all(const std::string& key,
                                    const Exchange& exchange, Deadline deadline,
                                    std::unique_lock<std::mutex>& lock) {
  std::chrono::steady_clock::time_point until{
      std::chrono::nanoseconds(deadline.at())};
  int64_t start = now_ns();
  while (exchange.arrived < world_->size) {
    if (!world_->failed.ok()) return world_->failed;
    auto missing = missing_ranks(*world_, exchange);
    for (auto& [rank, state] : missing) {
      if (world_->seats[static_cast<size_t>(rank)] != Seat::kLeft) continue;
      return fail(make_error(ALQ_PEER_FAILED,
                             "rank {} left world \"{}\" before exchange \"{}\"",
                             rank, world_->name, key)
                      .with_rank(rank));
    }
    if (deadline.passed()) {
      return fail(make_error(ALQ_DEADLINE_EXCEEDED,
                             "{} in world \"{}\": {} of {} ranks after {}; "
                             "missing {}",
                             key, world_->name, exchange.arrived, world_->size,
                             seconds_text(now_ns() - start),
                             missing_text(missing))
                      .with_rank(missing.front().first));
    }
    world_->changed.wait_until(lock, until);
  }
  return {};
}

// Caller holds the world's lock.
Status LocalBootstrap::fail(Status status) {
  world_->failed = std::move(status);
  world_->changed.notify_all();
  return world_->failed;
}

Status check(const std::string& name, int32_t rank, int32_t size) {
  if (!name.empty() && size >= 1 && size <= 4096 && rank >= 0 && rank < size) {
    return {};
  }
  return make_error(ALQ_INVALID_ARGUMENT,
                    "rank {} of {} in world \"{}\": a world of threads has a "
                    "name and 1 to 4096 ranks, counted from 0",
                    rank, size, name);
}

bool has_failed(World& world) {
  std::lock_guard lock(world.mutex);
  return !world.failed.ok();
}

// Takes the seat.  Caller holds the registry's lock.
Status sit(World& world, int32_t rank, int32_t size) {
  std::lock_guard lock(world.mutex);
  if (world.size != size) {
    return make_error(ALQ_RANK_MISMATCH,
                      "rank {} joins world \"{}\" with size {}, others joined "
                      "it with {}",
                      rank, world.name, size, world.size)
        .with_rank(rank);
  }
  Seat& seat = world.seats[static_cast<size_t>(rank)];
  if (seat != Seat::kEmpty) {
    return make_error(ALQ_ALREADY_EXISTS,
                      "rank {} has joined world \"{}\" already{}", rank,
                      world.name,
                      seat == Seat::kLeft ? " and left it; other ranks are "
                                            "still in it"
                                          : "")
        .with_rank(rank);
  }
  seat = Seat::kJoined;
  ++world.joined;
  return {};
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> local_bootstrap(const std::string& name,
                                                   int32_t rank, int32_t size) {
  ALQ_TRY(check(name, rank, size));
  std::lock_guard lock(registry().mutex);
  std::shared_ptr<World>& open = registry().open[name];
  // A failed world takes no more ranks: the name begins again.
  if (open == nullptr || has_failed(*open))
    open = std::make_shared<World>(name, size);
  std::shared_ptr<World> world = open;
  ALQ_TRY(sit(*world, rank, size));
  if (world->joined == world->size) registry().open.erase(name);
  return std::unique_ptr<Bootstrap>(new LocalBootstrap(std::move(world), rank));
}

}  // namespace aliquot
