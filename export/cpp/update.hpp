// The update file: what the server aggregates, signed by the device if it is enrolled.
#pragma once

#include "training.hpp"

#include <set>

namespace edgefl {

using Metadata = std::map<std::string, std::string>;

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

inline std::string base64(const std::vector<unsigned char>& bytes) {
  std::vector<unsigned char> text(bytes.size() * 4 / 3 + 5);
  return {reinterpret_cast<char*>(text.data()), size_t(EVP_EncodeBlock(text.data(), bytes.data(), int(bytes.size())))};
}

// Adds the device's public key and its signature to the metadata of an update.
inline void sign(Metadata& about, const Tensors& tensors, const Key& key) {
  std::vector<unsigned char> found(32);
  size_t size = found.size();
  EVP_PKEY_get_raw_public_key(key.get(), found.data(), &size);
  about["key"] = base64(found);
  std::string content, lines = "edgefl update signature 1\n";
  for (const auto& [name, tensor] : tensors) {
    content += name + '\0';
    for (size_t i = 0; i < tensor.shape.size(); ++i) content += (i ? "," : "") + std::to_string(tensor.shape[i]);
    content += '\0' + std::string(tensor.bytes.begin(), tensor.bytes.end());
  }
  for (const auto& [name, value] : about) lines += name + "=" + value + "\n";
  lines += "content=" + sha256(content) + "\n";
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  found.resize(size = 64);
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), found.data(), &size, reinterpret_cast<const unsigned char*>(lines.data()), lines.size()) != 1)
    throw Error("OpenSSL cannot sign the update");
  about["signature"] = base64(found);
}

// The content of an update file. `key`: of an enrolled device, else null.
inline std::string update(const Bundle& bundle, const std::string& label, const Trained& trained, const Tensors& data,
                          const std::string& client, const Key* key) {
  const Json& table = bundle.tier(label).at("train");
  if (const std::string reason = table.at("no_update"); !reason.empty())
    throw Error("updates of this model cannot be aggregated: " + reason);
  Tensors sent;
  for (const auto& [name, shape] : table.at("upload").items()) sent.emplace(name, trained.tensors.at(name));
  for (const auto& [name, tensor] : sent)
    for (size_t i = 0; i < tensor.bytes.size() / 4; ++i)
      if (!std::isfinite(tensor.data<float>()[i]))
        throw Diverged(name + ": NaN or infinity: training diverged; a smaller learning rate may help");
  const Tensor& labels = data.at("y");
  Metadata about = {{"format", "edgefl-update"}, {"version", "1"}, {"bundle", bundle.manifest.at("manifest_sha256")},
                    {"round", bundle.manifest.at("round").dump()}, {"tier", label}, {"samples", std::to_string(labels.shape.at(0))},
                    {"steps", std::to_string(trained.losses.size())}, {"client", client}};
  if (table.value("labels", false) && labels.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
    std::string& text = about["labels"];
    for (const int64_t seen : std::set<int64_t>(labels.data<int64_t>(), labels.data<int64_t>() + labels.shape[0]))
      text += (text.empty() ? "" : ",") + std::to_string(seen);
  }
  if (key) sign(about, sent, *key);
  return to_safetensors(sent, about);
}
}  // namespace edgefl
