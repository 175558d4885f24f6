// SHA-256 (FIPS 180-4) and HMAC (RFC 2104).  Used for a few hundred bytes per
// rank, so it is written for clarity: about 200 MB/s.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(std::string_view bytes);
  Digest finish();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                    0xa54ff53a, 0x510e527f, 0x9b05688c,
                                    0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  uint64_t bytes_ = 0;
};

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);

}  // namespace aliquot
