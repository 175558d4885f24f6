// The store's client among hostile servers.
//
// A script says how far the server plays by the rules (it may know the secret)
// and what it says from there on: challenges of other programs, verdicts with
// forged proofs, tables that are cut or claim too much, failures of ranks that
// do not exist.  In one of 16 inputs the client may try again: then a store
// that is in order answers, and the client must get there if nobody who knew
// the secret, or spoke as a store of another job, has turned it away.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/store_client.h"
#include "comm/bootstrap/store_listen.h"
#include "fuzz/fuzz.h"
#include "fuzz/peer.h"

namespace aliquot::fuzz {
namespace {

enum Stage { kAtChallenge, kAtVerdict, kAtJoin, kAtExchange, kStages };
constexpr uint8_t kRetry = 16;  // of the first byte
enum Part : uint8_t { kRawPart, kFramePart, kTablePart, kFailurePart, kParts };

const std::vector<Bytes> kTable = {"zero", "one"};

std::string server_says(Script& script) {
  std::string out;
  while (!script.empty() && out.size() < 100'000) {
    switch (script.byte() % kParts) {
      case kRawPart: out += script.short_text(); break;
      case kFramePart: {
        FrameHeader header;
        header.kind = static_cast<FrameKind>(script.number<uint32_t>());
        header.key_bytes = script.number<uint32_t>();
        header.body_bytes = script.number<uint64_t>();
        out += raw(header);
        break;
      }
      case kTablePart: {
        std::string zero(script.short_text()), one(script.short_text());
        zero.resize(zero.size() * (1 + script.byte()));
        out += encode_table({zero, one});
        break;
      }
      default: {
        int32_t code = script.number<int32_t>(),
                rank = script.number<int32_t>();
        out += encode_frame(FrameKind::kFailure, "",
                            std::string(raw(code)) + std::string(raw(rank)) +
                                std::string(script.short_text()));
      }
    }
  }
  return out;
}

class HostileServer {
 public:
  HostileServer(int listener, std::string_view input)
      : listener_(listener),
        stop_(eventfd(0, EFD_CLOEXEC)),
        script_(reinterpret_cast<const uint8_t*>(input.data()), input.size()) {
    uint8_t first = script_.byte();
    stage_ = first % kStages;
    retry_ = first / kStages % kRetry == 1;
  }
  bool retry() const { return retry_; }
  // What it said was proved with the secret.
  bool proved() const { return proved_; }

  void play() {
    if (accept_one()) attack();
    raw_.close();
    while (accept_one()) {
      if (retry_) in_order();
      raw_.close();
    }
  }
  void stop() {
    uint64_t one = 1;
    expect(write(stop_.get(), &one, sizeof one) == sizeof one, "stops");
  }

