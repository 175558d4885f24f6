#include "comm/bootstrap/store_connection.h"

#include "base/clock.h"
#include "base/text.h"
#include "comm/bootstrap/auth.h"

namespace aliquot {

StoreConnection::StoreConnection(Fd fd, std::string from)
    : fd_(std::move(fd)),
      from_(std::move(from)),
      opened_(now_ns()),
      last_seen_(opened_) {
  challenge_.nonce = handshake_nonce();
}

StoreConnection::Step StoreConnection::handshake(std::string_view secret) {
  while (stage_ != Stage::kMember) {
    bool hello = stage_ == Stage::kHello;
    size_t want = hello ? sizeof(Hello) : sizeof(Mac);
    Io io = read_some(fd(), &in_, want);
    last_seen_ = now_ns();
    if (in_.size() < want) {
      return io == Io::kClosed ? Step::kStranger : Step::kWait;
    }
    Step step = hello ? on_hello() : on_proof(secret);
    in_.clear();
    if (step != Step::kWait) return step;
  }
  return Step::kWait;
}

StoreConnection::Step StoreConnection::on_hello() {
  hello_ = from_raw<Hello>(in_);
  if (hello_.magic != kStoreMagic) return Step::kStranger;
  // Sent to another version too: it learns ours from it.
  size_t sent = 0;
  Io io = write_some(fd(), raw(challenge_), &sent);
  if (io != Io::kDone || hello_.version != kStoreVersion) {
    return Step::kStranger;
  }
  stage_ = Stage::kProof;
  return Step::kWait;
}

StoreConnection::Step StoreConnection::on_proof(std::string_view secret) {
  Mac expected = client_proof(secret, hello_, challenge_);
  if (equal_macs(from_raw<Mac>(in_), expected)) return Step::kProved;
  Verdict verdict;
  verdict.code = ALQ_UNAUTHENTICATED;
  size_t sent = 0;
  write_some(fd(), raw(verdict), &sent);
  return Step::kImpostor;
}

void StoreConnection::answer(std::string_view secret, const Status& status) {
  std::string_view text = status.message();
  text = fitting(text, kMaxText);
  Verdict verdict;
  verdict.code = status.code();
  verdict.text_bytes = static_cast<uint32_t>(text.size());
  verdict.mac = server_proof(secret, hello_, challenge_, verdict.code, text);
  queue(std::make_shared<std::string>(std::string(raw(verdict)).append(text)));
  flush();
  if (status.ok()) stage_ = Stage::kMember;
}

bool StoreConnection::read_frame() {
  while (!frame_ready_) {
    bool have_header = in_.size() >= sizeof header_;
    size_t want = sizeof header_;
    if (have_header) {
      header_ = from_raw<FrameHeader>(in_);
      if (header_.kind != FrameKind::kGather || header_.key_bytes > kMaxKey ||
          header_.body_bytes > kMaxValue) {
        return false;
      }
      want += header_.key_bytes + header_.body_bytes;
    }
    size_t before = in_.size();
    Io io = read_some(fd(), &in_, want);
    if (in_.size() > before) last_seen_ = now_ns();
    if (in_.size() < want) return io != Io::kClosed;
    frame_ready_ = have_header;
  }
  return true;
}

std::string_view StoreConnection::key() const {
  return std::string_view(in_).substr(sizeof header_, header_.key_bytes);
}

std::string StoreConnection::take_value() {
  std::string value = in_.substr(sizeof header_ + header_.key_bytes);
  in_.clear();
  frame_ready_ = false;
  return value;
}

void StoreConnection::queue(std::shared_ptr<const std::string> out) {
  if (out_ != nullptr) {  // rare: the verdict did not fit the socket's buffer
    out = std::make_shared<std::string>(out_->substr(sent_) + *out);
  }
  out_ = std::move(out);
  sent_ = 0;
}

bool StoreConnection::flush() {
  if (out_ == nullptr) return true;
  Io io = write_some(fd(), *out_, &sent_);
  if (io == Io::kDone) out_.reset();
  return io != Io::kClosed;
}

}  // namespace aliquot
