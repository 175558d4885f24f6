// aliquot doctor: can CPU ranks run here, and what would make them faster?
#include <fmt/format.h>
#include <sys/mman.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "aliquot/aliquot.h"
#include "tools/bench_team.h"
#include "tools/commands.h"
#include "tools/probes.h"

namespace aliquot::tools {
namespace {

using Json = nlohmann::ordered_json;

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kNote: return "note";
    case Verdict::kBad: return "BAD";
  }
  return "?";
}

Json info_of(alq_context* context) {
  alq_error error = {};
  error.struct_size = sizeof error;
  size_t need = 0;
  std::string text;
  if (alq_runtime_info(context, nullptr, 0, &need, &error) == ALQ_OK) {
    text.resize(need);
    if (alq_runtime_info(context, text.data(), text.size(), &need, &error) ==
        ALQ_OK) {
      text.resize(need - 1);
    }
  }
  return Json::parse(text, nullptr, false);
}

std::string up_to(int64_t bytes) {
  if (bytes >= int64_t{1} << 40) return "all sizes";
  return bytes < 1024 ? "none" : fmt::format("up to {} KiB", bytes >> 10);
}

// How private buffers reach the other rank, as the world has measured it.
std::string private_memory_text(const Json& info) {
  if (!info.contains("private_memory")) return "";
  const Json& memory = info["private_memory"];
  std::string text =
      "; private buffers are " + memory.value("access", std::string("?"));
  if (memory.value("access", std::string()) == "read") {
    text += fmt::format(
        " by the kernel; through shared memory go {} for sums and {} for "
        "copies",
        up_to(memory.value("stage_sums", int64_t{0})),
        up_to(memory.value("stage_copies", int64_t{0})));
  }
  if (memory.value("stage_streams", false)) text += ", written past the caches";
  return text;
}

// What the first rank tells the process that started it.
struct Told {
  char text[512];
};

