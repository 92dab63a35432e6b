// The update file: what the server aggregates, signed by the device if it is enrolled.
#pragma once

#include "training.hpp"

namespace edgefl {

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
  std::string lines = "edgefl update signature 1\n";
  for (const auto& [name, value] : about) lines += name + "=" + value + "\n";
  lines += "content=" + content_sha256(tensors) + "\n";
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  found.resize(size = 64);
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), found.data(), &size, reinterpret_cast<const unsigned char*>(lines.data()), lines.size()) != 1)
    throw Error("OpenSSL cannot sign the update");
  about["signature"] = base64(found);
}

// Refuses a tier whose updates cannot be aggregated.
inline void check_sendable(const Bundle& bundle, const std::string& label) {
  const Json& table = bundle.tier(label).at("train");
  if (table.is_null()) return;  // training says so
  if (const std::string reason = table.at("no_update"); !reason.empty())
    throw Error("updates of this model cannot be aggregated outside of a simulation: " + reason + "; leave out --out, and give --state FILE");
}

// The content of an update file. `key`: of an enrolled device, else null.
inline std::string update(const State& state, const Key* key) {
  Tensors sent;
  for (const std::string name : Json::parse(state.about.at("upload"))) sent.emplace(name, state.tensors.at(name));
  for (const auto& [name, tensor] : sent)
    for (size_t i = 0; i < tensor.bytes.size() / 4; ++i)
      if (!std::isfinite(tensor.data<float>()[i]))
        throw Diverged(name + ": NaN or infinity: training diverged; a smaller learning rate may help");
  Metadata about = {{"format", "edgefl-update"}};
  for (const char* name : {"version", "bundle", "round", "tier", "samples", "steps", "client", "labels", "deadline"})
    if (const auto found = state.about.find(name); found != state.about.end()) about.insert(*found);
  if (key) sign(about, sent, *key);
  return to_safetensors(sent, about);
}
}  // namespace edgefl
