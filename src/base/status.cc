#include "base/status.h"

#include <cstring>

namespace aliquot {

Status errno_error(alq_status code, std::string what, int err) {
  char text[128] = {};
  // The GNU strerror_r may return static text instead of filling the buffer.
  const char* reason = strerror_r(err, text, sizeof text);
  return make_error(code, "{}: {} (errno {})", what, reason, err)
      .with_native(ALQ_DOMAIN_ERRNO, err);
}

}  // namespace aliquot
