// The hints of alq_open.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "api/opening.h"

namespace aliquot::api {
namespace {

constexpr double kMostStaged = 0x1p40;

struct Hint {
  std::string_view key, value;
};

std::optional<double> number(std::string_view text) {
  double value = 0;
  auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool read_bytes(std::string_view text, std::optional<int64_t>* out) {
  auto n = number(text);
  if (!n.has_value() || *n < 0 || *n > kMostStaged) return false;
  *out = static_cast<int64_t>(*n);
  return true;
}

std::optional<bool> flag(std::string_view text) {
  if (text != "0" && text != "1") return {};
  return text == "1";
}

// How CPU ranks reach each other's memory.  False: not one of these.
bool read_memory_hint(const Hint& hint, Context* context) {
  if (hint.key == "throttle_mb_per_s") {
    auto wire = number(hint.value);
    if (!wire.has_value() || *wire <= 0 || *wire > 1e9) return false;
    context->throttle_bytes_per_s = *wire * 1e6;
    return true;
  }
  if (hint.key == "huge_pages") {
    auto on = flag(hint.value);
    context->huge_pages = on.value_or(context->huge_pages);
    return on.has_value();
  }
  if (hint.key == "stage_sums") {
    return read_bytes(hint.value, &context->stage_sums);
  }
  if (hint.key == "stage_copies") {
    return read_bytes(hint.value, &context->stage_copies);
  }
  if (hint.key == "stage_streams") {
    auto on = flag(hint.value);
    if (on.has_value()) context->stage_streams = on;
    return on.has_value();
  }
  return false;
}

// Where libraries and kernels come from.
bool read_library_hint(const Hint& hint, Context* context) {
  if (hint.value.empty()) return false;
  for (const char* name : {"cuda", "nccl", "cublas"}) {
    if (hint.key != fmt::format("{}_library", name)) continue;
    context->library_paths[name] = hint.value;
    return true;
  }
  if (hint.key == "cuda_image") {
    context->cuda_image = hint.value;
    return true;
  }
  if (hint.key != "library_dirs") return false;
  for (std::string_view rest = hint.value; !rest.empty();) {
    std::string_view dir = rest.substr(0, rest.find(':'));
    if (!dir.empty()) context->library_dirs.emplace_back(dir);
    rest.remove_prefix(std::min(dir.size() + 1, rest.size()));
  }
  return true;
}

}  // namespace

Status read_hints(const char* hints, Context* context,
                  std::string* flight_dir) {
  std::string_view rest = hints == nullptr ? "" : hints;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    size_t equals = std::min(item.find('='), item.size());
    Hint hint = {item.substr(0, equals),
                 item.substr(std::min(equals + 1, item.size()))};
    if (hint.key == "flight_dir" && !hint.value.empty()) {
      *flight_dir = hint.value;
    } else if (!read_memory_hint(hint, context) &&
               !read_library_hint(hint, context)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "hint \"{}\": known are throttle_mb_per_s=N, N above "
                        "0, huge_pages=0 or 1, stage_sums=BYTES and "
                        "stage_copies=BYTES from 0 to 2^40, "
                        "stage_streams=0 or 1, flight_dir=PATH, "
                        "cuda_library=PATH, nccl_library=PATH, "
                        "cublas_library=PATH, library_dirs=PATH:PATH and "
                        "cuda_image=PATH",
                        item);
    }
  }
  return {};
}

}  // namespace aliquot::api
