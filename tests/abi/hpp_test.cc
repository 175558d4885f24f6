// The C++ face, used as a program would use it: ranks are threads of a LOCAL
// world, each with its own context and its own data.
#define BOOST_TEST_MODULE abi
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "aliquot/aliquot.hpp"

namespace {

static_assert(!std::is_copy_constructible_v<alq::context>);
static_assert(!std::is_copy_constructible_v<alq::group>);
static_assert(!std::is_copy_constructible_v<alq::stream>);
static_assert(!std::is_copy_constructible_v<alq::engine>);
static_assert(std::is_nothrow_move_constructible_v<alq::group>);
static_assert(std::is_nothrow_move_constructible_v<alq::stream>);
static_assert(std::is_nothrow_move_constructible_v<alq::work>);

alq::context open_local(const char* test, int32_t rank, int32_t size) {
  const std::string name = std::string(test) + std::to_string(getpid());
  auto d = alq::desc<alq_open_desc>();
  d.bootstrap = ALQ_BOOTSTRAP_LOCAL;
  d.rank = rank;
  d.world_size = size;
  d.world_name = name.c_str();
  d.timeout_ns = 20'000'000'000;
  return alq::context::open(d);
}

// Runs body(context) on every rank; rethrows the first failure.
template <typename Body>
void on_ranks(const char* test, int32_t size, Body body) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int32_t r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      try {
        alq::context ctx = open_local(test, r, size);
        body(ctx);
        ctx.close();
      } catch (...) {
        failures[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Boost's checks are not thread-safe: ranks throw instead.
void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

BOOST_AUTO_TEST_CASE(collectives_of_three_ranks) {
  on_ranks("collectives", 3, [](alq::context& ctx) {
    alq::group world = ctx.world();
    const int32_t me = world.rank();
    require(world.size() == 3 && me == ctx.rank(), "rank and size");
    require(world.ranks() == std::vector<int32_t>({0, 1, 2}), "ranks");

    std::vector<double> x = {1.0 + me, 10.0 * me};
    world.all_reduce(std::span(x));
    require(x == std::vector<double>({6, 30}), "all_reduce");

    const std::vector<int64_t> mine(2, me + 7);
    std::vector<int64_t> all(6);
    world.all_gather<int64_t>(mine, all);
    require(all == std::vector<int64_t>({7, 7, 8, 8, 9, 9}), "all_gather");

    std::vector<float> parts(3);
    std::iota(parts.begin(), parts.end(), static_cast<float>(me));
    std::vector<float> part(1);
    world.reduce_scatter<float>(parts, part, ALQ_MAX);
    require(part[0] == static_cast<float>(2 + me), "reduce_scatter");

    std::vector<uint8_t> word(4, static_cast<uint8_t>(me));
    world.broadcast(std::span(word), 2);
    require(word == std::vector<uint8_t>(4, 2), "broadcast");

    std::vector<int32_t> out = {10 * me, 10 * me + 1, 10 * me + 2}, in(3);
    world.all_to_all<int32_t>(out, in);
    require(in == std::vector<int32_t>({me, 10 + me, 20 + me}), "all_to_all");

    // Rank r sends r + 1 elements to each.
    std::vector<int64_t> send(3, me + 1), recv = {1, 2, 3};
    std::vector<int32_t> lent(static_cast<size_t>(3 * (me + 1)), me), from(6);
    world.all_to_all_v<int32_t>(lent, send, from, recv);
    require(from == std::vector<int32_t>({0, 1, 1, 2, 2, 2}), "all_to_all_v");

    std::vector<int32_t> own = {me, 2 * me}, whole(me == 1 ? 6 : 0);
    world.gather<int32_t>(own, whole, 1);
    require(me != 1 || whole == std::vector<int32_t>({0, 0, 1, 2, 2, 4}),
            "gather");
    std::vector<int32_t> back(2);
    world.scatter<int32_t>(whole, back, 1);
    require(back == own, "scatter");
    std::vector<int32_t> total(me == 2 ? 2 : 0);
    world.reduce<int32_t>(own, total, 2);
    require(me != 2 || total == std::vector<int32_t>({3, 6}), "reduce");
    world.barrier();
    require(world.stats().ops > 0, "stats");
  });
}

BOOST_AUTO_TEST_CASE(streams_events_and_works) {
  on_ranks("streams", 2, [](alq::context& ctx) {
    alq::group world = ctx.world();
    alq::stream queue = ctx.make_stream();
    alq::buffer memory = ctx.make_buffer(4096);
    std::span<float> x = memory.as<float>();
    require(x.size() == 1024 && x[5] == 0, "buffer is zeroed");
    std::fill(x.begin(), x.end(), static_cast<float>(ctx.rank() + 1));
    alq::work sum = world.all_reduce(x, ALQ_SUM, queue);
    alq::event after = ctx.make_event();
    after.record(queue);
    sum.wait();
    require(sum.done(), "work is done");
    after.sync();
    require(after.done(), "event is done");
    require(x[0] == 3 && x[1023] == 3, "sum");
    alq::stream moved = std::move(queue);
    moved.sync();
    require(!ctx.poll(), "nothing is left to do");
  });
}

BOOST_AUTO_TEST_CASE(splits_and_meshes) {
  on_ranks("splits", 4, [](alq::context& ctx) {
    alq::group world = ctx.world();
    auto half = world.split(ctx.rank() % 2, -ctx.rank(), "half");
    require(half.has_value() && half->size() == 2, "half");
    require(half->rank() == (ctx.rank() < 2 ? 1 : 0), "ordered by key");
    auto alone = world.split(ctx.rank() == 3 ? 0 : -1);
    require(alone.has_value() == (ctx.rank() == 3), "negative color");

    alq::mesh m = ctx.make_mesh("dp_replicate=2,dp_shard=2");
    require(m.axis_size("dp_shard") == 2 && m.axis_size("tp") == 1, "axes");
    require(m.coordinate("dp_replicate") == ctx.rank() / 2, "coordinate");
    require(m.ranks("dp_shard", 3) == std::vector<int32_t>({2, 3}), "ranks");
    alq::group shard = m.over("dp_shard");
    std::vector<int64_t> x = {int64_t{1} << ctx.rank()};
    shard.all_reduce(std::span(x));
    require(x[0] == (ctx.rank() < 2 ? 3 : 12), "sum over an axis");
  });
}

BOOST_AUTO_TEST_CASE(survivors_shrink_the_world) {
  on_ranks("shrink", 3, [](alq::context& ctx) {
    alq::group world = ctx.world();
    std::vector<float> x(ctx.rank() == 1 ? 8u : 9u, 1.0f);
    try {
      world.all_reduce(std::span(x));
      require(false, "different counts were accepted");
    } catch (const alq::error& e) {
      require(e.code() == ALQ_RANK_MISMATCH, e.what());
    }
    alq::group again = world.shrink(int64_t{20} * 1'000'000'000);
    require(again.size() == 3 && again.rank() == ctx.rank(), "all go on");
    std::vector<float> y(9, 1.0f);
    again.all_reduce(std::span(y));
    require(y[8] == 3, "sum");
    std::vector<float> z = {1};
    ctx.world().all_reduce(std::span(z));
    require(z[0] == 3, "the context's world is the new group");
    require(ctx.make_mesh().axis_size("dp_shard") == 3, "mesh");
  });
}

BOOST_AUTO_TEST_CASE(point_to_point) {
  on_ranks("point", 2, [](alq::context& ctx) {
    alq::group world = ctx.world();
    std::vector<int16_t> x = {1, 2, 3};
    if (ctx.rank() == 0) {
      world.send<int16_t>(x, 1);
    } else {
      std::vector<int16_t> y(3);
      world.recv(std::span(y), 0);
      require(x == y, "received");
    }
  });
}

BOOST_AUTO_TEST_CASE(errors_carry_code_and_words) {
  alq::context ctx = alq::context::open();
  try {
    ctx.make_buffer(-5);
    BOOST_FAIL("a negative size was accepted");
  } catch (const alq::error& e) {
    BOOST_TEST(e.code() == ALQ_INVALID_ARGUMENT);
    BOOST_TEST(std::string(e.name()) == "ALQ_INVALID_ARGUMENT");
    BOOST_TEST(std::string(e.what()).find("-5") != std::string::npos);
    BOOST_TEST(e.rank() >= -1);
  }
  ctx.close();
}

BOOST_AUTO_TEST_CASE(texts_have_their_whole_length) {
  alq::context ctx = alq::context::open();
  const std::string info = ctx.runtime_info();
  BOOST_TEST(info.front() == '{');
  BOOST_TEST(info.back() == '}');
  BOOST_TEST(info.find('\0') == std::string::npos);
  BOOST_TEST(alq::has("backend.mem"));
  BOOST_TEST(!alq::has("backend.nothing"));
  ctx.close();
}

BOOST_AUTO_TEST_CASE(handles_may_be_destroyed_in_any_order) {
  auto ctx = std::make_unique<alq::context>(open_local("order", 0, 1));
  alq::stream queue = ctx->make_stream();
  alq::group world = ctx->world();
  ctx->close();
  ctx.reset();
  BOOST_TEST(world.size() == 1);
}
