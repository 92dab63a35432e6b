// Reads a bundle, infers, trains, and writes the update. Needs onnxruntime, nlohmann/json and OpenSSL 1.1.1 or newer; C++17.
// ../README.md specifies the files. Errors are exceptions with a message for the user.
#pragma once

#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace edgefl {

using Json = nlohmann::ordered_json;
using Path = std::filesystem::path;
using Strings = std::vector<std::string>;
struct Error : std::runtime_error { using std::runtime_error::runtime_error; };
struct Diverged : Error { using Error::Error; };

struct Tensor {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
  template <typename T> T* data() { return reinterpret_cast<T*>(bytes.data()); }
  template <typename T> const T* data() const { return reinterpret_cast<const T*>(bytes.data()); }
};
using Tensors = std::map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

inline size_t size_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return 1;
    default: return 4;
  }
}

inline size_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, [](size_t n, int64_t size) {
    if (size < 0 || (size && n > (size_t{1} << 40) / size_t(size))) throw Error("a tensor has an impossible shape");
    return n * size_t(size);
  });
}

inline Tensor zeros(std::vector<int64_t> shape, ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
  const size_t bytes = count_of(shape) * size_of(type);
  return {type, std::move(shape), std::vector<char>(bytes)};
}

inline Ort::Env quiet_environment() {  // onnxruntime would send figures of models and of the device to its maker
#ifdef _WIN32
  if (!std::getenv("ORT_DISABLE_TELEMETRY")) _putenv_s("ORT_DISABLE_TELEMETRY", "1");
#else
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);
#endif
  return Ort::Env(ORT_LOGGING_LEVEL_FATAL, "edgefl");  // errors are exceptions; its log would repeat them, in colours
}

inline Tensor scalar(float value) { Tensor found = zeros({}); *found.data<float>() = value; return found; }

inline Ort::Value view(const Tensor& tensor) {  // of the tensor's memory, which must live as long
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto* bytes = const_cast<char*>(tensor.bytes.data());
  return Ort::Value::CreateTensor(memory, bytes, tensor.bytes.size(), tensor.shape.data(), tensor.shape.size(), tensor.type);
}

inline Tensor copy_of(const Ort::Value& value) {
  const auto about = value.GetTensorTypeAndShapeInfo();
  Tensor found = zeros(about.GetShape(), about.GetElementType());
  if (!found.bytes.empty()) std::memcpy(found.bytes.data(), value.GetTensorRawData(), found.bytes.size());
  return found;
}

inline const float* floats(const Tensor& tensor, const std::string& name, size_t least = 0) {  // its values; Error unless they are float32
  if (tensor.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || count_of(tensor.shape) < least) throw Error(name + ": expected values of float32");
  return tensor.data<float>();
}

inline const float* floats(const Ort::Value& value, const std::string& name, size_t least = 0) {
  const bool right = value.IsTensor() && value.GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  if (!right || value.GetTensorTypeAndShapeInfo().GetElementCount() < least) throw Error(name + ": expected values of float32");
  return value.GetTensorData<float>();
}

inline std::string content_of(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Replaces a file, whole or not at all.
inline void write(const Path& path, const std::string& content) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path))
    throw Error(path.string() + ": is no file, but a folder or a device, which would be replaced; give another");
  const Path temporary = path.string() + ".part";
  if (!(std::ofstream(temporary, std::ios::binary) << content).flush()) throw Error(path.string() + ": cannot be written");
  std::filesystem::rename(temporary, path);
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  template <class Bytes> Sha256& add(const Bytes& bytes) { return EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), *this; }
  std::string text() {
    unsigned char digest[32];
    EVP_DigestFinal_ex(context_.get(), digest, nullptr);
    std::string text;
    for (const unsigned char byte : digest) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

inline std::string sha256(const std::string& content) { return Sha256().add(content).text(); }

// Of tensors: of each its name, a zero byte, its shape as 2,3, a zero byte, its values.
inline std::string content_sha256(const Tensors& tensors) {
  Sha256 found;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const int64_t side : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(side);
    found.add(name + '\0' + shape + '\0').add(tensor.bytes);
  }
  return found.text();
}

inline Json parsed(const std::string& content, const std::string& name) {  // Error if it is nested so deep that it would fill the stack
  return Json::parse(content, [&](int depth, Json::parse_event_t, Json&) {
    if (depth > 200) throw Error(name + ": nested deeper than 200 levels");
    return true;
  });
}

