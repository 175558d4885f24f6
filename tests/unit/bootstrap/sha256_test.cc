// Published vectors: FIPS 180-2 appendix B, RFC 4231 section 4.
#include "comm/bootstrap/sha256.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <string>

#include "comm/bootstrap/auth.h"

namespace aliquot {
namespace {

std::string hex(const Digest& digest) {
  std::string out;
  for (uint8_t byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

BOOST_AUTO_TEST_CASE(sha256_gives_the_published_digests) {
  BOOST_TEST(
      hex(sha256("")) ==
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  BOOST_TEST(
      hex(sha256("abc")) ==
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  BOOST_TEST(
      hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopno"
                 "pq")) ==
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  BOOST_TEST(
      hex(sha256(std::string(1'000'000, 'a'))) ==
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

BOOST_AUTO_TEST_CASE(a_digest_does_not_depend_on_how_bytes_arrive) {
  std::string text(300, 'x');
  for (size_t cut : {1u, 55u, 56u, 63u, 64u, 65u, 128u, 299u}) {
    Sha256 hash;
    hash.update(text.substr(0, cut));
    hash.update(text.substr(cut));
    BOOST_TEST(hex(hash.finish()) == hex(sha256(text)), cut);
  }
}

BOOST_AUTO_TEST_CASE(hmac_gives_the_published_codes) {
  BOOST_TEST(
      hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
      "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  BOOST_TEST(
      hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  BOOST_TEST(
      hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
      "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  BOOST_TEST(
      hex(hmac_sha256(std::string(131, '\xaa'),
                      "Test Using Larger Than Block-Size Key - Hash Key "
                      "First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

BOOST_AUTO_TEST_CASE(proofs_bind_every_field_and_both_roles) {
  Hello hello;
  hello.rank = 3, hello.size = 8, hello.nonce = handshake_nonce();
  Challenge challenge;
  challenge.nonce = handshake_nonce();
  Mac mac = client_proof("secret", hello, challenge);
  BOOST_TEST(equal_macs(mac, client_proof("secret", hello, challenge)));
  BOOST_TEST(!equal_macs(mac, client_proof("secret2", hello, challenge)));
  BOOST_TEST(!equal_macs(mac, server_proof("secret", hello, challenge, 0, "")));
  Hello other = hello;
  other.rank = 4;
  BOOST_TEST(!equal_macs(mac, client_proof("secret", other, challenge)));
  other = hello, other.size = 9;
  BOOST_TEST(!equal_macs(mac, client_proof("secret", other, challenge)));
  Challenge again;
  again.nonce = handshake_nonce();
  BOOST_TEST(!equal_macs(mac, client_proof("secret", hello, again)));
}

}  // namespace
}  // namespace aliquot
