#include "comm/bootstrap/store_client.h"

#include <time.h>

#include <algorithm>
#include <random>

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/missing.h"

namespace aliquot {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kFirstBackoff = 5 * kMs, kLastBackoff = 250 * kMs;
// One attempt at one port; doubles from sweep to sweep.
constexpr int64_t kFirstAttempt = 500 * kMs, kLastAttempt = 5000 * kMs;

Deadline sooner(Deadline deadline, int64_t ns) {
  return Deadline::after(std::min(deadline.left(), ns));
}

// Rank 0 knows who is missing, so its deadline should be the one that fires:
// others wait a tenth longer, 0.1 to 2 s.
Deadline with_grace(Deadline deadline) {
  int64_t left = deadline.left();
  return Deadline::after(left + std::clamp(left / 10, 100 * kMs, 2000 * kMs));
}

// How one attempt to join ended.
struct Attempt {
  Fd fd;
  Status status;
  bool final = false;    // no use in trying again
  bool foreign = false;  // maybe another job's store; final on a single port
};

Attempt failed(Status status) {
  Attempt a;
  a.status = std::move(status);
  return a;
}

Attempt wrong_secret(const std::string& server) {
  Attempt a;
  a.foreign = true;
  a.status = make_error(ALQ_UNAUTHENTICATED,
                        "the store at {} has another secret than this rank: "
                        "give all ranks of the job the same ALIQUOT_SECRET",
                        server);
  return a;
}

// Reads and judges the verdict on `hello`.
Attempt read_verdict(Attempt a, const Place& place, const Hello& hello,
                     const Challenge& challenge, Deadline deadline,
                     const std::string& server) {
  Result<std::string> bytes =
      receive_exactly(a.fd.get(), sizeof(Verdict), deadline);
  if (!bytes.ok()) return failed(bytes.status());
  Verdict verdict = from_raw<Verdict>(*bytes);
  if (verdict.text_bytes > kMaxText) return wrong_secret(server);
  Result<std::string> text =
      receive_exactly(a.fd.get(), verdict.text_bytes, deadline);
  if (!text.ok()) return failed(text.status());
  Mac expected =
      server_proof(place.secret, hello, challenge, verdict.code, *text);
  if (!equal_macs(verdict.mac, expected)) return wrong_secret(server);
  if (verdict.code != ALQ_OK) {
    a.final = true;
    if (text->empty()) *text = "rank 0 refused this rank and gave no reason";
    a.status = Status(verdict.code, *text).with_rank(place.rank);
  }
  return a;
}

// Once the proof is sent, rank 0 may count this rank as joined at any moment
// and would take a closed connection for its death, so from there on the wait
// is until the join's own deadline.
Attempt try_join(const Place& place, const SocketAddress& address,
                 Deadline deadline, Deadline join_deadline) {
  std::string server = address.text();
  Result<Fd> fd = connect_to(address, deadline);
  if (!fd.ok()) return failed(fd.status());
  Attempt a;
  a.fd = std::move(*fd);
  Hello hello;
  hello.rank = place.rank;
  hello.size = place.size;
  hello.nonce = handshake_nonce();
  a.status = send_all(a.fd.get(), raw(hello), deadline);
  if (!a.status.ok()) return a;
  Result<std::string> bytes =
      receive_exactly(a.fd.get(), sizeof(Challenge), deadline);
  if (!bytes.ok()) return failed(bytes.status());
  Challenge challenge = from_raw<Challenge>(*bytes);
  if (challenge.magic != kStoreMagic) {
    a.status =
        make_error(ALQ_UNAVAILABLE, "{} is not an Aliquot store", server);
    return a;
  }
  if (challenge.version != kStoreVersion) {
    a.foreign = true;
    a.status = make_error(ALQ_FAILED_PRECONDITION,
                          "the store at {} speaks protocol {}, this library "
                          "{}: use one version of Aliquot on all ranks",
                          server, challenge.version, kStoreVersion);
    return a;
  }
  Mac proof = client_proof(place.secret, hello, challenge);
  a.status = send_all(a.fd.get(), raw(proof), deadline);
  if (!a.status.ok()) return a;
  return read_verdict(std::move(a), place, hello, challenge, join_deadline,
                      server);
}

void sleep_jittered(int64_t ns, Deadline deadline, std::minstd_rand* random) {
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  int64_t wait =
      static_cast<int64_t>(static_cast<double>(ns) * jitter(*random));
  wait = std::min(wait, deadline.left());
  timespec t = {wait / 1'000'000'000, wait % 1'000'000'000};
  nanosleep(&t, nullptr);
}

// One pass over all addresses and ports: the first final or successful attempt,
// else the last that tells most.
Attempt sweep(const Place& place, const StoreAddress& address,
              int64_t attempt_ns, Deadline deadline, std::string* server) {
  Result<std::vector<SocketAddress>> all = resolve(address.host);
  if (!all.ok()) return failed(all.status());
  Attempt best;
  for (SocketAddress& candidate : *all) {
    for (int port = address.first; port <= address.last; ++port) {
      candidate.set_port(static_cast<uint16_t>(port));
      Attempt a = try_join(place, candidate, sooner(deadline, attempt_ns),
                           with_grace(deadline));
      *server = candidate.text();
      if (a.status.ok()) return a;
      // In a range, the one that refuses may be another job's.
      a.final |= a.foreign && !address.ranged();
      a.fd.reset();
      if (a.final) return a;
      if (!best.foreign) best = std::move(a);
      if (deadline.passed()) return best;
    }
  }
  return best;
}

Result<std::pair<Fd, std::string>> connect_until(const Place& place,
                                                 Deadline deadline) {
  ALQ_ASSIGN(StoreAddress address, parse_store_address(place.address));
  std::minstd_rand random(
      static_cast<uint32_t>(now_ns() ^ (int64_t{place.rank} << 20)));
  int64_t start = now_ns(), backoff = kFirstBackoff, attempt = kFirstAttempt;
  int64_t tries = 0;
  while (true) {
    std::string server;
    Attempt a = sweep(place, address, attempt, deadline, &server);
    ++tries;
    if (a.status.ok()) return std::pair(std::move(a.fd), server);
    if (a.final) return a.status;
    if (deadline.passed()) {
      return make_error(
                 a.foreign ? a.status.code() : ALQ_DEADLINE_EXCEEDED,
                 "rank {} could not join at {} within {} ({} tries; last: {}); "
                 "is "
                 "rank 0 running, and not already complete without this rank?",
                 place.rank, place.address, seconds_text(now_ns() - start),
                 tries, a.status.message())
          .with_rank(0);
    }
    sleep_jittered(backoff, deadline, &random);
    backoff = std::min(backoff * 3 / 2, kLastBackoff);
    attempt = std::min(attempt * 2, kLastAttempt);
  }
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::join(const Place& place,
                                                       Deadline deadline) {
  ALQ_ASSIGN(auto joined, connect_until(place, deadline));
  std::unique_ptr<StoreClient> client(new StoreClient(
      place, std::move(joined.first), std::move(joined.second)));
  Result<std::string> table = client->await_table("join", deadline);
  if (!table.ok()) return table.status();
  return client;
}

Result<std::vector<Bytes>> StoreClient::all_gather(const std::string& key,
                                                   Bytes mine,
                                                   Deadline deadline) {
  if (!failed_.ok()) return failed_;
  if (key.empty() || key.size() > kMaxKey || mine.size() > kMaxValue ||
      !used_keys_.insert(key).second) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "exchange \"{}\" of {} bytes: a key has 1 to {} bytes "
                      "and is used once, a value at most {}",
                      key.substr(0, 64), mine.size(), kMaxKey, kMaxValue);
  }
  int64_t start = now_ns();
  Status sent = send_all(fd_.get(), encode_frame(FrameKind::kGather, key, mine),
                         deadline);
  // A store that failed has left its reason to be read.
  if (!sent.ok() && sent.code() != ALQ_UNAVAILABLE) {
    return fail(broken(sent, key, start));
  }
  Result<std::string> body = await_table(key, deadline);
  if (!body.ok()) return body.status();
  Result<std::vector<Bytes>> values = decode_table(*body, place_.size);
  if (!values.ok()) return fail(values.status());
  return values;
}

