#include "base/written_once.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <functional>
#include <new>

#include "base/clock.h"

namespace aliquot {
namespace {

using State = WrittenOnce::State;

struct Record {
  WrittenOnce once;
  int value = 0;
};

// Ranks and processes of the largest numbers do not run into one another.
BOOST_AUTO_TEST_CASE(every_rank_can_write) {
  for (int32_t rank : {0, 1, 31, 32, 63}) {
    WrittenOnce once;
    BOOST_TEST(once.begin(rank));
    BOOST_TEST(once.writer().rank == rank);
    BOOST_TEST(once.writer().pid == getpid());
  }
}

// A record that a child writes.
class Shared {
 public:
  explicit Shared(const std::function<void(Record&)>& child) {
    void* page = mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(page != MAP_FAILED);
    record_ = new (page) Record;
    pid_ = fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      child(*record_);
      _exit(0);
    }
    for (int i = 0; !record_->once.begun() && i < 10'000; ++i) usleep(1000);
  }
  ~Shared() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(record_, sizeof(Record));
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  Record& operator*() const { return *record_; }
  Record* operator->() const { return record_; }
  pid_t pid() const { return pid_; }

 private:
  Record* record_;
  pid_t pid_;
};

BOOST_AUTO_TEST_CASE(the_first_writes) {
  Record record;
  BOOST_TEST((record.once.state() == State::kNot));
  BOOST_TEST(record.once.word().load() == 0U);
  BOOST_TEST(record.once.begin(7));
  BOOST_TEST(record.once.begun());
  BOOST_TEST(record.once.writer().pid == getpid());
  BOOST_TEST(record.once.writer().rank == 7);
  BOOST_TEST(!record.once.begin(7));
  record.once.end();
  BOOST_TEST((record.once.state() == State::kWhole));
  BOOST_TEST(record.once.writer().rank == -1);
  BOOST_TEST(!record.once.begin(7));
}

BOOST_AUTO_TEST_CASE(a_slow_writer_is_waited_for) {
  Shared record([](Record& r) {
    r.once.begin(7);
    usleep(200'000);
    r.value = 7;
    r.once.end();
  });
  BOOST_TEST((record->once.state() == State::kWhole));
  BOOST_TEST(record->value == 7);
}

BOOST_AUTO_TEST_CASE(a_writer_that_ended_is_not) {
  Shared record([](Record& r) { r.once.begin(7); });
  BOOST_TEST((record->once.state() == State::kUnfinished));
  BOOST_TEST(record->once.writer().pid == record.pid());
  const Status error = record->once.unfinished("why");
  BOOST_TEST(error.rank() == 7);
  BOOST_TEST(error.message() ==
             fmt::format("rank 7 (process {}) ended, or was stopped, while it "
                         "wrote down why",
                         record.pid()));
}

BOOST_AUTO_TEST_CASE(a_writer_that_is_stopped_is_for_a_while) {
  Shared record([](Record& r) {
    r.once.begin(7);
    raise(SIGSTOP);
    r.once.end();
  });
  const int64_t begun = now_ns();
  BOOST_TEST((record->once.state() == State::kUnfinished));
  const int64_t waited = now_ns() - begun;
  BOOST_TEST(waited > 900'000'000);
  // Given up by one, for all and for good.
  for (int i = 0; i < 100; ++i) {
    BOOST_TEST((record->once.state() == State::kUnfinished));
  }
  BOOST_TEST(now_ns() - begun - waited < waited / 2);
  kill(record.pid(), SIGCONT);
  waitpid(record.pid(), nullptr, 0);
  BOOST_TEST((record->once.state() == State::kUnfinished));
  BOOST_TEST(record->once.writer().pid == record.pid());
}

}  // namespace
}  // namespace aliquot
