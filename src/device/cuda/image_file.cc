// The driver is given an image without its length and trusts what it says of
// itself, so a file that was cut would make it read beyond.
#include "device/cuda/image_file.h"

#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace aliquot::cuda {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;

// What a fatbin begins with.
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t body_bytes;
};
constexpr uint32_t kFatbinMagic = 0xba55ed50;

template <typename T>
bool read_front(const std::vector<char>& bytes, T* into) {
  if (bytes.size() < sizeof *into) return false;
  std::memcpy(into, bytes.data(), sizeof *into);
  return true;
}

bool fits(uint64_t begin, uint64_t length, size_t size) {
  return begin <= size && length <= size - begin;
}

bool whole_fatbin(const std::vector<char>& bytes) {
  FatbinHeader header = {};
  return read_front(bytes, &header) && header.header_bytes >= sizeof header &&
         fits(header.header_bytes, header.body_bytes, bytes.size());
}

bool whole_elf(const std::vector<char>& bytes) {
  Elf64_Ehdr header = {};
  return read_front(bytes, &header) &&
         fits(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize,
              bytes.size()) &&
         fits(header.e_phoff, uint64_t{header.e_phnum} * header.e_phentsize,
              bytes.size());
}

// Of what kind it is, and whether all of it is there.
Status check_whole(const std::vector<char>& bytes, const std::string& path) {
  uint32_t magic = 0;
  read_front(bytes, &magic);
  const bool elf = bytes.size() >= SELFMAG &&
                   std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
  if (magic == kFatbinMagic ? whole_fatbin(bytes) : elf && whole_elf(bytes)) {
    return {};
  }
  const bool text = std::memchr(bytes.data(), 0, bytes.size()) == nullptr;
  if (magic != kFatbinMagic && !elf && text) return {};
  return make_error(ALQ_INVALID_ARGUMENT,
                    "the hint cuda_image={} names a file of {} bytes that is "
                    "no whole fatbin, cubin or PTX",
                    path, bytes.size());
}

}  // namespace

Result<std::vector<char>> read_image(const std::string& path) {
  // Neither a pipe, which may wait for ever, nor a device, which may not end.
  struct stat info = {};
  const bool regular = stat(path.c_str(), &info) == 0 &&
                       S_ISREG(info.st_mode) && info.st_size > 0 &&
                       info.st_size <= kMostBytes;
  std::vector<char> bytes;
  if (regular) {
    bytes.resize(static_cast<size_t>(info.st_size));
    std::ifstream in(path, std::ios::binary);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(
        static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  }
  if (bytes.empty()) {
    return make_error(ALQ_NOT_FOUND,
                      "the hint cuda_image={} names no readable file of 1 "
                      "byte to {} MiB",
                      path, kMostBytes >> 20);
  }
  ALQ_TRY(check_whole(bytes, path));
  bytes.push_back(0);
  return bytes;
}

}  // namespace aliquot::cuda
