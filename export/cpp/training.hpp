// Trains a tier of a bundle, from its first step or from where an interrupted training was.
#pragma once

#include "progress.hpp"

#include <iomanip>

namespace edgefl {

inline std::set<int64_t> labels_in(const std::string& text) {  // such as 0,3,7
  std::set<int64_t> found;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) found.insert(std::stoll(word));
  return found;
}

// Refuses a damaged state, one of another tier, and one of a round that is not before the bundle's.
inline void check_state(const State& state, const Bundle& bundle, const std::string& label) {
  if (state.about.empty()) return;  // tensors alone, as earlier versions of this client wrote them
  const auto said = [&](const char* key) { return state.about.count(key) ? state.about.at(key) : std::string(); };
  try {
    if (said("format") != "edgefl-state" || said("version") != "1") throw std::invalid_argument("format");
    for (const char* key : {"round", "samples", "steps"}) std::stoll(said(key));
    std::stod("0" + said("lr_sum"));
    labels_in(said("labels"));
  } catch (const std::logic_error&) {
    throw Error("--state: not a state that train wrote (damaged metadata): train again");
  }
  if (said("tier") != label) throw Error("--state: it is of tier " + said("tier") + ", expected " + label);
  const std::string round = bundle.manifest.at("round").dump();
  if (!Steps::is_of(state, bundle) && std::stoll(said("round")) >= std::stoll(round))
    throw Error("--state: it is of round " + said("round") + " of another bundle, this one is of round " + round + "; expected a state of an earlier round");
}

// Trains a tier on `data`: samples under the graphs' names of inputs (x, or x.NAME of several), and labels y. A state of the same bundle is
// trained further: with the same seed and samples, to the same bits as in one training. With a `checkpoint`, a training that was interrupted
// continues after the last step that was stored.
inline State train(const Bundle& bundle, const std::string& label, const Tensors& data, const Settings& how, const State& before = {}, const std::string& client = "", Checkpoint checkpoint = {}) {
  if (!data.count("y")) throw Error("y: the data has no labels to train with");
  const Tensor& labels = data.at("y");
  const size_t samples = labels.shape.empty() ? 0 : size_t(labels.shape[0]);
  for (const auto& [name, tensor] : data)
    if (!samples || tensor.shape.empty() || size_t(tensor.shape[0]) != samples)
      throw Error(name + ": expected as many samples as labels, at least one");
  check_state(before, bundle, label);
  const Metadata said = Steps::is_of(before, bundle) ? before.about : Metadata{};
  const auto had = [&](const char* key, const char* usual) { return said.count(key) ? said.at(key) : std::string(usual); };
  const int64_t classes = bundle.manifest.at("classes");
  Tensor present = zeros({classes}, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
  std::set<int64_t> seen = labels_in(had("labels", ""));
  for (size_t i = 0; i < samples && labels.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64; ++i) {
    const int64_t one = labels.data<int64_t>()[i];
    if (one < 0 || one >= classes) throw Error("y: label " + std::to_string(one) + ", expected 0 to " + std::to_string(classes - 1));
    present.bytes[size_t(one)] = 1;
    seen.insert(one);
  }
  const Json tier = bundle.tier(label).at("train");
  const size_t size = how.batch_size ? how.batch_size : tier.value("batch_size", size_t{1});
  const std::string place = had("order", ""), content = content_sha256(data);
  if (place.find(' ') > 19 && !place.empty()) throw Error("--state: its seed has more than 64 bits, which this client does not draw by");
  const std::string seeded = place.empty() ? "0" : Order::parts(place, "--state")[0];
  const uint64_t seed = how.seed ? *how.seed : std::stoull(seeded);
  Order order(samples, size, seed);
  State found;
  std::string of = place.empty() ? "of an earlier version, without an order of samples" : "of seed " + seeded + ", not " + std::to_string(seed);
  if (!place.empty() && seeded == std::to_string(seed)) of = had("data", "") == content ? "" : "of other samples";
  if (of.empty()) order.move(place, "--state");
  else if (!said.empty()) found.note = "--state: " + of + ": training shuffles the samples anew";
  State from = before;
  if (!of.empty()) from.tensors.erase("now:seed");
  uint64_t taken = std::stoull(had("steps", "0"));
  Steps steps(bundle, label, how.lr, float((seed * 40503 + taken) % 8388608), present, from);
  const Json& table = steps.table;
  const std::string objective = table.at("objective").at("name");
  if (objective == "dyn" || objective == "scaffold") throw Error("objective " + objective + ": this client does not store its tensors");
  const size_t graphs = table.at("graphs").size(), epochs = how.epochs ? how.epochs : table.at("epochs").get<size_t>();
  const bool flip = table.value("augment", "none") == "flip";
  const double lr = how.lr > 0 ? how.lr : table.at("lr").get<double>();
  double travelled = std::stod(had("lr_sum", "0"));
  const auto count = [&] {
    travelled += lr;  // one after the other: the same sum for two trainings as for one
    ++taken;
  };
  if (!checkpoint.path.empty()) {
    const Json facts = {bundle.manifest.at("manifest_sha256"), label, epochs, size, lr, said, order.place(), content};
    checkpoint.key = sha256(facts.dump() + content_sha256(steps.tensors()));
  }
  found.losses = checkpoint.restored(steps, order);
  for (size_t i = 0; i < found.losses.size(); ++i) count();
  const size_t planned = epochs * ((samples + size - 1) / size);
  while (found.losses.size() < planned) {
    const std::vector<size_t> index = order.batch();
    Tensors batch;
    for (const auto& [name, tensor] : data) batch.emplace(name, rows(tensor, index.data(), index.size()));
    for (size_t i = 0; flip && i < index.size(); ++i)
      if (order.mirrored()) mirror(batch.at("x"), i);
    found.losses.push_back(steps.step(batch, order.graph(graphs), found.losses.size() + 1));
    count();
    checkpoint.store(steps, order, found.losses);
  }
  found.tensors = steps.tensors();
  Strings upload;
  for (const auto& [name, shape] : table.at("upload").items()) upload.push_back(name);
  std::ostringstream sum;
  sum << std::setprecision(17) << travelled;
  found.about = {{"format", "edgefl-state"}, {"version", "1"}, {"bundle", bundle.manifest.at("manifest_sha256")},
                 {"round", bundle.manifest.at("round").dump()}, {"tier", label}, {"samples", std::to_string(samples)}, {"steps", std::to_string(taken)},
                 {"lr_sum", sum.str()}, {"client", client.empty() ? had("client", "") : client}, {"upload", Json(upload).dump()},
                 {"no_update", table.at("no_update")}, {"order", order.place()}, {"data", content}};
  if (found.about["client"].empty()) {
    std::random_device random;
    found.about["client"] = "cpp-" + std::to_string(random()) + std::to_string(random());
  }
  if (const std::string end = bundle.expires(); !end.empty()) found.about["deadline"] = end;
  if (table.value("labels", false)) {
    std::string& text = found.about["labels"];
    for (const int64_t one : seen) text += (text.empty() ? "" : ",") + std::to_string(one);
  }
  return found;
}
}  // namespace edgefl
