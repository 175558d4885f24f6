#include "report.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "error.h"

namespace gpt {
namespace {

// JSON has no word for infinities and NaN.
std::string number(double x) {
  return std::isfinite(x) ? fmt::format("{:.17g}", x) : "null";
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0) return 80;
  return size.ws_col == 0 ? 80 : size.ws_col;
}

// `width` cells, filled to an eighth of a cell.
std::string bar_text(double share, int width) {
  static const char* kEighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * width * 8);
  std::string text;
  for (int cell = 0; cell < width; ++cell) {
    const int filled = std::clamp(eighths - cell * 8, 0, 8);
    text += filled == 8 ? "█" : kEighths[filled];
  }
  return text;
}

}  // namespace

Reporter::Reporter(const Options& options)
    : options_(options),
      bar_(options.progress == Progress::kBar ||
           (options.progress == Progress::kAuto && isatty(STDERR_FILENO))),
      lines_(!bar_ && options.progress != Progress::kNone) {
  if (options.json.empty()) return;
  json_.reset(std::fopen(options.json.c_str(), "w"));
  if (json_ == nullptr) {
    throw Error(
        fmt::format("--json {}: {}", options.json, std::strerror(errno)));
  }
}

Reporter::~Reporter() {
  if (drawn_) std::fputs("\n", stderr);
}

void Reporter::note(const std::string& line) {
  if (options_.progress == Progress::kNone) return;
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void Reporter::draw_bar(const StepRecord& r, double elapsed) {
  const double share =
      static_cast<double>(r.step) / static_cast<double>(options_.steps);
  std::string text =
      fmt::format(" {}/{}  loss {:.3f}", r.step, options_.steps, r.loss);
  if (held_out_ > 0) text += fmt::format("  held-out {:.3f}", held_out_);
  text += fmt::format("  {:.1f}k tokens/s  ETA {}", r.tokens_per_s / 1e3,
                      clock_text(elapsed / share * (1 - share)));
  const int room = terminal_width() - static_cast<int>(text.size()) - 3;
  const std::string bar =
      room >= 4 ? "▕" + bar_text(share, std::min(room, 40)) + "▏" : "";
  fmt::print(stderr, "\r{}{}\x1b[K", bar, text);
  std::fflush(stderr);
  drawn_ = true;
}

void Reporter::step(const StepRecord& r, double elapsed) {
  if (r.has_held_out) held_out_ = r.held_out;
  if (r.skipped) {
    note(fmt::format("step {}: skipped, a gradient was not finite", r.step));
  }
  const bool end = r.step == options_.steps;
  if (bar_ && (end || elapsed - last_drawn_ > 0.1)) {
    draw_bar(r, elapsed);
    last_drawn_ = elapsed;
  }
  const int64_t every = std::max<int64_t>(1, options_.steps / 20);
  if (lines_ && (end || r.step == 1 || r.step % every == 0)) {
    note(fmt::format(
        "step {:>5}/{}  loss {:.4f}{}  |g| {:.3f}  {:.1f}k tokens/s  ETA {}",
        r.step, options_.steps, r.loss,
        held_out_ > 0 ? fmt::format("  held-out {:.4f}", held_out_) : "",
        r.grad_norm, r.tokens_per_s / 1e3,
        clock_text(elapsed / static_cast<double>(r.step) *
                   static_cast<double>(options_.steps - r.step))));
  }
  write_json(fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, "
      "\"tokens_per_s\": {:.1f}, \"peak_bytes\": {}, \"exposed_comm_s\": "
      "{:.9f}, \"skipped\": {}{}}}",
      r.step, number(r.loss), number(r.grad_norm), number(r.lr), r.tokens_per_s,
      r.peak_bytes, r.exposed_comm_s, r.skipped,
      r.has_held_out ? ", \"held_out\": " + number(r.held_out) : ""));
}

void Reporter::finish(const Summary& s) {
  const std::string hash =
      s.hashed ? fmt::format("{:016x}", s.hash) : std::string();
  note(fmt::format("{} steps in {} on {} rank{}, {} parameters", options_.steps,
                   clock_text(s.seconds), s.ranks, s.ranks == 1 ? "" : "s",
                   s.params));
  note(
      fmt::format("nats per byte: unigram {:.4f}, bigram {:.4f}, "
                  "reached {:.4f} in training (the last steps' mean) and "
                  "{:.4f} held out",
                  s.unigram, s.bigram, s.loss, s.held_out));
  if (!options_.trace.empty()) {
    note(
        fmt::format("trace: {0}/timeline.svg for a browser, {0}/trace.json for "
                    "ui.perfetto.dev",
                    options_.trace));
  }
  if (s.hashed) {
    fmt::print("weights {}\n", hash);
    std::fflush(stdout);
  }
  write_json(fmt::format(
      "{{\"done\": true, \"unigram\": {}, \"bigram\": {}, \"loss\": {}, "
      "\"held_out\": {}, \"seconds\": {:.3f}, \"ranks\": {}, \"params\": "
      "{}{}}}",
      number(s.unigram), number(s.bigram), number(s.loss), number(s.held_out),
      s.seconds, s.ranks, s.params,
      s.hashed ? ", \"hash\": \"" + hash + "\"" : ""));
}

void Reporter::write_json(const std::string& line) {
  if (json_ == nullptr) return;
  if (std::fprintf(json_.get(), "%s\n", line.c_str()) < 0 ||
      std::fflush(json_.get()) != 0) {
    throw Error(
        fmt::format("--json {}: {}", options_.json, std::strerror(errno)));
  }
}

}  // namespace gpt
