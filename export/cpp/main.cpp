// Runs and trains the models of a bundle: `edgefl-client` without arguments prints how.
#include "update.hpp"

#include <iomanip>
#include <iostream>

using namespace edgefl;

static const char* const kUsage =
    "edgefl-client check BUNDLE                    compares every tier with its reference\n"
    "edgefl-client infer BUNDLE TIER DATA          prints the class and the logits of each sample\n"
    "edgefl-client train BUNDLE TIER DATA --out UPDATE [--state FILE] [--client NAME] [--device-key FILE]\n"
    "                    [--epochs N] [--batch-size N] [--lr RATE] [--seed N]\n"
    "Every command needs --key FILE, the publisher's public key, or --allow-unsigned. --threads N: of onnxruntime [1].\n"
    "DATA is a safetensors file: x, prepared as the manifest says, or x.NAME for each of several inputs; y, int64, for training.\n";

static void write(const Path& path, const std::string& content) {
  const Path temporary = path.string() + ".part";
  if (!(std::ofstream(temporary, std::ios::binary) << content).flush()) throw Error(path.string() + ": cannot be written");
  std::filesystem::rename(temporary, path);
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

// Compares a tier with its references: outputs, and the losses of three steps of the first training graph.
static bool check(const Bundle& bundle, const Json& tier) {
  const std::string label = tier.at("label");
  Tensors reference = bundle.tensors(tier.at("reference"));
  const Tensor logits = std::move(reference.at("logits"));
  reference.erase("logits");
  const double outputs = difference(infer(bundle, label, reference), logits);
  double losses = 0;
  if (!tier.at("train").is_null()) {
    reference = bundle.tensors(tier.at("train").at("reference"));
    const Tensor expected = std::move(reference.at("losses"));
    reference.erase("losses");
    Tensor every = zeros({bundle.manifest.at("classes")}, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
    std::fill(every.bytes.begin(), every.bytes.end(), 1);
    Steps steps(bundle, label, 0, 0, every);
    for (size_t i = 0; i < 3; ++i) losses = std::max(losses, std::fabs(steps.step(reference, 0) / double(expected.data<float>()[i]) - 1));
  }
  double largest = 1;
  for (size_t i = 0; i < logits.bytes.size() / 4; ++i) largest = std::max(largest, std::fabs(double(logits.data<float>()[i])));
  const bool right = outputs <= 1e-4 * largest && losses <= 1e-3;
  std::cout << "tier " << label << ": outputs differ by " << outputs << ", losses by " << losses << (right ? "" : ": wrong") << "\n";
  return right;
}

static int run(const Strings& words, std::map<std::string, std::string> flags) {
  if (!flags.count("--key") && !flags.count("--allow-unsigned")) throw Error("a bundle is code: give --key FILE, or --allow-unsigned");
  const Bundle bundle(words.at(1), flags["--key"], flags.count("--threads") ? std::stoi(flags["--threads"]) : 1);
  if (words[0] == "check") {
    bool right = true;
    for (const Json& tier : bundle.manifest.at("tiers")) right = check(bundle, tier) && right;
    return right ? 0 : 1;
  }
  Tensors data = safetensors(content_of(words.at(3)), words[3]);
  for (const char* other : {"losses", "logits"}) data.erase(other);  // the bundle's references are data, too
  if (words[0] == "infer") {
    const Tensor logits = infer(bundle, words[2], data);
    const size_t classes = size_t(logits.shape.at(1));
    std::cout << std::setprecision(9);
    for (const float* row = logits.data<float>(); row != logits.data<float>() + count_of(logits.shape); row += classes) {
      std::cout << bundle.manifest.at("class_names").at(size_t(std::max_element(row, row + classes) - row)).get<std::string>();
      for (size_t i = 0; i < classes; ++i) std::cout << "\t" << row[i];
      std::cout << "\n";
    }
    return 0;
  }
  const Path state = flags["--state"];
  Settings how;
  if (flags.count("--epochs")) how.epochs = unsigned(std::stoul(flags["--epochs"]));
  if (flags.count("--batch-size")) how.batch_size = unsigned(std::stoul(flags["--batch-size"]));
  if (flags.count("--seed")) how.seed = unsigned(std::stoul(flags["--seed"]));
  if (flags.count("--lr")) how.lr = std::stof(flags["--lr"]);
  const bool resumed = !state.empty() && std::filesystem::exists(state);
  const Trained trained = train(bundle, words[2], data, how, resumed ? safetensors(content_of(state), state.string()) : Tensors{});
  std::random_device random;
  const std::string client = flags.count("--client") ? flags["--client"] : "cpp-" + std::to_string(random()) + std::to_string(random());
  const Key key = flags.count("--device-key") ? key_of(flags["--device-key"], true) : Key(nullptr, &EVP_PKEY_free);
  write(flags.at("--out"), update(bundle, words[2], trained, data, client, key ? &key : nullptr));
  if (!state.empty()) write(state, to_safetensors(trained.tensors, {}));
  std::cout << trained.losses.size() << " steps, loss " << trained.losses.front() << " to " << trained.losses.back() << "\n";
  return 0;
}

int main(int count, char** arguments) {
  Strings words;
  std::map<std::string, std::string> flags;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word.rfind("--", 0) != 0) words.push_back(word);
    else if (word == "--allow-unsigned") flags[word];
    else if (++i < count) flags[word] = arguments[i];
  }
  const bool known = !words.empty() && (words[0] == "check" ? words.size() == 2 : words[0] == "infer" ? words.size() == 4 :
                                        words[0] == "train" && words.size() == 4 && flags.count("--out"));
  if (!known) return std::cerr << kUsage, 2;
  try {
    return run(words, flags);
  } catch (const Diverged& error) {
    return std::cerr << "Error: " << error.what() << "\n", 1;
  } catch (const std::exception& error) {
    return std::cerr << "Error: " << error.what() << "\n", 2;
  }
}
