// Graphs: every captured stream becomes a lane with a thread of its own, so
// that what the capture left unordered runs in any order.
#include <algorithm>

#include "tests/doubles/cuda/stream.h"

namespace aliquot::cuda_double {
namespace {

struct Executable {
  std::vector<Node> nodes;
  std::vector<std::unique_ptr<StreamImpl>> lanes;
  std::shared_ptr<Point> last;  // the end of the launch before

  ~Executable() {
    for (auto& lane : lanes) lane->close();
  }
};

void wait_in(StreamImpl& stream, std::shared_ptr<Point> point) {
  stream.push([point = std::move(point)] { point->wait(); });
}

std::shared_ptr<Point> record_in(StreamImpl& stream) {
  auto point = std::make_shared<Point>();
  stream.push([point] { point->set(); });
  return point;
}

void launch(Executable& graph, StreamImpl& stream) {
  if (graph.last != nullptr) wait_in(stream, graph.last);
  std::shared_ptr<Point> begin = record_in(stream);
  for (auto& lane : graph.lanes) wait_in(*lane, begin);
  std::vector<std::shared_ptr<Point>> done;
  for (const Node& node : graph.nodes) {
    StreamImpl& lane = *graph.lanes[node.lane];
    for (size_t before : node.after) {
      if (graph.nodes[before].lane != node.lane) wait_in(lane, done[before]);
    }
    lane.push(node.run);
    done.push_back(record_in(lane));
  }
  for (auto& lane : graph.lanes) wait_in(stream, record_in(*lane));
  graph.last = record_in(stream);
}

std::shared_ptr<Capture>* captured(CUgraph graph) {
  return reinterpret_cast<std::shared_ptr<Capture>*>(graph);
}

}  // namespace
}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                                unsigned long long) {
  Lock lock(state().mutex);
  if (out == nullptr || graph == nullptr) return kInvalidValue;
  if (CUresult unsafe = check_unsafe("cuGraphInstantiate")) return unsafe;
  const Capture& capture = **captured(graph);
  auto* exec = new Executable;
  exec->nodes = capture.nodes;
  for (size_t lane = 0; lane < capture.streams.size(); ++lane) {
    exec->lanes.push_back(
        std::make_unique<StreamImpl>(capture.origin->context, 1u));
  }
  *out = reinterpret_cast<CUgraphExec>(exec);
  return kSuccess;
}

DOUBLE_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode*, size_t* n) {
  if (graph == nullptr || n == nullptr) return kInvalidValue;
  *n = (*captured(graph))->nodes.size();
  return kSuccess;
}

DOUBLE_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  Lock lock(state().mutex);
  count("graph_launch");
  StreamImpl* s = find_stream(stream, "cuGraphLaunch");
  if (s == nullptr || exec == nullptr) return kInvalidHandle;
  if (s->capture != nullptr) {
    s->capture->invalid = true;
    return kCaptureUnsupported;
  }
  if (CUresult sticky = s->context->sticky) return sticky;
  launch(*reinterpret_cast<Executable*>(exec), *s);
  return kSuccess;
}

DOUBLE_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
  Lock lock(state().mutex);
  delete reinterpret_cast<Executable*>(exec);
  return kSuccess;
}

DOUBLE_API CUresult cuGraphDestroy(CUgraph graph) {
  Lock lock(state().mutex);
  delete captured(graph);
  return kSuccess;
}
