#include "comm/bootstrap/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace aliquot {
namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 |
         uint32_t{p[3]};
}

void store_big(uint32_t x, uint8_t* p) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(x >> (24 - 8 * i));
}

std::string_view view(const uint8_t* bytes, size_t n) {
  return {reinterpret_cast<const char*>(bytes), n};
}

}  // namespace

void Sha256::block(const uint8_t* bytes) {
  using std::rotr;
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_big(bytes + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ (a >> 3)) +
           (rotr(b, 17) ^ rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +
                  ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) +
                  ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::update(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t at = bytes_ % 64;
    size_t n = std::min(bytes.size(), 64 - at);
    std::memcpy(pending_.data() + at, bytes.data(), n);
    bytes_ += n;
    bytes.remove_prefix(n);
    if (at + n == 64) block(pending_.data());
  }
}

Digest Sha256::finish() {
  uint64_t bits = bytes_ * 8;
  const uint8_t one = 0x80, zero = 0;
  update(view(&one, 1));
  while (bytes_ % 64 != 56) update(view(&zero, 1));
  std::array<uint8_t, 8> length;
  store_big(static_cast<uint32_t>(bits >> 32), length.data());
  store_big(static_cast<uint32_t>(bits), length.data() + 4);
  update(view(length.data(), 8));
  Digest out;
  for (size_t i = 0; i < 8; ++i) store_big(state_[i], out.data() + 4 * i);
  return out;
}

Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  std::array<uint8_t, 64> padded = {};
  if (key.size() > 64) {
    Digest short_key = sha256(key);
    std::copy(short_key.begin(), short_key.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  auto keyed = [&](uint8_t pad, std::string_view text) {
    std::array<uint8_t, 64> block;
    for (size_t i = 0; i < 64; ++i) {
      block[i] = static_cast<uint8_t>(padded[i] ^ pad);
    }
    Sha256 hash;
    hash.update(view(block.data(), 64));
    hash.update(text);
    return hash.finish();
  };
  Digest inner = keyed(0x36, message);
  return keyed(0x5c, view(inner.data(), inner.size()));
}

}  // namespace aliquot