 private:
  bool accept_one() {
    pollfd p[] = {{listener_, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    expect(poll(p, 2, 50'000) > 0, "the client comes or ends");
    if (p[1].revents != 0) return false;
    raw_.take(
        Fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
    return true;
  }
  void attack() {
    if (stage_ == kAtChallenge) {
      raw_.hear(sizeof(Hello));
      return raw_.say(script_.all());
    }
    if (!challenge()) return;
    if (stage_ == kAtVerdict) return false_verdict();
    verdict(ALQ_OK, "", 0);
    if (stage_ == kAtExchange)
      raw_.say(encode_frame(FrameKind::kTable, "", ""));
    if (stage_ == kAtExchange) hear_frame();
    raw_.say(server_says(script_));
  }
  bool challenge() {
    std::string bytes = raw_.hear(sizeof(Hello));
    if (bytes.size() < sizeof(Hello)) return false;
    hello_ = from_raw<Hello>(bytes);
    challenge_.nonce = handshake_nonce();
    raw_.say(raw(challenge_));
    return raw_.hear(sizeof(Mac)).size() == sizeof(Mac);
  }
  void verdict(int32_t code, std::string_view text, uint32_t more) {
    Verdict v;
    v.code = code;
    v.text_bytes = static_cast<uint32_t>(text.size()) + more;
    proved_ = true;
    v.mac = server_proof(kSecret, hello_, challenge_, code, text);
    raw_.say(raw(v));
    raw_.say(text);
  }
  void false_verdict() {
    if (script_.byte() % 2 == 0) return raw_.say(script_.all());
    auto code = script_.number<int32_t>();
    auto more = script_.byte() % 2 == 0 ? 0 : script_.number<uint32_t>();
    verdict(code, script_.short_text(), more);
    raw_.say(server_says(script_));
  }
  void hear_frame() {
    std::string bytes = raw_.hear(sizeof(FrameHeader));
    if (bytes.size() < sizeof(FrameHeader)) return;
    auto header = from_raw<FrameHeader>(bytes);
    raw_.hear(header.key_bytes + header.body_bytes);
  }
  void in_order() {
    bool before = proved_;
    if (!challenge()) return;
    verdict(ALQ_OK, "", 0);
    proved_ = before;
    raw_.say(encode_frame(FrameKind::kTable, "", ""));
    hear_frame();
    raw_.say(encode_table(kTable));
    raw_.hear(1);  // until the client has read it and leaves
  }

  const int listener_;
  Fd stop_;
  Script script_;
  int stage_ = 0;
  bool retry_ = false, proved_ = false;
  Raw raw_;
  Hello hello_;
  Challenge challenge_;
};

Result<std::vector<Bytes>> join(const std::string& address, bool retry) {
  Deadline deadline = Deadline::after(retry ? kLong : 1'000'000);
  ALQ_ASSIGN(auto client, StoreClient::join(place_of(address, 1), deadline));
  Deadline later = Deadline::after(kLong);
  auto table = client->all_gather("k", "one", later);
  if (!table.ok()) {
    auto again = client->all_gather("l", "one", later);
    expect(!again.ok() && again.status().message() == table.status().message(),
           "a failed store repeats its error");
  }
  return table;
}

void judge(const Result<std::vector<Bytes>>& table,
           const HostileServer& server) {
  const Status& s = table.status();
  expect(!table.ok() || table.value().size() == 2, "a value of every rank");
  expect(s.rank() >= -1 && s.rank() < 2, "an error names a rank of this world");
  expect(s.ok() || !s.message().empty(), "an error says something");
  if (server.proved()) return;
  expect(s.code() != ALQ_INTERNAL, "no error of our own: " + s.message());
  if (server.retry()) {
    expect(s.code() != ALQ_DEADLINE_EXCEEDED,
           "a store that is in order is found: " + s.message());
  }
}

}  // namespace

Target target() {
  Challenge good, other;
  other.version = 9;
  auto begin = [](Stage stage, bool retry = false) {
    return Writer().byte(stage + (retry ? kStages : 0));
  };
  auto table = [](std::string_view zero, std::string_view one, int more) {
    return std::string(
        Writer().byte(kTablePart).short_text(zero).short_text(one).byte(more));
  };
  auto frame = [](FrameKind kind, uint32_t key, uint64_t body) {
    return std::string(
        Writer().byte(kFramePart).number(kind).number(key).number(body));
  };
  auto failure = [](int32_t code, int32_t rank) {
    return std::string(Writer()
                           .byte(kFailurePart)
                           .number(code)
                           .number(rank)
                           .short_text("it failed"));
  };
  std::vector<std::string> seeds = {"", begin(kAtChallenge).text(raw(good)),
                                    begin(kAtChallenge).text(raw(other))};
  for (Stage stage : {kAtJoin, kAtExchange}) {
    seeds.push_back(begin(stage).text(table("zero", "one", 0)));
    seeds.push_back(begin(stage).text(table("zero", "one", 255)));
    seeds.push_back(begin(stage).text(frame(FrameKind::kTable, 0, 2 << 20)));
    seeds.push_back(begin(stage).text(frame(FrameKind::kTable, 0, 0)));
    seeds.push_back(begin(stage).text(frame(FrameKind::kTable, 9, ~0ull)));
    seeds.push_back(begin(stage).text(failure(ALQ_PEER_FAILED, 0)));
    seeds.push_back(begin(stage).text(failure(0, 1 << 30)));
    seeds.push_back(begin(stage, true).text(failure(12345, -7)));
  }
  for (bool retry : {false, true}) {
    seeds.push_back(
        begin(kAtChallenge, retry).text("HTTP/1.1 400 Bad\r\n\r\n"));
    seeds.push_back(begin(kAtVerdict, retry).byte(0).text(raw(Verdict())));
    seeds.push_back(begin(kAtVerdict, retry)
                        .byte(1)
                        .number(int32_t{ALQ_ALREADY_EXISTS})
                        .byte(1)
                        .number(~0u)
                        .short_text("twice"));
    seeds.push_back(begin(kAtVerdict, retry)
                        .byte(1)
                        .number(int32_t{ALQ_ALREADY_EXISTS})
                        .byte(0)
                        .short_text("twice"));
  }
  return {"fuzz_store_client", 8 << 20, seeds};
}

}  // namespace aliquot::fuzz

int one_input(const uint8_t* data, size_t size) {
  using namespace aliquot;
  using namespace aliquot::fuzz;
  static Actor* actor = new Actor;
  std::string address = fresh_address();
  auto parsed = parse_store_address(address);
  expect(parsed.ok(), "the fuzz target's address");
  auto listener = bind_first(*parsed);
  expect(listener.ok(), "the hostile server listens");
  HostileServer server(listener->fd.get(),
                       {reinterpret_cast<const char*>(data), size});
  actor->begin([&] { server.play(); });
  Result<std::vector<Bytes>> table = join(address, server.retry());
  server.stop();
  actor->wait();
  judge(table, server);
  return 0;
}
