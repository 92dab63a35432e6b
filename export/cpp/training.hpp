// Inference, training steps and update files of a bundle's tier.
#pragma once

#include "order.hpp"

#include <iomanip>
#include <optional>
#include <set>

namespace edgefl {

struct Settings {  // 0: the bundle's own
  unsigned epochs = 0, batch_size = 0;
  double lr = 0;
  std::optional<uint64_t> seed;  // of every random draw; none: that of the state that is trained further, or 0
};

// What training came to, which stays on the device: the state of every client. `now:INPUT` is what the optimizer and dropout continue with.
struct State {
  Tensors tensors;
  Metadata about;
  std::vector<float> losses;
  std::string note;  // why the samples were shuffled anew, else nothing
};

// A session with the names of its inputs and outputs.
struct Graph {
  Ort::Session session;
  Strings inputs, outputs;

  explicit Graph(Ort::Session opened) : session(std::move(opened)) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session.GetInputCount(); ++i) inputs.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    for (size_t i = 0; i < session.GetOutputCount(); ++i) outputs.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
  }

  // Runs it, and returns its outputs: NAME.out as NAME, which is the input of the next run.
  std::map<std::string, Ort::Value> run(const std::map<std::string, Ort::Value>& values) {
    Ort::IoBinding binding(session);
    for (const auto& name : inputs) {
      const auto found = values.find(name);
      if (found == values.end()) throw Error("a graph has an input " + name + ", for which there is no value");
      binding.BindInput(name.c_str(), found->second);
    }
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    for (const auto& name : outputs) binding.BindOutput(name.c_str(), memory);
    session.Run(Ort::RunOptions{}, binding);
    auto results = binding.GetOutputValues();
    std::map<std::string, Ort::Value> found;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = outputs[i];
      const bool next = name.size() > 4 && name.compare(name.size() - 4, 4, ".out") == 0;
      found.emplace(next ? name.substr(0, name.size() - 4) : name, std::move(results[i]));
    }
    return found;
  }
};

inline Tensor rows(const Tensor& from, const size_t* index, size_t count) {
  Tensor found = from;
  const size_t row = from.bytes.size() / size_t(from.shape.at(0));
  found.shape[0] = int64_t(count);
  found.bytes.resize(count * row);
  for (size_t i = 0; i < count; ++i) std::copy_n(from.bytes.begin() + index[i] * row, row, found.bytes.begin() + i * row);
  return found;
}

inline void mirror(Tensor& images, size_t number) {  // one of the images, of shape (n, channels, height, width), left-right
  const size_t width = size_t(images.shape.at(3)), image = count_of(images.shape) / size_t(images.shape[0]);
  float* first = images.data<float>() + number * image;
  for (float* line = first; line != first + image; line += width) std::reverse(line, line + width);
}

// Logits (n, classes) of samples by forward.onnx: the inputs of the graph → (n, …).
inline Tensor infer(const Bundle& bundle, const std::string& label, const Tensors& samples) {
  std::map<std::string, Ort::Value> values;
  for (const auto& [name, tensor] : samples) values.emplace(name, view(tensor));
  const Tensor logits = copy_of(Graph(bundle.session(bundle.tier(label).at("forward"))).run(values).at("logits"));
  floats(logits, "logits");
  return logits;
}

// The training graphs of a tier, and the tensors that their steps change.
class Steps {
 public:
  const Json& table;  // the manifest's `train` of the tier

  // `before`: the state of an earlier round, of which the personal tensors are used, or of this bundle, which is trained further.
  // `present` (classes): labels in the data. `seed`: of dropout, unless that of `before` continues.
  Steps(const Bundle& bundle, const std::string& label, double lr, float seed, const Tensor& present, const State& before = {})
      : table(bundle.tier(label).at("train")) {
    if (table.is_null()) throw Error("tier " + label + ": it cannot be trained: the bundle was exported for inference only");
    const Tensors given = bundle.tensors(table.at("parameters"));
    held_ = given;
    const bool same = is_of(before, bundle);
    const auto kept = [&](const std::string& name, const Tensor& like) {  // what the state has in place of `like`
      const auto found = before.tensors.find(name);
      if (found == before.tensors.end()) return like;
      if (found->second.shape != like.shape) throw Error("--state: " + name + ": missing or of another shape: it is of another model");
      return found->second;
    };
    const Json& personal = table.at("personal");
    for (auto& [name, tensor] : held_)
      if (same || std::find(personal.begin(), personal.end(), name) != personal.end()) tensor = kept(name, tensor);
    for (const std::string path : table.at("graphs")) graphs_.emplace_back(bundle.session(path));
    start_ = {{"lr", scalar(float(lr > 0 ? lr : table.at("lr").get<double>()))}, {"beta", scalar(table.at("momentum"))}, {"present", present}};
    const auto moving = [&](const std::string& name, const Tensor& first) { start_.emplace(name, same ? kept("now:" + name, first) : first); };
    moving("t", scalar(0));
    moving("seed", scalar(seed));
    const std::map<std::string, std::string> roles = {{"trained", "p."}, {"statistics", "s."}, {"frozen", "f."}};
    for (const auto& [role, prefix] : roles)
      for (const auto& [name, shape] : table.at(role).items()) start_.emplace(prefix + name, held_.at(name));
    for (const Graph& graph : graphs_)
      for (const std::string& name : graph.inputs) {
        const std::string shift = "f.shift.", begin = "f.start.";
        if (name.rfind("m.", 0) == 0 || name.rfind("v.", 0) == 0) moving(name, zeros(start_.at("p." + name.substr(2)).shape));
        if (name.rfind(begin, 0) == 0) start_.emplace(name, given.at(name.substr(begin.size())));
        if (name.rfind(shift, 0) == 0) {
          const std::string of = name.substr(shift.size());
          start_.emplace(name, given.count("control:" + of) ? given.at("control:" + of) : zeros(given.at(of).shape));
        }
      }
    for (const auto& [name, tensor] : start_) values_.emplace(name, view(tensor));
  }

