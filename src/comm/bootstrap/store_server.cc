#include "comm/bootstrap/store_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/store_listen.h"

namespace aliquot {
namespace {

// A connection must have proved the secret by then.
constexpr int64_t kHandshakeNs = 5'000'000'000;
constexpr int64_t kSweepNs = 100'000'000;
// How long a failure may take to reach the ranks that still listen.
constexpr int64_t kFarewellNs = 1'000'000'000;
constexpr int kAcceptsAtOnce = 256;
// Beyond one stranger per rank, the oldest makes room.
constexpr int32_t kSpareStrangers = 128;

}  // namespace

StoreServer::StoreServer(const Place& place, Fd listener, Fd epoll,
                         SocketAddress bound)
    : place_(place),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      bound_(bound),
      started_(now_ns()),
      members_(static_cast<size_t>(place.size)),
      lost_(static_cast<size_t>(place.size)),
      wrong_secret_(static_cast<size_t>(place.size)),
      has_value_(static_cast<size_t>(place.size)) {}

Result<std::unique_ptr<StoreServer>> StoreServer::listen(const Place& place) {
  ALQ_TRY(check_descriptors(place.size));
  ALQ_ASSIGN(StoreAddress address, parse_store_address(place.address));
  ALQ_ASSIGN(Listener bound, bind_first(address));
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll)
    return errno_error(ALQ_RESOURCE_EXHAUSTED, "epoll_create1", errno);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = bound.fd.get();
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bound.fd.get(), &event);
  return std::unique_ptr<StoreServer>(new StoreServer(
      place, std::move(bound.fd), std::move(epoll), bound.address));
}

Status StoreServer::join(Deadline deadline) {
  phase_ = "join";
  phase_started_ = now_ns();
  awaited_ = place_.size - joined_;
  Status status = serve(deadline);
  if (!status.ok()) return fail(std::move(status));
  close_door();
  answered_ = true;
  send_to_members(encode_frame(FrameKind::kTable, "", ""));
  status = serve(deadline);
  return status.ok() ? status : fail(std::move(status));
}

void StoreServer::close_door() {
  listener_.reset();
  std::erase_if(connections_, [](const auto& entry) {
    return entry.second->stage() != StoreConnection::Stage::kMember;
  });
  strangers_ = 0;
}

Result<std::vector<Bytes>> StoreServer::all_gather(const std::string& key,
                                                   Bytes mine,
                                                   Deadline deadline) {
  if (!failed_.ok()) return failed_;
  if (key.empty() || key.size() > kMaxKey || mine.size() > kMaxValue ||
      !used_keys_.insert(key).second) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "exchange \"{}\" of {} bytes: a key has 1 to {} bytes "
                      "and is used once, a value at most {}",
                      key.substr(0, 64), mine.size(), kMaxKey, kMaxValue);
  }
  phase_ = key;
  phase_started_ = now_ns();
  gathering_ = true, answered_ = false;
  values_.assign(members_.size(), {});
  values_[0] = std::move(mine);
  has_value_.assign(members_.size(), false);
  has_value_[0] = true;
  awaited_ = place_.size - 1;
  for (size_t r = 1; r < members_.size(); ++r) {
    if (lost_[r]) {
      return fail(make_error(ALQ_PEER_FAILED,
                             "rank {} left the store before exchange \"{}\"; "
                             "this is rank 0 at {}",
                             r, key, bound_.text())
                      .with_rank(static_cast<int32_t>(r)));
    }
    watch(*members_[r], EPOLL_CTL_MOD);
  }
  Status status = serve(deadline);
  if (!status.ok()) return fail(std::move(status));
  gathering_ = false, answered_ = true;
  send_to_members(encode_table(values_));
  status = serve(deadline);
  if (!status.ok()) return fail(std::move(status));
  return std::move(values_);
}

Status StoreServer::serve(Deadline deadline) {
  std::array<epoll_event, 256> events;
  while (fatal_.ok() && (awaited_ > 0 || unflushed_ > 0)) {
    if (deadline.passed()) return deadline_error();
    int n = epoll_wait(epoll_.get(), events.data(), events.size(),
                       wait_ms(deadline));
    if (n < 0 && errno != EINTR) {
      return errno_error(ALQ_INTERNAL, "epoll_wait", errno);
    }
    for (int i = 0; i < n; ++i) {
      on_event(events[static_cast<size_t>(i)].data.fd,
               events[static_cast<size_t>(i)].events);
    }
    int64_t now = now_ns();
    if (strangers_ > 0 && now >= next_sweep_) drop_late_strangers(now);
  }
  return fatal_;
}

