// The place of this process, read from the environment.  Asks no name server
// and opens nothing.
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/sha256.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {
namespace {

// torchrun's own store, or torch.distributed's, is at MASTER_PORT itself.
constexpr int kTorchrunPorts = 16;

struct Source {
  const char* name;
  const char *rank, *size, *local_rank, *local_size;
  // Launchers that name no meeting place: what tells their jobs apart.
  const char* job[2] = {nullptr, nullptr};
};
constexpr Source kAliquot = {"aliquot", "ALIQUOT_RANK", "ALIQUOT_WORLD_SIZE",
                             "ALIQUOT_LOCAL_RANK", "ALIQUOT_LOCAL_SIZE"};
constexpr Source kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE"};
constexpr Source kOpenMpi = {"openmpi",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}};
// Slurm says how many tasks a node has in a notation of its own: see
// slurm_numbers.
constexpr Source kSlurm = {
    "slurm",         "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", {"SLURM_JOB_ID", "SLURM_STEP_ID"}};
// Ports of jobs that have no port of their own lie between these.
constexpr int kFirstJobPort = 20000, kJobPorts = 8000;

// What a source sets, before anything is required.
struct Numbers {
  std::optional<int32_t> rank, size, local_rank, local_size;
  bool any() const { return rank || size || local_rank || local_size; }
};

// An empty variable counts as not set.
std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

Status read_number(const char* name, int32_t least,
                   std::optional<int32_t>* out) {
  std::optional<std::string> text = get(name);
  if (!text) return {};
  int32_t value = 0;
  const char* end = text->data() + text->size();
  auto [stop, ec] = std::from_chars(text->data(), end, value);
  if (ec != std::errc() || stop != end || value < least || value > kMaxWorld) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{}=\"{}\" is not a whole number from {} to {}", name,
                      text->substr(0, 40), least, kMaxWorld);
  }
  *out = value;
  return {};
}

Result<Numbers> read_numbers(const Source& source) {
  Numbers n;
  ALQ_TRY(read_number(source.rank, 0, &n.rank));
  ALQ_TRY(read_number(source.size, 1, &n.size));
  ALQ_TRY(read_number(source.local_rank, 0, &n.local_rank));
  ALQ_TRY(read_number(source.local_size, 1, &n.local_size));
  return n;
}

// A step on one node has all its ranks there; of several nodes it is not said
// here how many each has.
Result<Numbers> slurm_numbers() {
  ALQ_ASSIGN(Numbers n, read_numbers(kSlurm));
  std::optional<int32_t> nodes = n.local_size;
  if (nodes == 1) {
    n.local_size = n.size;
  } else {
    n.local_rank = n.local_size = std::nullopt;
  }
  return n;
}

void need(bool have, const char* name, std::string* missing) {
  if (have) return;
  if (!missing->empty()) *missing += ", ";
  *missing += name;
}

Status half_set(const Source& source, const std::string& missing) {
  return make_error(
      ALQ_INVALID_ARGUMENT,
      "the environment of {} is half set, without {}: set all, or "
      "unset the source's other variables",
      source.name, missing);
}

Status check_disagreement(const Numbers& a, const Numbers& b) {
  std::string left, right;
  auto compare = [&](const char* left_name, std::optional<int32_t> x,
                     const char* right_name, std::optional<int32_t> y) {
    if (!x || !y || *x == *y) return;
    left += fmt::format(" {}={}", left_name, *x);
    right += fmt::format(" {}={}", right_name, *y);
  };
  compare(kAliquot.rank, a.rank, kTorchrun.rank, b.rank);
  compare(kAliquot.size, a.size, kTorchrun.size, b.size);
  compare(kAliquot.local_rank, a.local_rank, kTorchrun.local_rank,
          b.local_rank);
  compare(kAliquot.local_size, a.local_size, kTorchrun.local_size,
          b.local_size);
  if (left.empty()) return {};
  return make_error(ALQ_INVALID_ARGUMENT,
                    "two launchers disagree about this process:{} but{}; start "
                    "it with one of them, or unset one set of variables",
                    left, right);
}

Status check_ranges(const Source& source, const Place& p) {
  if (p.rank >= p.size) {
    return make_error(ALQ_INVALID_ARGUMENT, "{}={} is not below {}={}",
                      source.rank, p.rank, source.size, p.size);
  }
  if (p.local_size > 0 && p.local_rank >= p.local_size) {
    return make_error(ALQ_INVALID_ARGUMENT, "{}={} is not below {}={}",
                      source.local_rank, p.local_rank, source.local_size,
                      p.local_size);
  }
  if (p.local_size > p.size) {
    return make_error(ALQ_INVALID_ARGUMENT, "{}={} is more than {}={}",
                      source.local_size, p.local_size, source.size, p.size);
  }
  return {};
}

Result<std::string> torchrun_address(bool all_local) {
  std::optional<int32_t> port;
  ALQ_TRY(read_number("MASTER_PORT", 1, &port));
  if (*port > 65535) {
    return make_error(ALQ_INVALID_ARGUMENT, "MASTER_PORT={} is above 65535",
                      *port);
  }
  int first =
      *port + kTorchrunPorts <= 65535 ? *port + 1 : *port - kTorchrunPorts;
  std::string host = all_local ? "127.0.0.1" : *get("MASTER_ADDR");
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}:{}-{}", host, first, first + kTorchrunPorts - 1);
}

