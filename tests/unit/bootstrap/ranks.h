// Runs one function per rank on threads and collects what each returned.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "comm/bootstrap/bootstrap.h"

namespace aliquot {

inline Deadline in_ms(int64_t ms) { return Deadline::after(ms * 1'000'000); }

inline std::vector<Status> run_ranks(
    int32_t size, const std::function<Status(int32_t)>& body) {
  std::vector<Status> out(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { out[static_cast<size_t>(r)] = body(r); });
  }
  for (std::thread& t : threads) t.join();
  return out;
}

// BOOST_TEST is for the main thread only: rank functions return this instead.
inline Status require(bool condition, const char* what) {
  return condition ? Status() : make_error(ALQ_INTERNAL, "not so: {}", what);
}

// Rank r's value in exchange `key`: different for every rank, some empty.
inline Bytes value_of(const std::string& key, int32_t rank) {
  if (rank % 4 == 3) return {};
  return key + std::string(static_cast<size_t>(rank) * 1000, '\0') +
         std::to_string(rank);
}

inline Status exchange(Bootstrap& b, const std::string& key, int32_t rank,
                       int32_t size, Deadline deadline) {
  ALQ_ASSIGN(std::vector<Bytes> all,
             b.all_gather(key, value_of(key, rank), deadline));
  for (int32_t r = 0; r < size; ++r) {
    if (all.at(static_cast<size_t>(r)) != value_of(key, r)) {
      return make_error(ALQ_DATA_LOSS, "rank {} has a wrong value of {}", rank,
                        r);
    }
  }
  return {};
}

}  // namespace aliquot