Result<std::string> StoreClient::await_table(const std::string& phase,
                                             Deadline deadline) {
  int64_t start = now_ns();
  Deadline late = with_grace(deadline);
  Result<std::string> bytes =
      receive_exactly(fd_.get(), sizeof(FrameHeader), late);
  if (!bytes.ok()) return fail(broken(bytes.status(), phase, start));
  FrameHeader header = from_raw<FrameHeader>(*bytes);
  bool table = header.kind == FrameKind::kTable;
  uint64_t most = table ? static_cast<uint64_t>(place_.size) * (kMaxValue + 8)
                        : 8 + kMaxText;
  if ((!table && header.kind != FrameKind::kFailure) || header.key_bytes != 0 ||
      header.body_bytes > most) {
    return fail(make_error(ALQ_DATA_LOSS,
                           "the store at {} sent a frame of kind {} with {} "
                           "bytes in \"{}\"",
                           server_, static_cast<uint32_t>(header.kind),
                           header.body_bytes, phase));
  }
  Result<std::string> body =
      receive_exactly(fd_.get(), header.body_bytes, late);
  if (!body.ok()) return fail(broken(body.status(), phase, start));
  if (table) return body;
  Status failure = decode_failure(*body);
  bool ours = failure.rank() < place_.size;
  return fail(ours ? std::move(failure) : std::move(failure).with_rank(-1));
}

Status StoreClient::broken(const Status& cause, const std::string& phase,
                           int64_t since) {
  bool late = cause.code() == ALQ_DEADLINE_EXCEEDED;
  return make_error(late ? ALQ_DEADLINE_EXCEEDED : ALQ_PEER_FAILED,
                    "rank {} in \"{}\": {} rank 0's store at {} after {}; rank "
                    "0 {}",
                    place_.rank, phase,
                    late ? "no answer from" : "lost the connection to", server_,
                    seconds_text(now_ns() - since),
                    late ? "may be stopped or slow" : "ended or gave up")
      .with_rank(0);
}

Status StoreClient::fail(Status status) {
  failed_ = std::move(status);
  fd_.reset();
  return failed_;
}

}  // namespace aliquot
