// Challenge and response: both sides prove that they hold the job's secret
// without sending it.  The client proves first, so that a stranger who connects
// to the store learns nothing.  The proofs cover both nonces, the rank, the
// world size and the protocol version; what follows on the connection is not
// encrypted or signed.
#pragma once

#include <string_view>

#include "base/status.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {

// From the kernel's generator.
Nonce handshake_nonce();

Mac client_proof(std::string_view secret, const Hello& hello,
                 const Challenge& challenge);
Mac server_proof(std::string_view secret, const Hello& hello,
                 const Challenge& challenge, int32_t code,
                 std::string_view text);

// Takes the same time wherever the first difference is.
bool equal_macs(const Mac& a, const Mac& b);

// 1 to 256 bytes.
Status check_secret(std::string_view secret);

}  // namespace aliquot
