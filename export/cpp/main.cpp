// Runs and trains the models of a bundle: `edgefl-client` without arguments prints how.
#include "update.hpp"

#include <iostream>
#include <limits>
#include <type_traits>

using namespace edgefl;

static const char* const kUsage =
    "edgefl-client check BUNDLE                    compares every tier with its reference\n"
    "edgefl-client infer BUNDLE TIER DATA          prints the class and the logits of each sample, or a regression's outputs\n"
    "edgefl-client train BUNDLE TIER DATA [--out UPDATE] [--state FILE] [--client NAME] [--device-key FILE]\n"
    "                    [--epochs N] [--batch-size N] [--lr RATE] [--seed N] [--checkpoint FILE] [--checkpoint-every N]\n"
    "                    writes the update, the state, from which it continues, or both; some bundles send no updates.\n"
    "                    --checkpoint: the file from which an interrupted training continues, written every 10 steps, or N\n"
    "Every command needs --key FILE, the publisher's public key, or --allow-unsigned. --threads N: of onnxruntime [1].\n"
    "DATA is a safetensors file: x, or x.NAME for each of several inputs; for training also y,\n"
    "labels int64, or targets float32 of a regression. Pixels of 8 and 16 bits are prepared as the manifest says, and floats if it has raw.\n";

using Flags = std::map<std::string, std::string>;

static const Strings kOfAll = {"--key", "--allow-unsigned", "--threads"};
static const Strings kOfTraining = {"--out", "--state", "--client", "--device-key", "--epochs", "--batch-size", "--lr", "--seed", "--checkpoint", "--checkpoint-every"};

static bool holds(const Strings& names, const std::string& name) { return std::count(names.begin(), names.end(), name) != 0; }

// Splits a command line into words and options; Error if an option is not one of the command's, or has no value.
static void parse(const Strings& given, Strings& words, Flags& flags) {
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& name = given[i];
    if (name.rfind("--", 0) != 0) {
      words.push_back(name);
      continue;
    }
    if (!holds(kOfAll, name) && !(words.at(0) == "train" && holds(kOfTraining, name))) throw Error(name + ": " + words[0] + " has no such option");
    if (name == "--allow-unsigned") flags[name];
    else if (++i < given.size()) flags[name] = given[i];
    else throw Error(name + ": a value is missing");
  }
}

// The number of an option, of the type of `usual`, which stands for an option that is not given: positive, or with `zero` not negative.
template <class Number>
static Number number(const Flags& flags, const std::string& name, Number usual, bool zero = false) {
  const auto given = flags.find(name);
  if (given == flags.end()) return usual;
  std::istringstream text(given->second);
  Number found{};
  if (given->second[0] == '-' || !(text >> found) || !text.eof() || !(found > 0 || zero))
    throw Error(name + ": got " + given->second + ", expected a " + (std::is_integral_v<Number> ? "whole " : "") + "number " + (zero ? "from 0 to " + std::to_string(std::numeric_limits<Number>::max()) : "above 0"));
  return found;
}

// Control, format and private characters, and separators of lines: first and last of each range.
static const char32_t kHidden[][2] = {
    {0x0, 0x8}, {0xB, 0x1F}, {0x7F, 0x9F}, {0xAD, 0xAD}, {0x600, 0x605}, {0x61C, 0x61C}, {0x6DD, 0x6DD}, {0x70F, 0x70F}, {0x890, 0x891},
    {0x8E2, 0x8E2}, {0x180E, 0x180E}, {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F}, {0xD800, 0xF8FF}, {0xFEFF, 0xFEFF},
    {0xFFF0, 0xFFFB}, {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF},
    {0xF0000, 0x10FFFF}};

