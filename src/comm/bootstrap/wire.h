// Bytes on the store's connections.  Little-endian, fixed sizes before a peer
// has proved the secret, capped sizes after.
//
//   rank  -> store  Hello      who I am, my nonce
//   store -> rank   Challenge  its nonce
//   rank  -> store  Proof      MAC over Hello and Challenge
//   store -> rank   Verdict    code, text, MAC over all of it
//   rank  -> store  Frame kGather   key, value      } per exchange; the join
//   store -> rank   Frame kTable    all values      } is a kTable alone
//   store -> rank   Frame kFailure  code, rank, text
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aliquot {

static_assert(std::endian::native == std::endian::little);

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;
using Magic = std::array<char, 8>;

inline constexpr Magic kStoreMagic = {'A', 'L', 'Q', 'S', 'T', 'O', 'R', 'E'};
inline constexpr uint32_t kStoreVersion = 1;
inline constexpr size_t kMaxKey = 256;
inline constexpr size_t kMaxValue = size_t{1} << 20;
inline constexpr size_t kMaxText = 900;
inline constexpr int32_t kMaxWorld = 1 << 20;

struct Hello {
  Magic magic = kStoreMagic;
  uint32_t version = kStoreVersion;
  int32_t rank = 0, size = 0;
  uint32_t reserved = 0;
  Nonce nonce = {};
};
struct Challenge {
  Magic magic = kStoreMagic;
  uint32_t version = kStoreVersion;
  uint32_t reserved = 0;
  Nonce nonce = {};
};
struct Verdict {
  int32_t code = 0;
  uint32_t text_bytes = 0;
  Mac mac = {};
};
static_assert(sizeof(Hello) == 56 && sizeof(Challenge) == 48 &&
              sizeof(Verdict) == 40);

enum class FrameKind : uint32_t { kGather = 1, kTable = 2, kFailure = 3 };

struct FrameHeader {
  FrameKind kind = FrameKind::kGather;
  uint32_t key_bytes = 0;
  uint64_t body_bytes = 0;
};
static_assert(sizeof(FrameHeader) == 16);

// The bytes of a wire struct.
template <typename T>
std::string_view raw(const T& pod) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&pod), sizeof(T)};
}
// The struct at the front of bytes; bytes.size() >= sizeof(T).
template <typename T>
T from_raw(std::string_view bytes) {
  T out;
  bytes.copy(reinterpret_cast<char*>(&out), sizeof(T));
  return out;
}

std::string encode_frame(FrameKind kind, std::string_view key,
                         std::string_view body);
std::string encode_table(const std::vector<std::string>& values);
std::string encode_failure(const Status& status);

// Body of a kTable frame of `size` values; UNKNOWN if malformed.
Result<std::vector<std::string>> decode_table(std::string_view body,
                                              int32_t size);
// Body of a kFailure frame: the status another rank reported.  Codes that this
// library does not have become UNKNOWN, ranks that can not exist -1.
Status decode_failure(std::string_view body);

}  // namespace aliquot
