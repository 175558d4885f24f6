#include "tools/probes.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "aliquot/aliquot.h"
#include "tools/bench_team.h"
#include "tools/net.h"

namespace aliquot::tools {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// KiB of a line of /proc/meminfo; -1 if it is not there.
int64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    int64_t value = -1;
    words >> key >> value;
    if (key == name + ":") return value;
  }
  return -1;
}

// "always [madvise] never" -> "madvise".
std::string chosen(const std::string& line) {
  size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos
             ? "unknown"
             : line.substr(open + 1, close - open - 1);
}

std::string wrong(int error) {
  return fmt::format("{} (errno {})", std::strerror(error), error);
}

// Runs body in a child; what it wrote is returned, "" for nothing.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "pipe: " + wrong(errno);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(10);
    std::string text = body();
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string out;
  char buffer[1024];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    out.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  if (pid > 0) waitpid(pid, &status, 0);
  return status == 0 ? out : "the probe ended abnormally";
}

// ---------------------------------------------------------------- resources

Finding cores() {
  Finding f = {"cores", Verdict::kOk, "", ""};
  f.value = fmt::format("{} usable", usable_cores());
  std::string quota = first_line("/sys/fs/cgroup/cpu.max");
  if (!quota.empty() && !quota.starts_with("max")) {
    f.value += fmt::format(", container limit {} us", quota);
  }
  if (usable_cores() == 1) {
    f.verdict = Verdict::kNote;
    f.advice =
        "With one core ranks take turns; give the process more cores to "
        "gain speed.";
  }
  return f;
}

Finding memory() {
  Finding f = {"memory", Verdict::kOk, "", ""};
  double available = static_cast<double>(meminfo("MemAvailable")) * 1024;
  f.value = fmt::format("{:.1f} GiB available of {:.1f}", available / kGiB,
                        static_cast<double>(meminfo("MemTotal")) * 1024 / kGiB);
  std::string limit = first_line("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max") {
    f.value += fmt::format(", container limit {} bytes", limit);
  }
  if (available < kGiB) {
    f.verdict = Verdict::kNote;
    f.advice = "Less than 1 GiB is free; only small models will fit.";
  }
  return f;
}

Finding descriptors() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding f = {"open files", Verdict::kOk,
               fmt::format("{} per process", limit.rlim_cur), ""};
  if (limit.rlim_cur < 1024) {
    f.verdict = limit.rlim_cur < 64 ? Verdict::kBad : Verdict::kNote;
    f.advice =
        "Raise it with ulimit -n 4096: rank 0 needs one per rank while "
        "the ranks join, every rank a few per peer.";
  }
  return f;
}

// ------------------------------------------------------------------ sharing

Finding memfd() {
  Finding f = {"memfd", Verdict::kOk, "works", ""};
  int fd = memfd_create("aliquot doctor", MFD_CLOEXEC);
  void* p = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, 1 << 20) == 0) {
    p = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (p == MAP_FAILED) {
    f.verdict = Verdict::kBad;
    f.value = "fails: " + wrong(errno);
    f.advice =
        "Ranks share memory through memfd_create; allow it in the "
        "container's seccomp profile.";
  } else {
    std::memset(p, 1, 1 << 20);
    munmap(p, 1 << 20);
  }
  if (fd >= 0) close(fd);
  return f;
}

Finding dev_shm() {
  Finding f = {"/dev/shm", Verdict::kOk, "", ""};
  struct statvfs s = {};
  if (statvfs("/dev/shm", &s) != 0) {
    f.verdict = Verdict::kNote;
    f.value = "is not there";
    f.advice =
        "Aliquot does not need it, but other libraries of a training "
        "process may.";
    return f;
  }
  double free =
      static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  f.value = fmt::format("{:.2f} GiB free", free / kGiB);
  if (free < 64.0 * 1024 * 1024) {
    f.verdict = Verdict::kNote;
    f.advice =
        "Aliquot does not need it, but data loaders do; in a container "
        "raise it with --shm-size.";
  }
  return f;
}

// As one rank opens another's segment: through /proc/PID/fd.
Finding proc_fd() {
  Finding f = {"/proc/PID/fd", Verdict::kOk, "a peer's memory can be opened",
               ""};
  int fd = memfd_create("aliquot doctor", MFD_CLOEXEC);
  pid_t owner = getpid();
  std::string error = in_child([&]() -> std::string {
    std::string path = fmt::format("/proc/{}/fd/{}", owner, fd);
    // Its own copy would open too: it must be the owner's that works.
    close(fd);
    int peer = open(path.c_str(), O_RDWR | O_CLOEXEC);
    return peer >= 0 ? "" : wrong(errno);
  });
  if (fd >= 0) close(fd);
  if (error.empty()) return f;
  f.verdict = Verdict::kBad;
  f.value = "fails: " + error;
  f.advice =
      "Ranks map each other's memory through /proc; mount /proc and run "
      "all ranks as one user in one container.";
  return f;
}

