// The order of a training: which samples each step takes, by NumPy's generator, so that a seed gives the order of every client.
#pragma once

#include "edgefl.hpp"

#include <array>
#include <sstream>

namespace edgefl {

// NumPy's default generator: PCG64 (O'Neill 2014), seeded by SeedSequence with [seed, purpose].
class Random {
 public:
  Random(uint64_t seed, uint32_t purpose) {
    std::vector<uint32_t> entropy = {uint32_t(seed)};
    if (seed >> 32) entropy.push_back(uint32_t(seed >> 32));
    entropy.push_back(purpose);
    const auto words = seed_words(entropy);
    increment_ = {words[2] << 1 | words[3] >> 63, words[3] << 1 | 1};
    advance();
    add({words[0], words[1]});
    advance();
  }

  double fraction() { return double(next64() >> 11) / 9007199254740992.0; }  // from 0 to below 1
  bool coin() { return next32() >> 31; }

  std::vector<size_t> permutation(size_t count) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = count; i-- > 1;) std::swap(order[i], order[up_to(uint32_t(i))]);
    return order;
  }

  // Where it is: hexadecimal digits of its state, and after a colon the half of a number that is left for the next draw.
  std::string spot() const {
    char text[48];
    int length = state_.high ? std::snprintf(text, sizeof text, "%llx%016llx", wide(state_.high), wide(state_.low)) : std::snprintf(text, sizeof text, "%llx", wide(state_.low));
    if (has_left_) length += std::snprintf(text + length, sizeof text - size_t(length), ":%x", left_);
    return {text, size_t(length)};
  }

  void move(const std::string& spot) {
    const size_t colon = std::min(spot.find(':'), spot.size()), low = colon < 16 ? 0 : colon - 16;
    const auto number = [](const std::string& digits) { return digits.empty() ? 0 : std::stoull(digits, nullptr, 16); };
    state_ = {number(spot.substr(0, low)), number(spot.substr(low, colon - low))};
    has_left_ = colon < spot.size();
    left_ = has_left_ ? uint32_t(number(spot.substr(colon + 1))) : 0;
  }

 private:
  struct Wide { uint64_t high, low; };
  static unsigned long long wide(uint64_t value) { return value; }

  static std::array<uint64_t, 4> seed_words(const std::vector<uint32_t>& entropy) {
    uint32_t constant = 0x43b0d7e5;
    const auto hashed = [&constant](uint32_t value, uint32_t factor) {
      value ^= constant;
      constant *= factor;
      value *= constant;
      return value ^ value >> 16;
    };
    std::array<uint32_t, 4> pool{};
    for (size_t i = 0; i < 4; ++i) pool[i] = hashed(i < entropy.size() ? entropy[i] : 0, 0x931e8875);
    for (size_t from = 0; from < 4; ++from)
      for (size_t to = 0; to < 4; ++to)
        if (from != to) {
          const uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hashed(pool[from], 0x931e8875);
          pool[to] = mixed ^ mixed >> 16;
        }
    constant = 0x8b51f9dd;
    std::array<uint64_t, 4> words{};
    for (size_t i = 0; i < 8; ++i) words[i / 2] |= uint64_t(hashed(pool[i % 4], 0x58f38ded)) << 32 * (i % 2);
    return words;
  }

  static uint64_t high_product(uint64_t a, uint64_t b) {
    const uint64_t al = uint32_t(a), ah = a >> 32, bl = uint32_t(b), bh = b >> 32;
    const uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + uint32_t(middle);
    return ah * bh + (middle >> 32) + (other >> 32);
  }

  void add(Wide value) {
    state_.low += value.low;
    state_.high += value.high + (state_.low < value.low);
  }

  void advance() {
    const Wide factor = {0x2360ed051fc65da4, 0x4385df649fccf645};
    state_ = {high_product(state_.low, factor.low) + state_.high * factor.low + state_.low * factor.high, state_.low * factor.low};
    add(increment_);
  }

  uint64_t next64() {
    advance();
    const uint64_t word = state_.high ^ state_.low, turn = state_.high >> 58;
    return word >> turn | word << (-turn & 63);
  }

  uint32_t next32() {
    has_left_ = !has_left_;
    if (!has_left_) return left_;
    const uint64_t word = next64();
    left_ = uint32_t(word >> 32);
    return uint32_t(word);
  }

  uint32_t up_to(uint32_t most) {  // as NumPy shuffles: numbers that are too large are dropped
    uint32_t mask = most;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    for (;;)
      if (const uint32_t value = next32() & mask; value <= most) return value;
  }

  Wide state_ = {0, 0}, increment_ = {0, 0};
  bool has_left_ = false;
  uint32_t left_ = 0;
};

// The samples of each step, its graph, and the samples that it mirrors. A state has its place, from which every client continues.
class Order {
 public:
  Order(size_t samples, size_t size, uint64_t seed) : samples_(samples), size_(size), seed_(seed), generators_{{{seed, 0}, {seed, 1}, {seed, 2}}} {}

  std::vector<size_t> batch() {  // shuffled in every epoch; the last batch of an epoch may be smaller
    if (taken_ == 0 || taken_ == samples_) shuffle();
    const size_t first = taken_;
    taken_ = std::min(samples_, taken_ + size_);
    return {index_.begin() + std::ptrdiff_t(first), index_.begin() + std::ptrdiff_t(taken_)};
  }

  size_t graph(size_t count) { return size_t(generators_[1].fraction() * double(count)); }
  bool mirrored() { return generators_[2].coin(); }

  std::string place() const {
    return std::to_string(seed_) + " " + std::to_string(taken_) + " " + (taken_ ? epoch_ : generators_[0].spot()) + " " + generators_[1].spot() + " " + generators_[2].spot();
  }

  // Continues from a place; `where` it was read begins the messages.
  void move(const std::string& place, const std::string& where) {
    const Strings words = parts(place, where);
    for (size_t i = 0; i < 3; ++i) generators_[i].move(words[i + 2]);
    const size_t taken = std::stoull(words[1]);
    if (taken > samples_) throw Error(where + ": its order of samples is damaged: train again");
    if (taken) shuffle();
    taken_ = taken;
  }

  // The words of a place, the seed first.
  static Strings parts(const std::string& place, const std::string& where) {
    const auto are = [](const std::string& text, const char* digits, size_t most) {
      return !text.empty() && text.size() <= most && text.find_first_not_of(digits) == std::string::npos;
    };
    const char *const decimal = "0123456789", *const hexadecimal = "0123456789abcdef";
    std::istringstream text(place);
    Strings words;
    for (std::string word; text >> word;) words.push_back(word);
    bool right = words.size() == 5 && are(words[0], decimal, 4000) && are(words[1], decimal, 18);
    for (size_t i = 2; right && i < 5; ++i) {
      const size_t colon = words[i].find(':');
      right = are(words[i].substr(0, colon), hexadecimal, 32) && (colon == std::string::npos || are(words[i].substr(colon + 1), hexadecimal, 8));
    }
    if (!right) throw Error(where + ": its order of samples is damaged: train again");
    return words;
  }

 private:
  void shuffle() {
    epoch_ = generators_[0].spot();
    index_ = generators_[0].permutation(samples_);
    taken_ = 0;
  }

  size_t samples_, size_;
  uint64_t seed_;
  std::array<Random, 3> generators_;
  std::string epoch_;  // the first generator before this epoch
  std::vector<size_t> index_;
  size_t taken_ = 0;
};
}  // namespace edgefl
