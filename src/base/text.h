// UTF-8 text in places of a fixed size: what does not fit is cut between
// characters.
#pragma once

#include <cstddef>
#include <string_view>

namespace aliquot {

// Whether a byte goes on with a character that began before.
constexpr bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// The beginning of text, of at most so many bytes.
constexpr std::string_view fitting(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && continues_character(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

// The end of text, of at most so many bytes.
constexpr std::string_view fitting_end(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  size_t from = text.size() - bytes;
  while (from < text.size() && continues_character(text[from])) ++from;
  return text.substr(from);
}

// Always ends in a zero.
template <size_t N>
void copy_text(char (&to)[N], std::string_view from) {
  to[fitting(from, N - 1).copy(to, N - 1)] = '\0';
}

}  // namespace aliquot
