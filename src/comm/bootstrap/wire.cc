#include "comm/bootstrap/wire.h"

#include <algorithm>

#include "base/text.h"

namespace aliquot {

std::string encode_frame(FrameKind kind, std::string_view key,
                         std::string_view body) {
  FrameHeader header;
  header.kind = kind;
  header.key_bytes = static_cast<uint32_t>(key.size());
  header.body_bytes = body.size();
  std::string out;
  out.reserve(sizeof header + key.size() + body.size());
  out.append(raw(header)).append(key).append(body);
  return out;
}

std::string encode_table(const std::vector<std::string>& values) {
  std::string body;
  for (const std::string& value : values) {
    uint64_t bytes = value.size();
    body.append(raw(bytes)).append(value);
  }
  return encode_frame(FrameKind::kTable, "", body);
}

std::string encode_failure(const Status& status) {
  int32_t code = status.code(), rank = status.rank();
  std::string body;
  body.append(raw(code)).append(raw(rank));
  body.append(fitting(status.message(), kMaxText));
  return encode_frame(FrameKind::kFailure, "", body);
}

Result<std::vector<std::string>> decode_table(std::string_view body,
                                              int32_t size) {
  std::vector<std::string> values;
  for (int32_t r = 0; r < size; ++r) {
    if (body.size() < 8) break;
    uint64_t bytes = from_raw<uint64_t>(body);
    body.remove_prefix(8);
    if (bytes > body.size()) break;
    values.emplace_back(body.substr(0, bytes));
    body.remove_prefix(bytes);
  }
  if (values.size() != static_cast<size_t>(size) || !body.empty()) {
    return make_error(ALQ_DATA_LOSS,
                      "the store's table holds {} whole values of {}, {} bytes "
                      "left over",
                      values.size(), size, body.size());
  }
  return values;
}

Status decode_failure(std::string_view body) {
  if (body.size() < 8) {
    return make_error(ALQ_DATA_LOSS, "the store sent a failure of {} bytes",
                      body.size());
  }
  int32_t code = from_raw<int32_t>(body);
  int32_t rank = from_raw<int32_t>(body.substr(4));
  bool known = (code > ALQ_OK && code <= ALQ_UNAUTHENTICATED) ||
               (code >= ALQ_UNSUPPORTED && code <= ALQ_RANK_MISMATCH);
  if (!known) code = ALQ_UNKNOWN;
  if (rank < 0 || rank >= kMaxWorld) rank = -1;
  std::string text(body.substr(8, kMaxText));
  if (text.empty()) text = "a rank failed and gave no reason";
  return Status(code, std::move(text)).with_rank(rank);
}

}  // namespace aliquot
