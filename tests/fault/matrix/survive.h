// What ranks that outlive a fault check, and how they go on.
#pragma once

#include <string>
#include <vector>

#include "fault/matrix/scenes.h"

namespace aliquot::test {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kPromptMs = kThreadSanitizer ? 4000 : 1000;
constexpr int64_t kShortMs = 100;  // deadline of those who wait for nobody
constexpr int kCalls = 60;         // a fault is placed in the first few

inline Deadline in_ms(int64_t ms) { return Deadline::after(ms * kMs); }

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Expect {
  std::vector<int32_t> culprits;
  std::vector<alq_status> codes = {ALQ_PEER_FAILED};
  std::vector<std::string> words = {};
  int64_t limit_ms = kPromptMs;
};

// The first failing call, and how long it took.
struct Failure {
  Status status;
  int64_t ns = 0;
};

template <typename Call>
Failure until_failure(Call call) {
  Failure f;
  for (int i = 0; i < kCalls && f.status.ok(); ++i) {
    int64_t start = now_ns();
    f.status = call(i);
    f.ns = now_ns() - start;
  }
  return f;
}

void note_time(Rank& rank, int64_t ns);

// The culprit is named in time, and again by every later call.
void judge(Rank& rank, const Expect& e, Group* group, const Failure& f);

std::vector<int32_t> others_than(const Run& run,
                                 const std::vector<int32_t>& out);

// Shrinks until a generation works; the same operation is right in it, and none
// but `members` are.
std::shared_ptr<Group> go_on(Rank& rank, const std::vector<int32_t>& members,
                             Exercise* exercise);

void wait_for(Rank& rank, int counter, int64_t value);

}  // namespace aliquot::test
