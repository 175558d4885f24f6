// Everything that the library reads from a user as text: the environment of
// launchers, store addresses, fault specs, mesh specs, JSON, hints.
//
// The first byte chooses the reader, the rest is what it reads.  What was
// accepted must be within the documented limits.
#include <cstdlib>
#include <memory>

#include "aliquot/aliquot.h"
#include "base/fault.h"
#include "base/json.h"
#include "comm/bootstrap/address.h"
#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/wire.h"
#include "fuzz/fuzz.h"
#include "mesh/mesh.h"
#include "support/launcher_variables.h"

namespace aliquot::fuzz {
namespace {

enum Reader : uint8_t {
  kEnvironment,
  kAddress,
  kFault,
  kMesh,
  kJson,
  kHints,
  kTable,
  kReaders
};

constexpr auto& kVariables = test::kLauncherVariables;

void judge_error(const Status& status) {
  expect(status.ok() || !status.message().empty(), "an error says something");
  expect(status.message().size() < 40'000, "an error is not a book");
}

void environment(Script& script) {
  for (const char* name : kVariables) unsetenv(name);
  while (!script.empty()) {
    const char* name = kVariables[script.byte() % std::size(kVariables)];
    setenv(name, std::string(script.short_text()).c_str(), 1);
  }
  Result<Place> place = place_from_environment();
  judge_error(place.status());
  if (!place.ok()) return;
  expect(place->size >= 1 && place->size <= kMaxWorld, "a size in its limits");
  expect(place->rank >= 0 && place->rank < place->size, "a rank of the world");
  expect(place->local_size >= 0 && place->local_size <= place->size &&
             place->local_rank >= 0,
         "a place on the host");
  if (place->size == 1) return;
  expect(!place->secret.empty(), "never without a secret");
  expect(parse_store_address(place->address).ok(), "an address that parses");
}

void address(std::string_view text) {
  Result<StoreAddress> out = parse_store_address(text);
  judge_error(out.status());
  names_loopback(std::string(text));
  if (!out.ok()) return;
  expect(!out->host.empty() && out->first >= 1 && out->first <= out->last &&
             out->last - out->first < 256,
         "a host and a range of ports");
}

void mesh(Script& script) {
  int32_t world = 1 + script.byte();
  Result<std::vector<Axis>> axes = parse_mesh(script.all(), world);
  judge_error(axes.status());
  if (!axes.ok()) return;
  int64_t product = 1;
  for (const Axis& axis : *axes) product *= axis.size;
  expect(product == world, "the axes make up the world");
}

void json(std::string_view text) {
  Result<Json> value = Json::parse(text);
  judge_error(value.status());
  if (!value.ok()) return;
  std::string once = value->dump();
  Result<Json> again = Json::parse(once);
  expect(again.ok() && again->dump() == once, "what is written is read back");
}

// The item at the end is never known, so that nothing is opened.
void hints(std::string_view text) {
  std::string all(text.substr(0, text.find('\0')));
  all += ";never=1";
  alq_open_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.bootstrap = ALQ_BOOTSTRAP_SINGLE;
  desc.hints = all.c_str();
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_context* context = nullptr;
  alq_status status = alq_open(ALQ_ABI_VERSION, &desc, &context, &error);
  expect(status == ALQ_INVALID_ARGUMENT && context == nullptr, "refused");
  expect(error.message[0] != 0, "an error says something");
}

void table(Script& script) {
  int32_t size = 1 + script.byte();
  std::string_view body = script.all();
  Result<std::vector<std::string>> values = decode_table(body, size);
  judge_error(values.status());
  if (!values.ok()) return;
  expect(values->size() == static_cast<size_t>(size), "a value of every rank");
  expect(encode_table(*values).substr(sizeof(FrameHeader)) == body,
         "what was read is what was sent");
}

std::string environment_of(
    std::vector<std::pair<std::string_view, const char*>> variables) {
  Writer out;
  out.byte(kEnvironment);
  for (auto& [name, value] : variables) {
    for (size_t i = 0; i < std::size(kVariables); ++i) {
      if (kVariables[i] == name) {
        out.byte(static_cast<int>(i)).short_text(value);
      }
    }
  }
  return out;
}

}  // namespace

Target target() {
  auto text = [](Reader reader, std::string_view what) {
    return Writer().byte(reader).text(what);
  };
  std::vector<std::string> seeds = {
      environment_of({{"ALIQUOT_RANK", "1"},
                      {"ALIQUOT_WORLD_SIZE", "4"},
                      {"ALIQUOT_STORE", "127.0.0.1:29500-29515"},
                      {"ALIQUOT_SECRET", "s"}}),
      environment_of({{"RANK", "3"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "3"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "::1"},
                      {"MASTER_PORT", "65530"},
                      {"TORCHELASTIC_RESTART_COUNT", "2"}}),
      environment_of({{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "prterun-1"}}),
      environment_of({{"SLURM_PROCID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_NUM_NODES", "1"},
                      {"SLURM_JOB_ID", "7"}}),
      environment_of({{"PMI_SIZE", "2"}}),
      text(kAddress, "node-1.example:29500"),
      text(kAddress, "[::1]:7000-7015"),
      text(kFault, "coll.data:3@1=kill,engine.step=delay_ms/5"),
      text(kFault, "engine.comm=skip,coll.done@0=error"),
      text(kMesh,
           "\x07"
           "dp_replicate=2,dp_shard=-1"),
      text(kMesh,
           "\x0b"
           "a=2, b=3 ,c=2"),
      text(kJson, R"({"a":[1,-2.5e300,true,null,"\u00e9\n"],"b":{}})"),
      text(kJson, std::string(300, '[')),
      text(kHints, "throttle_mb_per_s=10;huge_pages=1;stage_sums=0"),
      text(kHints, "stage_copies=1e12;stage_streams=0;flight_dir=x"),
      text(kTable, "\x01" + encode_table({"a", "bcd"}).substr(16))};
  return {"fuzz_text", 4 << 20, seeds};
}

}  // namespace aliquot::fuzz

int one_input(const uint8_t* data, size_t size) {
  using namespace aliquot;
  using namespace aliquot::fuzz;
  Script script(data, size);
  switch (script.byte() % kReaders) {
    case kEnvironment: environment(script); break;
    case kAddress: address(script.all()); break;
    case kFault: judge_error(Faults(1).arm(script.all())); break;
    case kMesh: mesh(script); break;
    case kJson: json(script.all()); break;
    case kHints: hints(script.all()); break;
    default: table(script);
  }
  return 0;
}
