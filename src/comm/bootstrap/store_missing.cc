// What the store says about ranks that did not come in time.
#include <algorithm>

#include "comm/bootstrap/missing.h"
#include "comm/bootstrap/store_server.h"

namespace aliquot {

int32_t StoreServer::arrived() const {
  return gathering_ ? static_cast<int32_t>(std::count(has_value_.begin(),
                                                      has_value_.end(), true))
                    : joined_;
}

std::string StoreServer::state_of(int32_t rank) const {
  size_t index = static_cast<size_t>(rank);
  if (members_[index] != nullptr) {
    return fmt::format("connected, last seen {} ago",
                       seconds_text(now_ns() - members_[index]->last_seen()));
  }
  for (const auto& [fd, c] : connections_) {
    if (c->stage() == StoreConnection::Stage::kProof &&
        c->hello().rank == rank) {
      return "connected, secret not proved yet";
    }
  }
  return wrong_secret_[index] ? "refused: wrong secret" : "never connected";
}

Status StoreServer::deadline_error() const {
  std::vector<std::pair<int32_t, std::string>> missing;
  for (int32_t r = 1; r < place_.size; ++r) {
    size_t index = static_cast<size_t>(r);
    bool done = answered_
                    ? members_[index] == nullptr || members_[index]->flushed()
                : gathering_ ? has_value_[index]
                             : members_[index] != nullptr;
    if (!done) missing.emplace_back(r, state_of(r));
  }
  if (missing.empty()) {
    return make_error(ALQ_DEADLINE_EXCEEDED, "{}: no time left", phase_);
  }
  bool loopback_only =
      phase_ == "join" && bound_.loopback() && place_.local_size != place_.size;
  return make_error(
             ALQ_DEADLINE_EXCEEDED,
             "{} at {}: {} of {} ranks after {}; missing {}{}{}",
             answered_ ? phase_ + " (answer not taken)" : phase_, bound_.text(),
             place_.size - static_cast<int32_t>(missing.size()), place_.size,
             seconds_text(now_ns() - phase_started_), missing_text(missing),
             notes_,
             loopback_only ? "; other hosts cannot reach this loopback address"
                           : "")
      .with_rank(missing.front().first);
}

}  // namespace aliquot