// `text` without characters that would change a terminal, such as escape codes in the name of a class, and without bytes that are not UTF-8.
static std::string printable(const std::string& text) {
  std::string found;
  for (size_t at = 0; at < text.size();) {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    char32_t code = length == 1 ? first : first & (0x7F >> length);
    bool shown = (first < 0x80 || (first >= 0xC2 && first <= 0xF4)) && at + length <= text.size();
    for (size_t i = 1; shown && i < length; ++i) {
      const unsigned char next = static_cast<unsigned char>(text[at + i]);
      shown = (next & 0xC0) == 0x80;
      code = (code << 6) | (next & 0x3F);
    }
    const size_t taken = shown ? length : 1;
    shown = shown && !(length == 3 && code < 0x800) && !(length == 4 && code < 0x10000);
    for (const auto& range : kHidden) shown = shown && !(code >= range[0] && code <= range[1]);
    found += shown ? text.substr(at, taken) : "\xEF\xBF\xBD";  // U+FFFD
    at += taken;
  }
  return found;
}

// Says what went wrong, and returns the exit status.
static int failed(const std::string& what, int status) {
  std::cerr << "Error: " << printable(what) << "\n";
  return status;
}

static void print(const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) std::cout << (i ? "\t" : "") << values[i];
  std::cout << "\n";
}

static double difference(const Tensor& one, const Tensor& other) {
  if (one.shape != other.shape) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < one.bytes.size() / 4; ++i) {
    const double apart = std::fabs(double(one.data<float>()[i]) - double(other.data<float>()[i]));
    if (!(apart <= worst)) worst = apart;
  }
  return worst;
}

// Takes out of a training reference what the tensors are after its steps: every k-th value, at most 256 of each.
static Tensors after(Tensors& reference) {
  Tensors found;
  for (auto it = reference.begin(); it != reference.end();)
    if (it->first.rfind("after:", 0) == 0) {
      found.emplace(it->first.substr(6), std::move(it->second));
      it = reference.erase(it);
    } else {
      ++it;
    }
  return found;
}

// The largest difference of tensors from `expected` ones, as a share of what is allowed: a thousandth of the largest value, and `slack`.
static double apart(const Tensors& tensors, const Tensors& expected, double slack) {
  double worst = 0;
  for (const auto& [name, tensor] : expected) {
    floats(tensor, "after:" + name);
    floats(tensors.at(name), name);
    const size_t kept = count_of(tensor.shape), all = count_of(tensors.at(name).shape), step = std::max<size_t>(1, (all + 255) / 256);
    if (kept != (all + step - 1) / step) throw Error("after:" + name + ": " + std::to_string(kept) + " values, of a tensor with " + std::to_string(all));
    double largest = 0, difference = 0;
    for (size_t i = 0; i < kept; ++i) {
      largest = std::max(largest, std::fabs(double(tensor.data<float>()[i])));
      const double one = std::fabs(double(tensors.at(name).data<float>()[i * step]) - double(tensor.data<float>()[i]));
      if (!(one <= difference)) difference = one;
    }
    worst = std::max(worst, difference / (1e-3 * largest + slack));
  }
  return worst;
}

