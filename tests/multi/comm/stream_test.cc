// Collectives enqueued on streams: order, help, events, work handles.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <thread>

#include "multi/comm/reference.h"
#include "support/ranks.h"

namespace aliquot::test {
namespace {

Coll all_reduce(float* data, int64_t count) {
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.src = coll.dst = data;
  coll.count = count;
  coll.dtype = ALQ_F32;
  return coll;
}

Deadline soon() { return Deadline::after(5'000'000'000); }

// Integers below 2^24: sums are exact whatever the order.
float value(int32_t rank, int op) {
  return static_cast<float>(rank * 100 + op);
}

float sum_of(int32_t size, int op) {
  float sum = 0;
  for (int32_t q = 0; q < size; ++q) sum += value(q, op);
  return sum;
}

// Ranks wait for different operations of different streams: each must help the
// ones it is not waiting for.
void crossed_waits(Rank& rank) {
  constexpr int kOps = 40;
  constexpr int64_t kCount = 3000;
  std::shared_ptr<Stream> streams[3];
  for (auto& stream : streams) stream = *rank.device->create_stream("s");
  std::vector<std::vector<float>> data(kOps);
  std::vector<std::shared_ptr<Work>> works(kOps);
  for (int i = 0; i < kOps; ++i) {
    auto& buffer = data[static_cast<size_t>(i)];
    buffer.assign(kCount, value(rank.rank, i));
    // Streams differ between ranks: order is that of issue.
    Stream* stream = streams[(i + rank.rank) % 3].get();
    rank.check_ok(rank.group->issue(all_reduce(buffer.data(), kCount), stream,
                                    &works[static_cast<size_t>(i)]),
                  "issue");
  }
  // Even ranks wait forwards, odd ones backwards.
  for (int i = 0; i < kOps; ++i) {
    auto at = static_cast<size_t>(rank.rank % 2 == 0 ? i : kOps - 1 - i);
    rank.check_ok(works[at]->wait(soon()), "wait");
    rank.check(works[at]->done(), "done after wait");
  }
  for (int i = 0; i < kOps; ++i) {
    const auto& buffer = data[static_cast<size_t>(i)];
    rank.check(buffer[0] == sum_of(rank.size, i) &&
                   buffer[kCount - 1] == sum_of(rank.size, i),
               fmt::format("operation {}", i));
  }
}

// An inline call first helps the queued ones: it must see their results.
void inline_after_queued(Rank& rank) {
  auto stream = *rank.device->create_stream("s");
  std::vector<float> data(5000, value(rank.rank, 1));
  rank.check_ok(
      rank.group->issue(all_reduce(data.data(), 5000), stream.get(), nullptr),
      "queued");
  rank.check_ok(
      rank.group->issue(all_reduce(data.data(), 5000), nullptr, nullptr),
      "inline");
  float want = sum_of(rank.size, 1) * static_cast<float>(rank.size);
  rank.check(data[4999] == want, "second sum is of the first's results");
}

// gather on one stream, kernel on another behind an event, gather again.
void through_events(Rank& rank) {
  auto comm = *rank.device->create_stream("comm");
  auto compute = *rank.device->create_stream("compute");
  auto event = *rank.device->create_event();
  std::vector<float> a(4000, value(rank.rank, 2)), b(4000);
  rank.check_ok(
      rank.group->issue(all_reduce(a.data(), 4000), comm.get(), nullptr), "1");
  rank.check_ok(rank.device->record(*event, comm.get()), "record");
  rank.check_ok(rank.device->wait(compute.get(), *event, soon()), "wait");
  kernels::CopyArgs copy{b.data(), a.data(), 16000};
  rank.check_ok(rank.device->launch(compute.get(), kernels::OpCode::kCopy,
                                    &copy, sizeof copy),
                "launch");
  rank.check_ok(rank.device->record(*event, compute.get()), "record");
  rank.check_ok(rank.device->wait(comm.get(), *event, soon()), "wait");
  rank.check_ok(
      rank.group->issue(all_reduce(b.data(), 4000), comm.get(), nullptr), "2");
  rank.check_ok(rank.device->synchronize(*comm, soon()), "sync");
  float first = sum_of(rank.size, 2);
  rank.check(a[3999] == first, "first");
  rank.check(b[3999] == first * static_cast<float>(rank.size), "second");
}

// Queued sends and receives with every peer at once, several deep.
void queued_pairs(Rank& rank) {
  auto out = *rank.device->create_stream("out");
  auto in = *rank.device->create_stream("in");
  constexpr int kDeep = 3;
  constexpr size_t kBytes = 10'000;
  std::vector<std::vector<char>> got;
  std::vector<std::vector<char>> sent;
  got.reserve(64);
  sent.reserve(64);
  for (int i = 0; i < kDeep; ++i) {
    for (int32_t q = 0; q < rank.size; ++q) {
      if (q == rank.rank) continue;
      Coll coll;
      coll.dtype = ALQ_U8;
      coll.count = kBytes;
      coll.root = q;
      sent.emplace_back(kBytes, static_cast<char>(rank.rank * 16 + q + i * 3));
      got.emplace_back(kBytes);
      coll.kind = CollKind::kSend;
      coll.src = sent.back().data();
      rank.check_ok(rank.group->issue(coll, out.get(), nullptr), "send");
      coll.kind = CollKind::kRecv;
      coll.src = nullptr;
      coll.dst = got.back().data();
      rank.check_ok(rank.group->issue(coll, in.get(), nullptr), "recv");
    }
  }
  rank.check_ok(rank.device->synchronize(*in, soon()), "sync in");
  rank.check_ok(rank.device->synchronize(*out, soon()), "sync out");
  size_t at = 0;
  for (int i = 0; i < kDeep; ++i) {
    for (int32_t q = 0; q < rank.size; ++q) {
      if (q == rank.rank) continue;
      char want = static_cast<char>(q * 16 + rank.rank + i * 3);
      rank.check(got[at][0] == want && got[at][kBytes - 1] == want, "message");
      ++at;
    }
  }
}

// A completed gather of a stable source leaves peers free to be late.
void stable_sources(Rank& rank) {
  std::vector<float> src(3000, value(rank.rank, 4));
  std::vector<float> dst(3000 * static_cast<size_t>(rank.size));
  for (int i = 0; i < 20; ++i) {
    Coll coll;
    coll.kind = CollKind::kAllGather;
    coll.src = src.data();
    coll.dst = dst.data();
    coll.count = 3000;
    coll.dtype = ALQ_F32;
    coll.source_stable = true;
    rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "gather");
    for (int32_t q = 0; q < rank.size; ++q) {
      rank.check(dst[static_cast<size_t>(q) * 3000 + 2999] == value(q, 4), "q");
    }
  }
  Coll barrier;
  rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
}

void two_groups(Rank& rank) {
  auto half = rank.group->split(rank.rank % 2, -rank.rank, "half", soon());
  rank.check_ok(half.status(), "split");
  if (!half.ok()) return;
  Group& group = **half;
  // Ordered by key: descending world rank.
  std::vector<int32_t> want;
  for (int32_t q = rank.size - 1; q >= 0; --q) {
    if (q % 2 == rank.rank % 2) want.push_back(q);
  }
  rank.check(
      std::vector<int32_t>(group.ranks().begin(), group.ranks().end()) == want,
      "ranks of the split");
  rank.check(group.ranks()[static_cast<size_t>(group.rank())] == rank.rank,
             "own rank");
  auto a = *rank.device->create_stream("a"),
       b = *rank.device->create_stream("b");
  std::vector<float> x(2000, 1), y(2000, 1);
  for (int i = 0; i < 10; ++i) {
    rank.check_ok(group.issue(all_reduce(x.data(), 2000), a.get(), nullptr),
                  "");
    rank.check_ok(
        rank.group->issue(all_reduce(y.data(), 2000), b.get(), nullptr), "");
  }
  rank.check_ok(rank.device->synchronize(*b, soon()), "b");
  rank.check_ok(rank.device->synchronize(*a, soon()), "a");
  float in_half = 1, in_all = 1;
  for (int i = 0; i < 10; ++i) {
    in_half *= static_cast<float>(group.size());
    in_all *= static_cast<float>(rank.size);
  }
  rank.check(x[1999] == in_half && y[1999] == in_all, "sums of two groups");
  rank.check_ok(group.close(soon()), "close");
  rank.check(group.issue(all_reduce(x.data(), 1), nullptr, nullptr).code() ==
                 ALQ_FAILED_PRECONDITION,
             "closed group refuses");
  auto none = rank.group->split(rank.rank == 0 ? -1 : 0, 0, "some", soon());
  rank.check_ok(none.status(), "split with absent ranks");
  rank.check((*none == nullptr) == (rank.rank == 0), "negative color");
}

void common(Rank& rank) {
  auto memory = rank.group->allocate_common(100'000, "common", soon());
  rank.check_ok(memory.status(), "allocate_common");
  if (!memory.ok()) return;
  auto* bytes = reinterpret_cast<unsigned char*>((*memory)->data());
  bytes[rank.rank * 1000] = static_cast<unsigned char>(rank.rank + 1);
  Coll barrier;
  rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
  for (int32_t q = 0; q < rank.size; ++q) {
    rank.check(bytes[q * 1000] == q + 1, "what a peer wrote");
  }
  rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
  // It is shared memory like any other in a collective.
  Coll gather;
  gather.kind = CollKind::kAllGather;
  gather.count = 8000;
  gather.src = bytes + rank.rank * 8000;
  std::vector<unsigned char> all(8000 * static_cast<size_t>(rank.size));
  gather.dst = all.data();
  std::memset(bytes + rank.rank * 8000, rank.rank + 50, 8000);
  rank.check_ok(rank.group->issue(gather, nullptr, nullptr), "gather");
  for (int32_t q = 0; q < rank.size; ++q) {
    rank.check(all[static_cast<size_t>(q) * 8000 + 7999] == q + 50, "gathered");
  }
  auto uneven = rank.group->allocate_common(rank.rank + 1, "uneven", soon());
  rank.check(uneven.status().code() == ALQ_RANK_MISMATCH, "sizes differ");
  rank.check(uneven.status().message().find("asked for") != std::string::npos,
             "names sizes");
}

void everything(Rank& rank) {
  crossed_waits(rank);
  inline_after_queued(rank);
  through_events(rank);
  queued_pairs(rank);
  stable_sources(rank);
  if (rank.size > 1) two_groups(rank);
  if (rank.size > 1) common(rank);
  rank.check_ok(rank.group->close(soon()), "close");
}

BOOST_AUTO_TEST_CASE(streams_events_groups) {
  for (RankKind kind : kinds()) {
    for (int32_t progress : {ALQ_PROGRESS_OFF, ALQ_PROGRESS_ON}) {
      for (int32_t size : {1, 2, 4}) {
        RanksOptions o = options(size, kind);
        o.progress = progress;
        auto result = run_ranks(o, everything);
        BOOST_TEST(result.ok(), size << " " << kind_name(kind) << " progress "
                                     << progress << ": " << result.text());
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::test