// The tensors of a file, and its metadata if `about` is given.
inline Tensors safetensors(const std::string& content, const std::string& name, Metadata* about = nullptr) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8 && i < content.size(); ++i) length |= uint64_t(uint8_t(content[i])) << 8 * i;
  if (content.size() < 8 || length > content.size() - 8) throw Error(name + ": not a safetensors file");
  static const std::map<std::string, ONNXTensorElementDataType> kinds = {
      {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT}, {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE}, {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
      {"U8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8}, {"U16", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16}};
  Tensors found;
  const Json header = parsed(content.substr(8, length), name);
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      if (about) *about = entry.get<Metadata>();
      continue;
    }
    Tensor tensor = zeros(entry.at("shape").get<std::vector<int64_t>>(), kinds.at(entry.at("dtype").get<std::string>()));
    const uint64_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    if (end > content.size() - 8 - length || begin > end || end - begin != tensor.bytes.size())
      throw Error(name + ": " + key + ": its bytes do not fit its shape");
    std::copy_n(content.begin() + 8 + length + begin, tensor.bytes.size(), tensor.bytes.begin());
    found.emplace(key, std::move(tensor));
  }
  return found;
}

inline std::string to_safetensors(const Tensors& tensors, const Metadata& metadata) {
  Json header = {{"__metadata__", metadata}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t end = data.size() + tensor.bytes.size();
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
    data.append(tensor.bytes.begin(), tensor.bytes.end());
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[size_t(i)] = char(uint64_t(text.size()) >> 8 * i & 255);
  return length + text + data;
}

// Values (n, channels, ...) as (value * scale - mean) / std: computed in double and rounded once, as in every client.
template <class Value>
Tensor normalised(const Tensor& raw, const Json& how, double unit) {
  const auto of = [&](const char* key, size_t channel) -> double {
    const Json& value = how.at(key);
    return value.is_array() ? value.at(value.size() == 1 ? 0 : channel).get<double>() : value.get<double>();
  };
  if (!how.contains("scale") || !how.contains("mean") || !how.contains("std"))
    throw Error("x: raw pixels, but the manifest has no scale, mean and std: expected prepared float32");
  Tensor found = zeros(raw.shape);
  const size_t channels = raw.shape.size() > 1 ? size_t(raw.shape[1]) : 1, all = count_of(raw.shape);
  const size_t inner = raw.shape.size() > 2 ? all / std::max<size_t>(1, size_t(raw.shape[0]) * channels) : 1;
  const double scale = how.at("scale").get<double>() * unit;
  for (size_t i = 0; i < all; ++i) {
    const size_t channel = i / inner % channels;
    found.data<float>()[i] = float((double(raw.data<Value>()[i]) * scale - of("mean", channel)) / of("std", channel));
  }
  return found;
}

// Samples of a file as the network takes them: pixels of 8 and of 16 bits are prepared as the manifest says, and floats if it says that they are raw.
inline Tensors prepared(const Json& manifest, Tensors data) {
  const auto prepare = [&](const std::string& name, const Json& how) {
    const auto found = data.find(name);
    if (found == data.end()) return;
    Tensor& x = found->second;
    const bool raw = how.contains("raw");
    if (x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) x = normalised<uint8_t>(x, how, 1);
    else if (x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16) x = normalised<uint16_t>(x, how, 255.0 / 65535);
    else if (raw && x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) x = normalised<float>(x, how, 1);
    else if (raw && x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) x = normalised<double>(x, how, 1);
  };
  const Json inputs = manifest.value("inputs", Json());
  if (inputs.is_object() && !inputs.empty())
    for (const auto& [name, entry] : inputs.items()) prepare("x." + name, entry.value("preprocessing", Json::object()));
  else prepare("x", manifest.value("preprocessing", Json::object()));
  return data;
}

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
inline Key key_of(const Path& path, bool secret) {
  const std::string pem = content_of(path);
  const std::unique_ptr<BIO, decltype(&BIO_free)> source(BIO_new_mem_buf(pem.data(), int(pem.size())), &BIO_free);
  const auto read = secret ? PEM_read_bio_PrivateKey : PEM_read_bio_PUBKEY;
  Key key(read(source.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  if (!key || EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519) throw Error(path.string() + ": not an Ed25519 key in PEM");
  return key;
}

class Bundle {
 public:
  Json manifest;

  // The owner of `publisher`, a public key in PEM, must have signed the manifest. Empty: nobody need have signed.
  explicit Bundle(Path folder, const Path& publisher = {}, int threads = 1) : folder_(std::move(folder)), threads_(threads) {
    std::string content = content_of(folder_ / "manifest.json");
    if (!publisher.empty()) check_signature(content, key_of(publisher, false));
    manifest = parsed(content, "manifest.json");
    if (manifest.at("format_version") != 2)
      throw Error("manifest.json: format_version " + manifest["format_version"].dump() + ", expected 2");
    const std::string own = manifest.at("manifest_sha256");
    if (own.size() != 64) throw Error("manifest.json: manifest_sha256 is not a SHA-256");
    if (sha256(content.replace(content.find(own), 64, 64, '0')) != own) throw Error("manifest.json: changed: get the bundle again");
    complete(manifest, {{"round", 0}});
    for (Json& entry : manifest.at("tiers")) {
      complete(entry, {{"train", nullptr}});
      if (Json& train = entry["train"]; !train.is_null()) {
        complete(train, {{"personal", Json::array()}, {"objective", Json::object()}, {"no_update", ""}});
        complete(train["objective"], {{"name", "none"}});
      }
    }
  }

  const Json& tier(const std::string& label) const {
    for (const Json& entry : manifest.at("tiers"))
      if (entry.at("label") == label) return entry;
    Strings known;
    for (const Json& entry : manifest.at("tiers")) known.push_back(entry.at("label"));
    throw Error("tier: got " + label + ", the bundle has " + Json(known).dump());
  }

  std::string content(const std::string& path) const {  // of a file that the manifest lists, once its hash is right
    const auto& files = manifest.at("files");
    if (!files.contains(path) || Path(path).is_absolute() || path.find("..") != std::string::npos)
      throw Error(path + ": no file of the bundle");
    std::string found = content_of(folder_ / path);
    if (sha256(found) != files[path].at("sha256")) throw Error(path + ": changed: get the bundle again");
    return found;
  }

  Tensors tensors(const std::string& path) const { return safetensors(content(path), path); }

  std::string expires() const {  // the time after which nobody should use the bundle, which updates carry along; empty: none
    const std::string path = "freshness.json", expected = path + ": expected a time in UTC such as 2027-01-31T12:00:00Z";
    if (!manifest.at("files").contains(path)) return "";
    const Json found = parsed(content(path), path);
    if (!found.is_object()) throw Error(expected);
    const auto end = found.find("expires");
    if (end == found.end() || end->is_null()) return "";
    const std::string text = end->is_string() ? end->get<std::string>() : "", form = "0000-00-00T00:00:00Z";
    bool right = text.size() == form.size();
    for (size_t i = 0; right && i < form.size(); ++i) right = form[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == form[i];
    if (!right) throw Error(expected);
    return text;
  }

  void check_time() const {  // refuses a bundle that has expired
    const std::string end = expires();
    const std::time_t now = std::time(nullptr);
    char text[21];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    if (!end.empty() && end < text) throw Error(folder_.string() + ": expired at " + end + "; get the newest bundle");
  }

  Ort::Session session(const std::string& path) const {
    static Ort::Env environment = quiet_environment();
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads_);
    options.SetInterOpNumThreads(1);
    options.DisableMemPattern();  // frees every value after its last use
    // Weights beside the graph, of models over 2 GB, are not looked for in the working directory.
    options.AddConfigEntry("session.model_external_initializers_file_folder_path", std::filesystem::absolute(folder_).c_str());
    const std::string graph = content(path);
    return Ort::Session(environment, graph.data(), graph.size(), options);
  }

 private:
  static void complete(Json& table, Json defaults) {  // gives missing keys their defaults
    defaults.update(table);
    table = std::move(defaults);
  }

  void check_signature(const std::string& content, const Key& key) const {
    const std::string signature = content_of(folder_ / "manifest.sig");
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
    const auto bytes = [](const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); };
    if (EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
        EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(content), content.size()) != 1)
      throw Error("manifest.sig: not a signature of this manifest by the given key: do not use the bundle");
  }

  Path folder_;
  int threads_;
};
}  // namespace edgefl