// Compares a tier with its references: outputs, and the losses and tensors of three steps of the first training graph.
static bool check(const Bundle& bundle, const Json& tier) {
  const std::string label = tier.at("label");
  Tensors reference = bundle.tensors(tier.at("reference"));
  const Tensor logits = std::move(reference.at("logits"));
  floats(logits, "logits");
  reference.erase("logits");
  const double outputs = difference(infer(bundle, label, reference), logits);
  double losses = 0, tensors = 0;
  if (!tier.at("train").is_null()) {
    reference = bundle.tensors(tier.at("train").at("reference"));
    const Tensor expected = std::move(reference.at("losses"));
    floats(expected, "losses", 3);
    reference.erase("losses");
    const Tensors ended = after(reference);
    Tensor every = zeros({bundle.manifest.at("classes")}, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
    std::fill(every.bytes.begin(), every.bytes.end(), 1);
    Steps steps(bundle, label, 0, 0, every);
    for (size_t i = 0; i < 3; ++i) losses = std::max(losses, std::fabs(steps.step(reference, 0, i + 1) / double(expected.data<float>()[i]) - 1));
    const double lr = steps.table.at("lr");
    // Adam divides by the gradient: a step is as long for one that is only rounding.
    tensors = apart(steps.tensors(), ended, 1e-5 + (steps.table.at("optimizer") == "adam" ? 6 * lr : 0));
  }
  double largest = 1;
  for (size_t i = 0; i < logits.bytes.size() / 4; ++i) largest = std::max(largest, std::fabs(double(logits.data<float>()[i])));
  const bool right = outputs <= 1e-4 * largest && losses <= 1e-3 && tensors <= 1;
  std::cout << "tier " << printable(label) << ": outputs differ by " << outputs << ", losses by " << losses << ", weights by " << 100 * tensors << " % of what is allowed" << (right ? "" : ": wrong") << "\n";
  return right;
}

static int run(const Strings& words, Flags flags) {
  if (!flags.count("--key") && !flags.count("--allow-unsigned")) throw Error("a bundle is code: give --key FILE, or --allow-unsigned");
  const Bundle bundle(words.at(1), flags["--key"], number(flags, "--threads", 1));
  if (!flags["--key"].empty()) bundle.check_time();
  if (words[0] == "check") {
    bool right = true;
    for (const Json& tier : bundle.manifest.at("tiers")) right = check(bundle, tier) && right;
    return right ? 0 : failed("a tier differs from its reference by more than rounding", 1);
  }
  Tensors data = safetensors(content_of(words.at(3)), words[3]);
  const bool reference = data.count("losses") || data.count("logits");  // of the bundle: data that are prepared
  for (const char* other : {"losses", "logits"}) data.erase(other);
  after(data);
  if (!reference) data = prepared(bundle.manifest, std::move(data));
  if (words[0] == "infer") {
    const Tensor logits = infer(bundle, words[2], data);
    const size_t width = count_of(logits.shape) / size_t(std::max<int64_t>(1, logits.shape.at(0)));
    const bool regression = !bundle.manifest.value("target_shape", Json()).is_null();
    std::cout << std::setprecision(9);
    for (const float* row = logits.data<float>(); row != logits.data<float>() + count_of(logits.shape); row += width) {
      if (!regression) std::cout << printable(bundle.manifest.at("class_names").at(size_t(std::max_element(row, row + width) - row))) << "\t";
      print(row, width);
    }
    return 0;
  }
  const Path path = flags["--state"];
  if (path.empty() && !flags.count("--out")) throw Error("train: got neither --out UPDATE nor --state FILE, expected one of them, or both");
  if (flags.count("--out")) check_sendable(bundle, words[2]);
  Settings how = {number(flags, "--epochs", 0u), number(flags, "--batch-size", 0u), number(flags, "--lr", 0.0), {}};
  if (flags.count("--seed")) how.seed = number<uint64_t>(flags, "--seed", 0, true);
  State before;
  if (!path.empty() && std::filesystem::exists(path)) before.tensors = safetensors(content_of(path), path.string(), &before.about);
  const Checkpoint checkpoint = {flags["--checkpoint"], number(flags, "--checkpoint-every", size_t{10}), {}};
  const State found = train(bundle, words[2], data, how, before, flags.count("--client") ? flags["--client"] : "", checkpoint);
  const Key key = flags.count("--device-key") ? key_of(flags["--device-key"], true) : Key(nullptr, &EVP_PKEY_free);
  if (flags.count("--out")) write(flags["--out"], update(found, key ? &key : nullptr));
  if (!path.empty()) write(path, to_safetensors(found.tensors, found.about));
  if (!checkpoint.path.empty()) std::filesystem::remove(checkpoint.path);  // not before the results are written
  if (!found.note.empty()) std::cerr << printable(found.note) << "\n";
  std::cout << found.losses.size() << " steps, loss " << found.losses.front() << " to " << found.losses.back() << "\n";
  return 0;
}

int main(int count, char** arguments) {
  const Strings given(arguments + 1, arguments + count);
  Strings words;
  Flags flags;
  if (given.empty() || !holds({"check", "infer", "train"}, given[0])) return std::cerr << kUsage, 2;
  try {
    parse(given, words, flags);
    if (words.size() != (words[0] == "check" ? 2 : 4)) return std::cerr << kUsage, 2;
    return run(words, flags);
  } catch (const Diverged& error) {
    return failed(error.what(), 1);
  } catch (const std::exception& error) {
    return failed(error.what(), 2);
  }
}
