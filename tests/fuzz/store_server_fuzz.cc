// The store's server among hostile connections.
//
// A script plays up to four connections: garbage, hellos, proofs with a right
// and a wrong secret, frames that are cut or claim too much, half-closed and
// reset ends.  Then, unless a connection that knew the secret took rank 1's
// place or broke the job, an honest rank 1 joins while the others stay open,
// and both ranks must end with both values.
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/store_client.h"
#include "comm/bootstrap/store_server.h"
#include "fuzz/fuzz.h"
#include "fuzz/peer.h"

namespace aliquot::fuzz {
namespace {

enum Step : uint8_t {
  kConnect,
  kRaw,
  kHello,
  kProof,
  kFrame,
  kHalfClose,
  kClose,
  kFlood,
  kReset,
  kPause,
  kSteps
};
enum HelloFlags { kBadMagic = 1, kBadVersion = 2, kOddRank = 4, kOddSize = 8 };
enum ProofFlags { kWrongSecret = 1, kCutProof = 2, kTwoParts = 4, kRun = 8 };
enum FrameFlags { kOddKind = 1, kOddKey = 2, kOddBody = 4, kLongBody = 8 };

struct Hostile {
  Raw raw;
  Hello hello;
  Challenge challenge;
  bool challenged = false, judged = false;
};

class Attack {
 public:
  Attack(std::string address, std::string_view input)
      : address_(std::move(address)),
        script_(reinterpret_cast<const uint8_t*>(input.data()), input.size()) {}
  void play() {
    for (int steps = 0; !script_.empty() && steps < 200; ++steps) {
      int step = script_.byte() % kSteps;
      Hostile& h = hostile_[script_.byte() % hostile_.size()];
      play(step, h);
    }
  }
  // Someone who knew the secret has decided how the job ends.
  bool decided() const { return decided_; }
  // Someone who knew the secret left without waiting for the verdict.
  bool perhaps() const { return perhaps_; }
  void leave() {
    for (Hostile& h : hostile_) h.raw.close();
  }

 private:
  void play(int step, Hostile& h) {
    switch (step) {
      case kConnect: h = Hostile(); return h.raw.connect(address_);
      case kRaw: return h.raw.say(script_.short_text());
      case kHello: return hello(h);
      case kProof: return proof(h);
      case kFrame: return frame(h);
      case kHalfClose: return h.raw.half_close();
      case kClose: return h.raw.close();
      case kFlood:
        return h.raw.say(std::string(256u * script_.byte(),
                                     static_cast<char>(script_.byte())));
      case kReset: return h.raw.reset();
      default: usleep(script_.byte() % 64);
    }
  }
  void hello(Hostile& h) {
    int flags = script_.byte();
    Hello hello;
    if (flags & kBadMagic) hello.magic[script_.byte() % 8] ^= 1;
    if (flags & kBadVersion) hello.version = script_.number<uint32_t>();
    hello.rank = flags & kOddRank ? script_.number<int32_t>() : 1;
    hello.size = flags & kOddSize ? script_.number<int32_t>() : 2;
    h.hello = hello;
    h.raw.say(raw(hello));
  }
  void proof(Hostile& h) {
    int flags = script_.byte();
    // Before a whole hello there is nothing to wait for.
    if (!h.raw.open() || h.raw.said() < sizeof(Hello)) return;
    if (!h.challenged) {
      std::string bytes = h.raw.hear(sizeof(Challenge));
      if (bytes.size() < sizeof(Challenge)) return h.raw.close();
      h.challenge = from_raw<Challenge>(bytes);
      h.challenged = true;
    }
    bool right = (flags & kWrongSecret) == 0;
    Mac mac = client_proof(right ? kSecret : "wrong", h.hello, h.challenge);
    size_t bytes = flags & kCutProof ? script_.byte() % 32 : sizeof mac;
    size_t first = flags & kTwoParts ? script_.byte() % 32 : 0;
    h.raw.say(raw(mac).substr(0, std::min(first, bytes)));
    h.raw.say(raw(mac).substr(0, bytes).substr(std::min(first, bytes)));
    if (flags & kRun) {
      perhaps_ |= right;
      return h.raw.close();
    }
    verdict(h, right);
  }
  void verdict(Hostile& h, bool right) {
    if (h.judged || h.raw.said() < sizeof(Hello) + sizeof(Mac)) return;
    std::string bytes = h.raw.hear(sizeof(Verdict));
    if (bytes.size() < sizeof(Verdict)) return;
    h.judged = true;
    Verdict v = from_raw<Verdict>(bytes);
    expect(right || v.code != ALQ_OK, "a wrong secret is refused");
    decided_ |= v.code == ALQ_OK || v.code == ALQ_RANK_MISMATCH;
  }
  void frame(Hostile& h) {
    int flags = script_.byte();
    std::string key(flags & kOddKey ? script_.short_text() : "k");
    std::string body(script_.short_text());
    if (flags & kLongBody) body.resize(4096u * script_.byte());
    FrameHeader header;
    if (flags & kOddKind) {
      header.kind = static_cast<FrameKind>(script_.number<uint32_t>());
    }
    header.key_bytes = flags & kOddKey ? script_.number<uint32_t>()
                                       : static_cast<uint32_t>(key.size());
    header.body_bytes =
        flags & kOddBody ? script_.number<uint64_t>() : body.size();
    h.raw.say(std::string(raw(header)) + key + body);
  }