// Two real ranks add real numbers.
int add_numbers(Team& team, Told* told) {
  alq_context* context = team.open();
  if (team.rank() == 0) {
    std::string text = private_memory_text(info_of(context));
    text.copy(told->text, sizeof told->text - 1);
  }
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_group* group = nullptr;
  team.check(alq_group_world(context, &group, &error), error,
             "alq_group_world");
  std::vector<float> x(100'000, static_cast<float>(team.rank() + 1));
  team.check(alq_group_all_reduce(group, x.data(), x.data(), 100'000, ALQ_F32,
                                  ALQ_SUM, nullptr, nullptr, &error),
             error, "alq_group_all_reduce");
  for (float value : x) {
    if (value != 3.0f) team.fail(fmt::format("1 + 2 gave {}", value));
  }
  alq_group_release(group);
  team.check(alq_close(context, 0, &error), error, "alq_close");
  alq_release(context);
  return 0;
}

Finding trial() {
  Finding f = {"trial", Verdict::kOk, "2 ranks all-reduced 400 kB correctly",
               ""};
  void* page = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {"trial", Verdict::kBad, "no memory", ""};
  auto* told = static_cast<Told*>(page);
  const int code =
      run_team(2, 0, [&](Team& team) { return add_numbers(team, told); });
  f.value += told->text;
  munmap(page, sizeof(Told));
  if (code != 0) {
    f.verdict = Verdict::kBad;
    f.value = "2 ranks could not all-reduce";
    f.advice = "The message above says why; problems listed here come first.";
  }
  return f;
}

// What the library says about a rank of its own on this device.
Json runtime_info(int32_t device_type, const std::string& hints) {
  alq_open_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.bootstrap = ALQ_BOOTSTRAP_SINGLE;
  desc.device_type = device_type;
  desc.hints = hints.c_str();
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_context* context = nullptr;
  if (alq_open(ALQ_ABI_VERSION, &desc, &context, &error) != ALQ_OK) {
    return {{"error", error.message}};
  }
  Json info = info_of(context);
  alq_close(context, 0, nullptr);
  alq_release(context);
  return info;
}

// The first card, as a rank finds it.
Finding gpu(const std::vector<std::string>& folders) {
  const Json info = runtime_info(
      ALQ_DEVICE_CUDA, folders.empty() ? ""
                                       : fmt::format("library_dirs={}",
                                                     fmt::join(folders, ":")));
  if (!info.contains("cuda")) {
    return {"GPU", Verdict::kNote, "ranks can not use one",
            info.value("error", std::string("no reason was given"))};
  }
  const Json& cuda = info["cuda"];
  auto text = [&](const char* key) {
    return cuda.value(key, std::string("?"));
  };
  return {
      "GPU", Verdict::kOk,
      fmt::format("{}, {} MiB, capability {}, driver {}; kernels {}",
                  text("name"), cuda.value("memory_bytes", int64_t{0}) >> 20,
                  text("capability"), text("driver"), text("kernels")),
      ""};
}

struct Section {
  const char* title;
  std::vector<Finding> findings;
};

Json to_json(const std::vector<Section>& sections, const Json& runtime,
             bool healthy) {
  Json j;
  j["cpu_ranks_can_run"] = healthy;
  j["library"] = Json::parse(alq_build_info(), nullptr, false);
  j["runtime"] = runtime;
  for (const Section& section : sections) {
    Json& list = j[section.title] = Json::array();
    for (const Finding& f : section.findings) {
      list.push_back({{"name", f.name},
                      {"verdict", word(f.verdict)},
                      {"value", f.value},
                      {"advice", f.advice}});
    }
  }
  return j;
}

void print(const std::vector<Section>& sections, const Json& runtime,
           bool healthy) {
  int32_t version = alq_version();
  fmt::print("aliquot {}.{}.{}\n", version / 1000000, version / 1000 % 1000,
             version % 1000);
  for (const char* key : {"device", "backend", "simd", "error"}) {
    if (runtime.contains(key)) {
      fmt::print("  {:<16} {}\n", key, runtime[key].get<std::string>());
    }
  }
  for (const Section& section : sections) {
    fmt::print("{}\n", section.title);
    for (const Finding& f : section.findings) {
      fmt::print("  {:<16} {:<5} {}\n", f.name, word(f.verdict), f.value);
      if (!f.advice.empty()) fmt::print("  {:<22} -> {}\n", "", f.advice);
    }
  }
  fmt::print("{}\n", healthy ? "CPU ranks can run here."
                             : "CPU ranks cannot run here; see BAD above.");
}

int doctor(bool json, const std::vector<std::string>& folders) {
  // Children first: a process that opened the library must not fork it.
  std::vector<Section> sections = {
      {"resources", probe_resources()},
      {"sharing", probe_sharing()},
      {"optional libraries", probe_libraries(folders)},
      {"ranks", {trial()}}};
  bool healthy = true;
  for (const Section& section : sections) {
    for (const Finding& f : section.findings) {
      healthy &= f.verdict != Verdict::kBad;
    }
  }
  Json runtime = runtime_info(ALQ_DEVICE_CPU, "");
  // Last: a process that has used a GPU does not fork well.
  sections.push_back({"GPU", {gpu(folders)}});
  if (json) {
    fmt::print("{}\n", to_json(sections, runtime, healthy).dump(2));
  } else {
    print(sections, runtime, healthy);
  }
  return healthy ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int* code) {
  CLI::App* sub = app.add_subcommand(
      "doctor", "Check whether ranks can run on this machine, and how well");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "Write JSON");
  auto folders = std::make_shared<std::vector<std::string>>();
  sub->add_option("--library-dir", *folders,
                  "Look for optional libraries here first; may be repeated")
      ->type_name("FOLDER")
      ->take_all();
  sub->callback([=] { *code = doctor(*json, *folders); });
}

}  // namespace aliquot::tools
