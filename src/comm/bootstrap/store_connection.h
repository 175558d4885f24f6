// One accepted connection of the store: its buffers and its handshake.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/bootstrap/socket.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {

class StoreConnection {
 public:
  enum class Stage { kHello, kProof, kMember };
  enum class Step {
    kWait,      // more bytes are needed
    kProved,    // the peer holds the secret; the server decides by answer()
    kStranger,  // not a rank: drop it
    kImpostor,  // claimed a rank with a wrong secret: drop it
  };

  StoreConnection(Fd fd, std::string from);

  int fd() const { return fd_.get(); }
  Stage stage() const { return stage_; }
  const Hello& hello() const { return hello_; }
  const std::string& from() const { return from_; }
  int64_t opened() const { return opened_; }
  int64_t last_seen() const { return last_seen_; }

  // Reads on with the handshake.
  Step handshake(std::string_view secret);
  // Sends the verdict; with ALQ_OK the connection becomes a member.
  void answer(std::string_view secret, const Status& verdict);

  // Member: reads until one whole kGather frame is there.  false: closed or
  // malformed.
  bool read_frame();
  bool frame_ready() const { return frame_ready_; }
  std::string_view key() const;
  std::string take_value();  // and forgets the frame

  // Member: bytes to send, shared among connections.
  void queue(std::shared_ptr<const std::string> out);
  bool flushed() const { return out_ == nullptr; }
  bool flush();  // false: closed

 private:
  Step on_hello();
  Step on_proof(std::string_view secret);

  Fd fd_;
  const std::string from_;
  const int64_t opened_;
  int64_t last_seen_;
  Stage stage_ = Stage::kHello;
  Hello hello_;
  Challenge challenge_;
  std::string in_;
  FrameHeader header_;
  bool frame_ready_ = false;
  std::shared_ptr<const std::string> out_;
  size_t sent_ = 0;
};

}  // namespace aliquot
