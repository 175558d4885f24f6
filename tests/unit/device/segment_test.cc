// Shared memory without names.
#include "device/cpu/segment.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "device/cpu/cpu_device.h"
#include "support/ranks.h"

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(memory_is_zeroed_aligned_and_given_back) {
  int fds = test::open_fds(), maps = test::memfd_mappings();
  {
    auto device =
        *cpu_device(std::make_shared<Context>(0, 1), ALQ_PROGRESS_OFF);
    auto memory = std::move(*device->allocate(3 * 4096 + 5, "m"));
    BOOST_TEST(memory->bytes() == 3 * 4096 + 5);
    BOOST_TEST(reinterpret_cast<uintptr_t>(memory->data()) % 4096 == 0u);
    std::vector<std::byte> zeros(static_cast<size_t>(memory->bytes()));
    BOOST_TEST(std::memcmp(memory->data(), zeros.data(), zeros.size()) == 0);
    unsigned char resident[4] = {};
    BOOST_REQUIRE(mincore(memory->data(), 4 * 4096, resident) == 0);
    for (unsigned char page : resident) BOOST_TEST((page & 1) == 1);
    BOOST_TEST(test::open_fds() == fds + 1);
    auto& table = *device->segments();
    BOOST_TEST(table.find(memory->data() + 7, 100) != nullptr);
    BOOST_TEST(table.find(memory->data() + 7, memory->bytes()) == nullptr);
    BOOST_TEST(table.find(&table, 1) == nullptr);
  }
  BOOST_TEST(test::open_fds() == fds);
  BOOST_TEST(test::memfd_mappings() == maps);
}

BOOST_AUTO_TEST_CASE(sizes_that_can_not_be_are_refused) {
  BOOST_TEST(Segment::create(0, "m", true).status().code() ==
             ALQ_INVALID_ARGUMENT);
  Status huge = Segment::create(int64_t{1} << 60, "m", true).status();
  BOOST_TEST(huge.code() == ALQ_RESOURCE_EXHAUSTED);
  BOOST_TEST(huge.message().find("are free") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(within_a_process_a_segment_is_itself) {
  auto segment = *Segment::create(100, "m", true);
  auto again = *Segment::attach(segment->ref());
  BOOST_TEST(again.get() == segment.get());
}

BOOST_AUTO_TEST_CASE(another_process_maps_it_and_checks_the_nonce) {
  auto segment = *Segment::create(8192, "m", true);
  segment->data()[8191] = std::byte{77};
  // The child attaches as a stranger: it opens the parent's descriptor.
  pid_t child = fork();
  if (child == 0) {
    SegmentRef ref = segment->ref();
    SegmentRef wrong = ref;
    wrong.nonce ^= 1;
    bool refused = Segment::attach(wrong).status().code() == ALQ_UNAVAILABLE;
    SegmentRef other_size = ref;
    other_size.bytes = 4096;
    refused &= Segment::attach(other_size).status().code() == ALQ_UNAVAILABLE;
    SegmentRef no_fd = ref;
    no_fd.nonce ^= 2;
    no_fd.fd = 9999;
    refused &= Segment::attach(no_fd).status().code() == ALQ_UNAVAILABLE;
    // It can not be made smaller under its readers.
    refused &= ftruncate(ref.fd, 4096) != 0;
    _exit(refused && segment->data()[8191] == std::byte{77} ? 0 : 1);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST(WEXITSTATUS(status) == 0);
}

// A host without standard output prints into whatever has its number.
BOOST_AUTO_TEST_CASE(memory_never_takes_the_place_of_standard_output) {
  pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
    auto segment = Segment::create(100, "m", false);
    _exit(segment.ok() && (*segment)->ref().fd > 2 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  BOOST_TEST(status == 0);
}

// The signal of the limit ends nobody who has no handler for it.
BOOST_AUTO_TEST_CASE(a_limit_of_file_sizes_is_an_error) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_DFL);
    rlimit little{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &little);
    auto segment = Segment::create(1 << 20, "m", false);
    sigset_t pending;
    sigpending(&pending);
    bool clean = sigismember(&pending, SIGXFSZ) == 0;
    _exit(segment.status().code() == ALQ_RESOURCE_EXHAUSTED && clean ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_CASE(freeing_tells_the_nonce_once_nobody_uses_it) {
  SegmentTable table;
  uint64_t freed = 0;
  table.set_on_free([&](uint64_t nonce) {
    freed = nonce;
    return nullptr;
  });
  auto segment = *Segment::create(100, "m", false);
  uint64_t nonce = segment->ref().nonce;
  table.add(segment, true);
  table.remove(segment->data());
  BOOST_TEST(freed == 0u);
  segment.reset();
  BOOST_TEST(freed == nonce);
}

// Whoever is told may be gone but for the telling.
BOOST_AUTO_TEST_CASE(the_end_of_who_is_told_may_set_the_hook) {
  struct Owner {
    SegmentTable& table;
    ~Owner() { table.set_on_free(nullptr); }
  };
  SegmentTable table;
  auto owner = std::make_shared<Owner>(table);
  table.set_on_free([&owner, w = std::weak_ptr<Owner>(owner)](uint64_t) {
    std::shared_ptr<Owner> last = w.lock();
    owner.reset();
    return last;
  });
  auto segment = *Segment::create(100, "m", false);
  table.add(segment, true);
  table.remove(segment->data());
  segment.reset();
  BOOST_TEST((owner == nullptr));
}

}  // namespace
}  // namespace aliquot
