#include "engine/nesting.h"

#include <charconv>

namespace aliquot::engine {

Result<Nesting> Nesting::parse(std::string_view text) {
  Nesting nesting;
  if (text.empty()) return nesting;
  nesting.sizes_.clear();
  nesting.total_ = 1;
  std::string_view rest = text;
  while (true) {
    int64_t size = 0;
    auto [end, ec] =
        std::from_chars(rest.data(), rest.data() + rest.size(), size);
    size_t used = static_cast<size_t>(end - rest.data());
    bool more = used < rest.size();
    if (ec != std::errc() || size < 1 || size > 1'000'000 ||
        (more && (rest[used] != 'x' || used + 1 == rest.size())) ||
        nesting.total_ * size > 1'000'000) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "nesting \"{}\": write sizes from 1, outermost first, "
                        "as in \"4x2\"; their product is at most 1000000",
                        text);
    }
    nesting.sizes_.push_back(size);
    nesting.total_ *= size;
    if (!more) return nesting;
    rest.remove_prefix(used + 1);
  }
}

}  // namespace aliquot::engine