int StoreServer::wait_ms(Deadline deadline) const {
  int ms = poll_ms(deadline);
  return strangers_ > 0 ? std::min(ms, static_cast<int>(kSweepNs / 1'000'000))
                        : ms;
}

void StoreServer::on_event(int fd, uint32_t events) {
  if (listener_ && fd == listener_.get()) return accept_some();
  auto it = connections_.find(fd);
  if (it == connections_.end()) return;  // dropped by an earlier event
  StoreConnection& c = *it->second;
  if (c.stage() == StoreConnection::Stage::kMember) {
    on_member(c, events);
  } else {
    on_stranger(c);
  }
}

// A few at a time, so that those who connect without end keep nobody waiting.
void StoreServer::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    Fd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer.storage),
                  &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      add(std::move(fd), peer.text());
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                errno == ENOMEM;
    if (!full) return;
    if (!drop_oldest_stranger()) {
      // Nothing of ours to give back: let other code close something.
      timespec pause = {0, 10'000'000};
      nanosleep(&pause, nullptr);
      return;
    }
  }
}

void StoreServer::add(Fd fd, std::string from) {
  if (strangers_ >= place_.size + kSpareStrangers) drop_oldest_stranger();
  int number = fd.get();
  auto c = std::make_unique<StoreConnection>(std::move(fd), std::move(from));
  watch(*c, EPOLL_CTL_ADD);
  connections_[number] = std::move(c);
  ++strangers_;
}

void StoreServer::drop_late_strangers(int64_t now) {
  next_sweep_ = now + kSweepNs;
  std::vector<int> late;
  for (auto& [fd, c] : connections_) {
    if (c->stage() != StoreConnection::Stage::kMember &&
        now - c->opened() > kHandshakeNs) {
      late.push_back(fd);
    }
  }
  for (int fd : late) drop(fd);
}

bool StoreServer::drop_oldest_stranger() {
  StoreConnection* oldest = nullptr;
  for (auto& [fd, c] : connections_) {
    if (c->stage() == StoreConnection::Stage::kMember) continue;
    if (oldest == nullptr || c->opened() < oldest->opened()) oldest = c.get();
  }
  if (oldest == nullptr) return false;
  drop(oldest->fd());
  return true;
}

void StoreServer::drop(int fd) {
  connections_.erase(fd);
  --strangers_;
}

void StoreServer::on_stranger(StoreConnection& c) {
  switch (c.handshake(place_.secret)) {
    case StoreConnection::Step::kWait: return;
    case StoreConnection::Step::kProved: return admit(c);
    case StoreConnection::Step::kImpostor:
      if (c.hello().rank > 0 && c.hello().rank < place_.size) {
        wrong_secret_[static_cast<size_t>(c.hello().rank)] = true;
      }
      return drop(c.fd());
    case StoreConnection::Step::kStranger: return drop(c.fd());
  }
}

void StoreServer::admit(StoreConnection& c) {
  if (!failed_.ok()) {  // too late: the newcomer learns why
    c.answer(place_.secret, failed_);
    --awaited_;
    return drop(c.fd());
  }
  Status verdict = admission(c);
  c.answer(place_.secret, verdict);
  if (!verdict.ok()) {
    if (verdict.code() == ALQ_RANK_MISMATCH) fatal_ = verdict;
    return drop(c.fd());
  }
  members_[static_cast<size_t>(c.hello().rank)] = &c;
  --strangers_;
  ++joined_;
  --awaited_;
  unflushed_ += c.flushed() ? 0 : 1;
  watch(c, EPOLL_CTL_MOD);
}

