// The engine's spans: compute on the host's side, and the traces of all ranks
// as files.
#include <cerrno>
#include <cstdio>
#include <utility>

#include "engine/engine.h"

namespace aliquot::engine {

namespace {

Status write_file(const std::string& path, const std::string& text) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    int err = errno;
    return errno_error(err == ENOENT ? ALQ_NOT_FOUND : ALQ_PERMISSION_DENIED,
                       "opening " + path, err);
  }
  size_t written = std::fwrite(text.data(), 1, text.size(), file);
  int err = errno;
  if (std::fclose(file) != 0 || written != text.size()) {
    return errno_error(ALQ_DATA_LOSS, "writing " + path, err);
  }
  return {};
}

}  // namespace

// On a device that runs by itself the caller's stream says when it gets here.
Status Engine::open_compute(int32_t unit, int32_t pass, Stream* stream) {
  ALQ_TRY(close_compute(unit, pass, stream));
  trace::Span span;
  span.lane = trace::Lane::kCompute;
  span.pass = pass;
  span.step = static_cast<int32_t>(steps_);
  span.name = unit_names_[static_cast<size_t>(unit)];
  span.root = model_.units[static_cast<size_t>(unit)].root ? 1 : 0;
  trace::Span*& open =
      computing_[static_cast<size_t>(unit)][static_cast<size_t>(pass)];
  if (device_->asynchronous()) {
    ALQ_ASSIGN(open, executor_->begin_span(span, stream));
    ALQ_TRY(executor_->used_on(stream));
  } else {
    span.begin = now_ns();
    open = recorder_.add(span);
  }
  return {};
}

Status Engine::close_compute(int32_t unit, int32_t pass, Stream* stream) {
  trace::Span*& open =
      computing_[static_cast<size_t>(unit)][static_cast<size_t>(pass)];
  trace::Span* span = std::exchange(open, nullptr);
  if (span == nullptr) return {};
  if (device_->asynchronous()) return executor_->end_span(span, stream);
  span->end = now_ns();
  return {};
}

Status Engine::trace_write(const std::string& dir, int32_t step) {
  ALQ_TRY(need_committed("trace_write"));
  ALQ_TRY(record(OtherCall::kTrace));
  ALQ_TRY(executor_->drain(deadline()));
  trace::RankTrace mine;
  mine.rank = context_->rank;
  mine.names = recorder_.names();
  mine.spans = recorder_.spans();
  std::string packed = trace::pack(mine);

  Group& group = *groups_.exchange;
  size_t ranks = static_cast<size_t>(group.size());
  int64_t size = static_cast<int64_t>(packed.size());
  std::vector<int64_t> sizes(ranks);
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = &size;
  coll.dst = sizes.data();
  coll.count = 1;
  coll.dtype = ALQ_I64;
  coll.label = "trace";
  ALQ_TRY(group.issue(coll, nullptr, nullptr));
  int64_t total = 0;
  for (int64_t s : sizes) total += s;
  std::string all(static_cast<size_t>(total), 0);
  coll.src = packed.data();
  coll.dst = all.data();
  coll.counts = sizes;
  coll.dtype = ALQ_U8;
  ALQ_TRY(group.issue(coll, nullptr, nullptr));

  ALQ_TRY(write_file(fmt::format("{}/rank-{}.json", dir, context_->rank),
                     trace::perfetto_json({mine})));
  if (group.rank() != 0) return {};
  std::vector<trace::RankTrace> traces(ranks);
  size_t at = 0;
  for (size_t r = 0; r < ranks; ++r) {
    size_t bytes = static_cast<size_t>(sizes[r]);
    if (!trace::unpack(all.substr(at, bytes), &traces[r])) {
      return make_error(ALQ_DATA_LOSS, "the trace of rank {} is damaged",
                        group.ranks()[r]);
    }
    at += bytes;
  }
  ALQ_TRY(write_file(dir + "/trace.json", trace::perfetto_json(traces)));
  return write_file(dir + "/timeline.svg", trace::timeline_svg(traces, step));
}

}  // namespace aliquot::engine