  const std::string address_;
  Script script_;
  std::array<Hostile, 4> hostile_;
  bool decided_ = false, perhaps_ = false;
};

void honest(const std::string& address) {
  auto client = StoreClient::join(place_of(address, 1), Deadline::after(kLong));
  expect(client.ok(), "an honest rank joins: " + client.status().message());
  auto table = (*client)->all_gather("k", "one", Deadline::after(kLong));
  expect(table.ok(), "an honest rank is served: " + table.status().message());
  expect(*table == std::vector<Bytes>{"zero", "one"}, "its table is whole");
}

// Where nobody can say whether rank 0 counts on someone who left: whoever comes
// later is refused, served, or told.
void honest_perhaps(const std::string& address, const std::atomic<bool>& over) {
  while (!over.load()) {
    auto client =
        StoreClient::join(place_of(address, 1), Deadline::after(10'000'000));
    if (!client.ok()) continue;
    (void)(*client)->all_gather("k", "one", Deadline::after(kLong));
  }
}

// Rank 0's side; the value that it got for rank 1.
Result<Bytes> serve(StoreServer& server) {
  ALQ_TRY(server.join(Deadline::after(kLong)));
  ALQ_ASSIGN(std::vector<Bytes> table,
             server.all_gather("k", "zero", Deadline::after(kLong)));
  expect(table.size() == 2 && table[0] == "zero", "rank 0's own value");
  return std::move(table[1]);
}

void judge(const Result<Bytes>& got, bool decided) {
  const Status& s = got.status();
  expect(s.code() != ALQ_DEADLINE_EXCEEDED && s.code() != ALQ_INTERNAL,
         "nobody blocks rank 0: " + s.message());
  expect(s.rank() >= -1 && s.rank() < 2, "an error names a rank of this world");
  if (!decided) expect(got.ok(), "rank 0 is served: " + s.message());
  if (!decided) expect(got.value() == "one", "rank 1's value arrives");
}

std::string connected(int flags) {
  return Writer()
      .byte(kConnect)
      .byte(0)
      .byte(kHello)
      .byte(0)
      .byte(0)
      .byte(kProof)
      .byte(0)
      .byte(flags);
}

}  // namespace

Target target() {
  std::string member = connected(0), stranger = connected(kWrongSecret);
  auto frame = [](int flags) {
    return Writer().byte(kFrame).byte(0).byte(flags);
  };
  std::vector<std::string> seeds = {
      "",
      member,
      stranger,
      connected(kCutProof),
      connected(kTwoParts),
      connected(kRun),
      member + std::string(frame(0).short_text("one")),
      member + std::string(frame(kLongBody).short_text("").byte(255)),
      member + std::string(frame(kOddBody).short_text("x").number(~0ull)),
      member + std::string(frame(kOddBody).short_text("x").number(1ull << 20)),
      member + std::string(
                   frame(kOddKey).short_text("kk").short_text("x").number(~0u)),
      member + std::string(frame(kOddKind).short_text("x").number(2u)),
      stranger + stranger + stranger + member,
      Writer()
          .byte(kConnect)
          .byte(1)
          .byte(kFlood)
          .byte(1)
          .byte(200)
          .byte(0xff)
          .byte(kConnect)
          .byte(2)
          .byte(kHello)
          .byte(2)
          .byte(0)
          .byte(kConnect)
          .byte(3)
          .byte(kHalfClose)
          .byte(3),
      Writer().byte(kConnect).byte(1).byte(kRaw).byte(1).short_text("ALQST"),
      Writer()
          .byte(kConnect)
          .byte(1)
          .byte(kHello)
          .byte(1)
          .byte(kOddSize)
          .number(3)
          .byte(kProof)
          .byte(1)
          .byte(0)};
  return {"fuzz_store_server", 16 << 20, seeds};
}

}  // namespace aliquot::fuzz

int one_input(const uint8_t* data, size_t size) {
  using namespace aliquot;
  using namespace aliquot::fuzz;
  static Actor* actor = new Actor;
  std::string address = fresh_address();
  auto opened = StoreServer::listen(place_of(address, 0));
  expect(opened.ok(), "the store opens: " + opened.status().message());
  std::unique_ptr<StoreServer> server = std::move(*opened);
  Attack attack(address, {reinterpret_cast<const char*>(data), size});
  std::atomic<bool> over{false};
  actor->begin([&] {
    attack.play();
    if (!attack.decided() && !attack.perhaps()) honest(address);
    if (!attack.decided() && attack.perhaps()) honest_perhaps(address, over);
    attack.leave();
  });
  Result<Bytes> got = serve(*server);
  over.store(true);
  server.reset();  // whoever still waits for an answer hears the end
  actor->wait();
  judge(got, attack.decided() || attack.perhaps());
  return 0;
}