Status StoreServer::admission(const StoreConnection& c) {
  int32_t rank = c.hello().rank, size = c.hello().size;
  if (size != place_.size) {
    return make_error(ALQ_RANK_MISMATCH,
                      "rank {} ({}) was started with a world size of {}, rank "
                      "0 with {}; start all ranks with one size",
                      rank, c.from(), size, place_.size)
        .with_rank(rank >= 0 && rank < place_.size ? rank : -1);
  }
  if (rank < 0 || rank >= size) {
    return make_error(ALQ_INVALID_ARGUMENT, "rank {} is not in a world of {}",
                      rank, size);
  }
  StoreConnection* first = members_[static_cast<size_t>(rank)];
  if (rank != 0 && first == nullptr) return {};
  if (notes_.size() < 300) {
    notes_ += fmt::format("; rank {} came again from {} and was refused", rank,
                          c.from());
  }
  return make_error(ALQ_ALREADY_EXISTS,
                    "rank {} has joined already, from {}; two processes have "
                    "been given the same rank",
                    rank, first ? first->from() : bound_.text())
      .with_rank(rank);
}

void StoreServer::on_member(StoreConnection& c, uint32_t events) {
  bool open = true;
  if (!c.flushed()) {
    open = c.flush();
    if (c.flushed()) --unflushed_;
  }
  if (open && gathering_ && !has_value_[static_cast<size_t>(c.hello().rank)]) {
    open = c.read_frame();
    if (c.frame_ready()) take_frame(c);
  }
  if (!open || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    return lose(c);
  }
  watch(c, EPOLL_CTL_MOD);
}

void StoreServer::take_frame(StoreConnection& c) {
  int32_t rank = c.hello().rank;
  if (c.key() != phase_) {
    fatal_ = make_error(ALQ_RANK_MISMATCH,
                        "rank {} is in exchange \"{}\", rank 0 in \"{}\": the "
                        "ranks make different calls",
                        rank, c.key(), phase_)
                 .with_rank(rank);
    return;
  }
  size_t index = static_cast<size_t>(rank);
  values_[index] = c.take_value();
  has_value_[index] = true;
  --awaited_;
}

// A rank's connection ended.  Once its answer has been sent that is its right.
void StoreServer::lose(StoreConnection& c) {
  int32_t rank = c.hello().rank;
  lost_[static_cast<size_t>(rank)] = true;
  members_[static_cast<size_t>(rank)] = nullptr;
  if (!c.flushed()) --unflushed_;
  if (!answered_ && fatal_.ok()) {
    fatal_ = make_error(ALQ_PEER_FAILED,
                        "rank {} ({}) closed its connection in {} \"{}\" while "
                        "{} of {} ranks had arrived; it ended or gave up",
                        rank, c.from(), gathering_ ? "exchange" : "phase",
                        phase_, arrived(), place_.size)
                 .with_rank(rank);
  }
  connections_.erase(c.fd());
}

void StoreServer::watch(const StoreConnection& c, int how) {
  epoll_event event = {};
  event.data.fd = c.fd();
  event.events = EPOLLRDHUP;
  if (c.stage() != StoreConnection::Stage::kMember) {
    event.events |= EPOLLIN;
  } else {
    size_t rank = static_cast<size_t>(c.hello().rank);
    if (gathering_ && !has_value_[rank]) event.events |= EPOLLIN;
    if (!c.flushed()) event.events |= EPOLLOUT;
  }
  epoll_ctl(epoll_.get(), how, c.fd(), &event);
}

void StoreServer::send_to_members(const std::string& bytes) {
  auto shared = std::make_shared<const std::string>(bytes);
  unflushed_ = 0;
  for (StoreConnection* c : members_) {
    if (c == nullptr) continue;
    c->queue(shared);
    if (!c->flush()) {
      // The event loop will see the end of the connection; nothing to send.
      lost_[static_cast<size_t>(c->hello().rank)] = true;
    }
    unflushed_ += c->flushed() ? 0 : 1;
    watch(*c, EPOLL_CTL_MOD);
  }
}

Status StoreServer::fail(Status status) {
  failed_ = std::move(status);
  fatal_ = Status();
  // Ranks that are just starting are told too, if there is time left for it.
  bool to_come = listener_ && failed_.code() != ALQ_DEADLINE_EXCEEDED;
  if (!to_come) close_door();
  awaited_ = to_come ? place_.size - joined_ : 0;
  // The rank whose size differs has had its verdict.
  if (to_come && failed_.code() == ALQ_RANK_MISMATCH) --awaited_;
  gathering_ = false, answered_ = true;
  send_to_members(encode_failure(failed_));
  // Who cannot take it within the farewell's time sees the connection end.
  (void)serve(Deadline::after(kFarewellNs));
  close_door();
  std::fill(members_.begin(), members_.end(), nullptr);
  connections_.clear();
  return failed_;
}

}  // namespace aliquot