// What all ranks of this job know, and no other job of this host.
std::string job_text(const Source& source) {
  std::string text = fmt::format("aliquot {} {}", source.name, getuid());
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", source.job[0], source.job[1]}) {
    if (name != nullptr) {
      text += fmt::format("\n{}={}", name, get(name).value_or(""));
    }
  }
  return text;
}

// A job on one host that has no meeting place: a few ports of its own.
std::string job_address(const Source& source) {
  Digest digest = sha256("port " + job_text(source));
  int at = (digest[0] << 8 | digest[1]) % (kJobPorts / kTorchrunPorts);
  int first = kFirstJobPort + at * kTorchrunPorts;
  return fmt::format("127.0.0.1:{}-{}", first, first + kTorchrunPorts - 1);
}

// Keeps jobs apart; anyone who knows the same values can derive it too.
std::string derived_secret(const Source& source) {
  std::string text = job_text(source), hex;
  for (uint8_t byte : sha256(text)) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Fills address, secret and what the source leaves out about the host.
Status fill_store(const Source& source, const Numbers& n, Place* p) {
  std::string missing;
  std::optional<std::string> store = get("ALIQUOT_STORE");
  bool torchrun = &source == &kTorchrun, job = source.job[0] != nullptr;
  bool one_host = n.local_size && *n.local_size == *n.size;
  if (job && !store && one_host) {
    p->address = job_address(source);
    p->secret = get("ALIQUOT_SECRET").value_or(derived_secret(source));
    return {};
  }
  if (job && !store) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} started this job on several hosts: set ALIQUOT_STORE "
                      "(host:port of rank 0) and ALIQUOT_SECRET on every rank",
                      source.name);
  }
  if (torchrun && !store) {
    need(get("MASTER_ADDR").has_value(), "MASTER_ADDR", &missing);
    need(get("MASTER_PORT").has_value(), "MASTER_PORT", &missing);
  } else {
    need(store.has_value(), "ALIQUOT_STORE", &missing);
  }
  if (!missing.empty()) return half_set(source, missing);
  if (store) {
    p->address = *store;
  } else {
    ALQ_ASSIGN(p->address, torchrun_address(one_host));
  }
  ALQ_ASSIGN(StoreAddress address, parse_store_address(p->address));
  bool loopback = names_loopback(address.host);
  if (loopback && !n.local_size) {
    p->local_rank = p->rank;
    p->local_size = p->size;
  }
  p->secret = get("ALIQUOT_SECRET").value_or("");
  if (p->secret.empty() && torchrun && !store && loopback) {
    p->secret = derived_secret(source);
  }
  if (p->secret.empty()) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "no secret protects the store at {}: set ALIQUOT_SECRET "
                      "to the same random text on every rank",
                      p->address);
  }
  return {};
}

Result<Place> place_from(const Source& source, const Numbers& n) {
  std::string missing;
  need(n.rank.has_value(), source.rank, &missing);
  need(n.size.has_value(), source.size, &missing);
  if (n.local_rank || n.local_size) {
    need(n.local_rank.has_value(), source.local_rank, &missing);
    need(n.local_size.has_value(), source.local_size, &missing);
  }
  if (!missing.empty()) return half_set(source, missing);
  Place p;
  p.source = source.name;
  p.rank = *n.rank;
  p.size = *n.size;
  p.local_rank = n.local_rank.value_or(0);
  p.local_size = n.local_size.value_or(p.size == 1 ? 1 : 0);
  // torchrun counts its restarts; text that is no number is none.
  std::string restart = get("TORCHELASTIC_RESTART_COUNT").value_or("0");
  std::from_chars(restart.data(), restart.data() + restart.size(),
                  p.generation);
  ALQ_TRY(check_ranges(source, p));
  if (p.size > 1) ALQ_TRY(fill_store(source, n, &p));
  return p;
}

// A launcher whose variables say "one of several", which nothing here reads:
// going on alone would train that many separate models.
Status check_unread_launchers() {
  struct Launcher {
    const char *name, *size;
  };
  for (Launcher l : {Launcher{"PMI", "PMI_SIZE"}}) {
    std::optional<std::string> size = get(l.size);
    if (!size || *size == "1" || *size == "0") continue;
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} started this process as one of {} ({}), but ranks "
                      "are read from the variables of aliquot run, torchrun, "
                      "Open MPI or Slurm: set "
                      "ALIQUOT_RANK, ALIQUOT_WORLD_SIZE, ALIQUOT_STORE and "
                      "ALIQUOT_SECRET in each",
                      l.name, size->substr(0, 20), l.size);
  }
  return {};
}

}  // namespace

Result<Place> place_from_environment() {
  ALQ_ASSIGN(Numbers own, read_numbers(kAliquot));
  ALQ_ASSIGN(Numbers torchrun, read_numbers(kTorchrun));
  ALQ_TRY(check_disagreement(own, torchrun));
  if (own.any()) return place_from(kAliquot, own);
  if (torchrun.any() || get("MASTER_ADDR") || get("MASTER_PORT")) {
    return place_from(kTorchrun, torchrun);
  }
  ALQ_ASSIGN(Numbers openmpi, read_numbers(kOpenMpi));
  if (openmpi.size) return place_from(kOpenMpi, openmpi);
  ALQ_ASSIGN(Numbers slurm, slurm_numbers());
  if (slurm.size) return place_from(kSlurm, slurm);
  if (get("ALIQUOT_STORE")) return place_from(kAliquot, own);
  ALQ_TRY(check_unread_launchers());
  Place alone;
  alone.source = "none";
  return alone;
}

}  // namespace aliquot
