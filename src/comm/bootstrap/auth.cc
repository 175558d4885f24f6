#include "comm/bootstrap/auth.h"

#include <sys/random.h>

#include <cerrno>

#include "comm/bootstrap/sha256.h"

namespace aliquot {

Nonce handshake_nonce() {
  Nonce out;
  size_t have = 0;
  // Requests up to 256 bytes fail only by interruption while the generator is
  // not yet seeded.
  while (have < out.size()) {
    ssize_t n = getrandom(out.data() + have, out.size() - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return out;
}

Mac client_proof(std::string_view secret, const Hello& hello,
                 const Challenge& challenge) {
  std::string text = "aliquot store client 1";
  text.append(raw(hello)).append(raw(challenge));
  return hmac_sha256(secret, text);
}

Mac server_proof(std::string_view secret, const Hello& hello,
                 const Challenge& challenge, int32_t code,
                 std::string_view text) {
  std::string message = "aliquot store server 1";
  message.append(raw(hello)).append(raw(challenge)).append(raw(code));
  message.append(text);
  return hmac_sha256(secret, message);
}

bool equal_macs(const Mac& a, const Mac& b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

Status check_secret(std::string_view secret) {
  if (!secret.empty() && secret.size() <= 256) return {};
  return make_error(ALQ_INVALID_ARGUMENT,
                    "the store's secret has {} bytes; it needs 1 to 256: give "
                    "every rank the same ALIQUOT_SECRET (or store_secret)",
                    secret.size());
}

}  // namespace aliquot
