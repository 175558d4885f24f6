// aliquot doctor, bench coll and version: their reports.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "aliquot/aliquot.h"
#include "base/json.h"
#include "multi/tools/process.h"

namespace aliquot::testing {
namespace {

std::string temporary_file() {
  char name[] = "/tmp/aliquot-bench-XXXXXX";
  int fd = mkstemp(name);
  close(fd);
  return name;
}

BOOST_AUTO_TEST_CASE(version_is_the_headers) {
  Outcome o = aliquot({"version"});
  BOOST_TEST(o.code == 0);
  std::string expected = "aliquot " + std::to_string(ALQ_VERSION_MAJOR) + "." +
                         std::to_string(ALQ_VERSION_MINOR) + "." +
                         std::to_string(ALQ_VERSION_PATCH) + "\n";
  BOOST_TEST(o.out.starts_with(expected), o.out);
  BOOST_TEST(aliquot({"--version"}).out == aliquot({"version"}).out);
  Result<Json> json = Json::parse(aliquot({"version", "--json"}).out);
  BOOST_REQUIRE(json.ok());
  BOOST_TEST(json->at("abi").as_string() == std::to_string(ALQ_ABI_MAJOR) +
                                                "." +
                                                std::to_string(ALQ_ABI_MINOR));
}

BOOST_AUTO_TEST_CASE(doctor_finds_this_machine_fit) {
  Outcome o = aliquot({"doctor", "--json"});
  BOOST_TEST(o.code == 0, o.out << o.err);
  Result<Json> json = Json::parse(o.out);
  BOOST_REQUIRE(json.ok());
  BOOST_TEST(json->at("cpu_ranks_can_run").as_bool());
  BOOST_TEST(json->at("runtime").at("world_size").as_int() == 1);
  BOOST_TEST(json->at("sharing").size() == 7u);
  BOOST_TEST(json->at("optional libraries").size() == 4u);
  for (const char* section :
       {"resources", "sharing", "optional libraries", "ranks"}) {
    for (size_t i = 0; i < json->at(section).size(); ++i) {
      const Json& finding = json->at(section).at(i);
      BOOST_TEST(!finding.at("value").as_string().empty());
      // A problem comes with a sentence of advice.
      if (finding.at("verdict").as_string() != "ok") {
        BOOST_TEST(finding.at("advice").as_string().ends_with("."),
                   finding.at("name").as_string());
      }
    }
  }
  o = aliquot({"doctor"});
  BOOST_TEST(o.code == 0);
  BOOST_TEST(count_of(o.out, "CPU ranks can run here.") == 1u);
}

BOOST_AUTO_TEST_CASE(doctor_looks_into_folders_first) {
  // A library of the system stands in, under a name that is looked for.
  void* handle = dlopen("libresolv.so.2", RTLD_LAZY);
  link_map* map = nullptr;
  BOOST_REQUIRE(handle != nullptr);
  BOOST_REQUIRE(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
  char folder[] = "/tmp/aliquot-doctor-XXXXXX";
  BOOST_REQUIRE(mkdtemp(folder) != nullptr);
  std::string name = std::string(folder) + "/libnccl.so.2";
  BOOST_REQUIRE(symlink(map->l_name, name.c_str()) == 0);
  Outcome o =
      aliquot({"doctor", "--library-dir", folder, "--library-dir", "/nowhere"});
  BOOST_TEST(o.code == 0, o.out << o.err);
  BOOST_TEST(o.out.find("ok    " + name) != std::string::npos, o.out);
  unlink(name.c_str());
  rmdir(folder);
  dlclose(handle);
}

BOOST_AUTO_TEST_CASE(doctor_sees_too_few_descriptors) {
  Outcome o = Process({"/bin/sh", "-c",
                       std::string("ulimit -n 100; exec ") + ALIQUOT_COMMAND +
                           " doctor"})
                  .finish();
  BOOST_TEST(o.code == 0, o.out << o.err);
  BOOST_TEST(o.out.find("note  100 per process") != std::string::npos, o.out);
  BOOST_TEST(o.out.find("ulimit -n 4096") != std::string::npos, o.out);
}

// Each case verifies every bit before it is timed; 300 bytes divide by nothing.
BOOST_AUTO_TEST_CASE(bench_verifies_and_reports_every_case) {
  std::string file = temporary_file();
  Outcome o = aliquot({"bench", "coll", "-n", "3", "--sizes", "300,48K",
                       "--pairs", "2", "--batch-ms", "0.1", "--json", file});
  BOOST_TEST(o.code == 0, o.out << o.err);
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  unlink(file.c_str());
  Result<Json> json = Json::parse(text.str());
  BOOST_REQUIRE(json.ok());
  BOOST_TEST(json->at("ranks").as_int() == 3);
  const Json& results = json->at("results");
  // 3 buffers x 2 sizes x (3 ops x 2 places + broadcast + all_to_all) + barrier
  BOOST_TEST(results.size() == 2u * 3u * 8u + 1u);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& r = results.at(i);
    const Json& ratio = r.at("ratio");
    BOOST_TEST(r.at("seconds").at("median").as_double() > 0);
    BOOST_TEST(r.at("bare_seconds").at("median").as_double() > 0);
    BOOST_TEST(ratio.at("p10").as_double() <= ratio.at("median").as_double());
    BOOST_TEST(ratio.at("median").as_double() <= ratio.at("p90").as_double());
  }
}

// Where one rank may read the other's memory there is a second bare loop, which
// is verified as well; it is for two ranks and for private buffers.
BOOST_AUTO_TEST_CASE(bench_compares_private_buffers_with_bare_calls) {
  std::string file = temporary_file();
  Outcome o = aliquot({"bench", "coll", "-n", "2", "--ops",
                       "all_reduce,all_gather,reduce_scatter", "--sizes",
                       "300,3M", "--buffers", "shared,private", "--pairs", "1",
                       "--batch-ms", "0.1", "--json", file});
  BOOST_TEST(o.code == 0, o.out << o.err);
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  unlink(file.c_str());
  Result<Json> json = Json::parse(text.str());
  BOOST_REQUIRE(json.ok());
  const Json& results = json->at("results");
  BOOST_TEST(results.size() == 2u * 2u * 6u);
  size_t with_calls = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& seconds = results.at(i).at("calls_seconds");
    if (seconds.is_null()) continue;
    BOOST_TEST(results.at(i).at("buffers").as_string() == "private");
    BOOST_TEST(seconds.at("median").as_double() > 0);
    ++with_calls;
  }
  // All or, where reading is forbidden, none.
  BOOST_TEST((with_calls == 12 || with_calls == 0));
}

BOOST_AUTO_TEST_CASE(bench_says_when_its_report_cannot_be_written) {
  Outcome o = aliquot({"bench", "coll", "--ops", "barrier", "--pairs", "1",
                       "--batch-ms", "0.1", "--json", "/nonexistent/x"});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(o.err.find("/nonexistent/x: No such") != std::string::npos, o.err);
  BOOST_TEST(o.out == "");  // nothing was measured for it
}

}  // namespace
}  // namespace aliquot::testing