// Two children, as two ranks are: one reads the other's memory.
Finding single_copy() {
  Finding f = {"process_vm_readv", Verdict::kOk, "a peer's memory can be read",
               ""};
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return f;
  static int secret = 0;
  pid_t peer = fork();
  if (peer == 0) {
    secret = 4711;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    (void)!write(pipe_ends[1], "x", 1);
    alarm(10);
    pause();
    _exit(0);
  }
  char ready = 0;
  (void)!read(pipe_ends[0], &ready, 1);
  std::string error = in_child([&]() -> std::string {
    int copy = 0;
    iovec local = {&copy, sizeof copy}, remote = {&secret, sizeof secret};
    ssize_t n = process_vm_readv(peer, &local, 1, &remote, 1, 0);
    if (n < 0) return wrong(errno);
    return copy == 4711 ? "" : "read wrong bytes";
  });
  if (peer > 0) {
    kill(peer, SIGKILL);
    waitpid(peer, nullptr, 0);
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  if (error.empty()) return f;
  f.verdict = Verdict::kNote;
  f.value = "fails: " + error;
  f.advice =
      "Ranks copy private buffers twice instead of once; use "
      "alq_buffer_alloc, or allow it (docker: --cap-add SYS_PTRACE).";
  return f;
}

Finding ptrace_scope() {
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  Finding f = {"ptrace scope", Verdict::kOk, scope.empty() ? "no Yama" : scope,
               ""};
  if (scope == "2" || scope == "3") {
    f.verdict = Verdict::kNote;
    f.advice =
        "Values 2 and 3 keep ranks from reading each other's private "
        "buffers; 0 or 1 allow it.";
  }
  return f;
}

Finding huge_pages() {
  constexpr const char* kBase = "/sys/kernel/mm/transparent_hugepage/";
  std::string own =
      chosen(first_line((std::string(kBase) + "enabled").c_str()));
  std::string shared =
      chosen(first_line((std::string(kBase) + "shmem_enabled").c_str()));
  Finding f = {"huge pages", Verdict::kOk,
               fmt::format("private {}, shared {}; {} reserved", own, shared,
                           std::max<int64_t>(meminfo("HugePages_Total"), 0)),
               ""};
  if (own == "never" || shared == "never" || shared == "deny") {
    f.verdict = Verdict::kNote;
    f.advice =
        "Large buffers are faster on huge pages; as root, until the next "
        "boot: (cd " +
        std::string(kBase) +
        "; echo madvise > enabled; echo advise > shmem_enabled).";
  }
  return f;
}

Finding loopback() {
  Finding f = {"loopback", Verdict::kOk, "a TCP connection works", ""};
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof a;
  auto* address = reinterpret_cast<sockaddr*>(&a);
  bool works = bind(listener, address, bytes) == 0 &&
               listen(listener, 1) == 0 &&
               getsockname(listener, address, &bytes) == 0 &&
               connect(client, address, bytes) == 0;
  if (!works) {
    f.verdict = Verdict::kBad;
    f.value = "fails: " + wrong(errno);
    f.advice =
        "Ranks find each other over 127.0.0.1; bring the loopback "
        "interface up (ip link set lo up).";
  }
  close(client);
  close(listener);
  return f;
}

// ---------------------------------------------------------------- libraries

struct Optional {
  const char* name;
  const char* feature;  // of this build, see alq_has
  const char* use;
  std::vector<const char*> sonames;
};

// In a child: a library's own start-up code stays out of this process.
std::string load_path(const Optional& library,
                      const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    for (const char* soname : library.sonames) {
      names.push_back(folder + "/" + soname);
    }
  }
  names.insert(names.end(), library.sonames.begin(), library.sonames.end());
  return in_child([&]() -> std::string {
    for (const std::string& name : names) {
      void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
      link_map* map = nullptr;
      if (handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
        return map->l_name;
      }
    }
    return "";
  });
}

Finding optional_library(const Optional& library,
                         const std::vector<std::string>& folders) {
  Finding f = {library.name, Verdict::kOk, "", ""};
  std::string path = load_path(library, folders);
  bool built = alq_has(library.feature) == 1;
  f.value = path.empty() ? "none here" : path;
  if (!built) {
    f.value += fmt::format("; this build has no {}", library.feature);
  } else if (path.empty()) {
    f.advice =
        fmt::format("Install {} for {}.", library.sonames[0], library.use);
  }
  return f;
}

}  // namespace

std::vector<Finding> probe_resources() {
  return {cores(), memory(), descriptors()};
}

std::vector<Finding> probe_sharing() {
  return {memfd(),   proc_fd(),    single_copy(), ptrace_scope(),
          dev_shm(), huge_pages(), loopback()};
}

std::vector<Finding> probe_libraries(const std::vector<std::string>& folders) {
  std::vector<Finding> out;
  for (const Optional& library : {
           Optional{"CUDA driver", "device.cuda", "GPUs", {"libcuda.so.1"}},
           Optional{
               "NCCL", "backend.nccl", "GPU collectives", {"libnccl.so.2"}},
           Optional{
               "UCX", "backend.ucx", "ranks on several hosts", {"libucp.so.0"}},
           Optional{"BLAS",
                    "kernel.blas",
                    "fast matrix products on the CPU",
                    {"libopenblas.so.0", "libblas.so.3"}},
       }) {
    out.push_back(optional_library(library, folders));
  }
  return out;
}

}  // namespace aliquot::tools