  static bool is_of(const State& state, const Bundle& bundle) {
    const auto found = state.about.find("bundle");
    return found != state.about.end() && found->second == bundle.manifest.at("manifest_sha256");
  }

  // Takes a step of a graph (0: the first) on a batch, and returns its loss. Diverged if the loss or a tensor is not finite; nothing changes then.
  float step(const Tensors& batch, size_t number) {
    for (const auto& [name, tensor] : batch) values_.insert_or_assign(name, view(tensor));
    auto found = graphs_.at(number).run(values_);
    ++taken_;
    const float loss = *floats(found.at("loss"), "loss", 1);
    if (!std::isfinite(loss)) throw diverged("the loss is " + std::to_string(loss));
    for (const auto& [name, value] : found)
      if ((name.rfind("p.", 0) == 0 || name.rfind("s.", 0) == 0) && !finite(value, name)) throw diverged(name.substr(2) + " would hold NaN or infinity");
    for (auto& [name, value] : found) {
      if (name != "loss") changing_.insert(name);
      values_.insert_or_assign(name, std::move(value));
    }
    return loss;
  }

  // What training changes, name in the network → value, frozen tensors that are sent or personal, and what the optimizer continues with.
  Tensors tensors() const {
    Tensors found;
    const Json& personal = table.at("personal");
    for (const auto& [name, shape] : table.at("frozen").items())
      if (table.at("upload").contains(name) || std::find(personal.begin(), personal.end(), name) != personal.end()) found.emplace(name, held_.at(name));
    for (const auto& [name, value] : values_)
      if (name.rfind("p.", 0) == 0 || name.rfind("s.", 0) == 0) found.insert_or_assign(name.substr(2), copy_of(value));
      else if (changing_.count(name)) found.emplace("now:" + name, copy_of(value));
    return found;
  }

 private:
  Diverged diverged(const std::string& what) const {
    return Diverged("step " + std::to_string(taken_) + ": " + what + ": training diverged; a smaller learning rate may help");
  }

  static bool finite(const Ort::Value& value, const std::string& name) {
    const float* first = floats(value, name);
    return std::all_of(first, first + value.GetTensorTypeAndShapeInfo().GetElementCount(), [](float one) { return std::isfinite(one); });
  }

  unsigned taken_ = 0;  // steps, with the present one
  Tensors held_, start_;
  std::set<std::string> changing_;
  std::map<std::string, Ort::Value> values_;
  std::vector<Graph> graphs_;
};

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
// trained further: with the same seed and samples, to the same bits as in one training.
inline State train(const Bundle& bundle, const std::string& label, const Tensors& data, const Settings& how, const State& before = {}, const std::string& client = "") {
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
  const std::string seeded = place.empty() ? "0" : Order::parts(place)[0];
  const uint64_t seed = how.seed ? *how.seed : std::stoull(seeded);
  Order order(samples, size, seed);
  State found;
  std::string of = place.empty() ? "of an earlier version, without an order of samples" : "of seed " + seeded + ", not " + std::to_string(seed);
  if (!place.empty() && seeded == std::to_string(seed)) of = had("data", "") == content ? "" : "of other samples";
  if (of.empty()) order.move(place);
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
  double travelled = std::stod(had("lr_sum", "0"));
  for (size_t left = epochs * ((samples + size - 1) / size); left > 0; --left) {
    const std::vector<size_t> index = order.batch();
    Tensors batch;
    for (const auto& [name, tensor] : data) batch.emplace(name, rows(tensor, index.data(), index.size()));
    for (size_t i = 0; flip && i < index.size(); ++i)
      if (order.mirrored()) mirror(batch.at("x"), i);
    found.losses.push_back(steps.step(batch, order.graph(graphs)));
    travelled += how.lr > 0 ? how.lr : table.at("lr").get<double>();
    ++taken;
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
