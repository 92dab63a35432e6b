// Inference, training steps and update files of a bundle's tier.
#pragma once

#include "edgefl.hpp"

namespace edgefl {

struct Settings {  // 0: the bundle's own
  unsigned epochs = 0, batch_size = 0;
  float lr = 0;
  unsigned seed = 0;  // of the order of samples; 0: as they come
};

struct Trained {
  Tensors tensors;  // every parameter and statistic
  std::vector<float> losses;
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

inline void mirror_half(Tensor& images, std::mt19937& draws) {  // left-right, of shape (n, channels, height, width)
  const size_t width = size_t(images.shape.at(3)), image = count_of(images.shape) / size_t(images.shape[0]);
  for (float* one = images.data<float>(); one != images.data<float>() + count_of(images.shape); one += image)
    if (draws() & 1)
      for (float* line = one; line != one + image; line += width) std::reverse(line, line + width);
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

  // `kept`: tensors of an earlier round, of which the personal ones are used. `present` (classes): labels in the data.
  Steps(const Bundle& bundle, const std::string& label, float lr, unsigned seed, const Tensor& present, const Tensors& kept = {})
      : table(bundle.tier(label).at("train")) {
    if (table.is_null()) throw Error("tier " + label + ": it cannot be trained: the bundle was exported for inference only");
    held_ = bundle.tensors(table.at("parameters"));
    for (const std::string name : table.at("personal"))
      if (const auto found = kept.find(name); found != kept.end()) {
        if (found->second.shape != held_.at(name).shape) throw Error(name + ": the state is of another model");
        held_[name] = found->second;
      }
    for (const std::string path : table.at("graphs")) graphs_.emplace_back(bundle.session(path));
    start_ = {{"lr", scalar(lr > 0 ? lr : table.at("lr").get<float>())}, {"beta", scalar(table.at("momentum"))},
              {"t", scalar(0)}, {"seed", scalar(float(seed % 8388608))}, {"present", present}};
    const std::map<std::string, std::string> roles = {{"trained", "p."}, {"statistics", "s."}, {"frozen", "f."}};
    for (const auto& [role, prefix] : roles)
      for (const auto& [name, shape] : table.at(role).items()) start_.emplace(prefix + name, held_.at(name));
    for (const Graph& graph : graphs_)
      for (const std::string& name : graph.inputs) {
        const std::string shift = "f.shift.", begin = "f.start.";
        if (name.rfind("m.", 0) == 0 || name.rfind("v.", 0) == 0) start_.emplace(name, zeros(start_.at("p." + name.substr(2)).shape));
        if (name.rfind(begin, 0) == 0) start_.emplace(name, held_.at(name.substr(begin.size())));
        if (name.rfind(shift, 0) == 0) {
          const std::string of = name.substr(shift.size());
          start_.emplace(name, held_.count("control:" + of) ? held_.at("control:" + of) : zeros(held_.at(of).shape));
        }
      }
    for (const auto& [name, tensor] : start_) values_.emplace(name, view(tensor));
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
    for (auto& [name, value] : found) values_.insert_or_assign(name, std::move(value));
    return loss;
  }

  // Every parameter and statistic: name in the network → value.
  Tensors tensors() const {
    Tensors found = held_;
    for (auto& [name, tensor] : found)
      for (const char* prefix : {"p.", "s."})
        if (const auto value = values_.find(prefix + name); value != values_.end()) tensor = copy_of(value->second);
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
  std::map<std::string, Ort::Value> values_;
  std::vector<Graph> graphs_;
};

// Trains a tier on `data`: samples under the graphs' names of inputs (x, or x.NAME of several), and labels y.
inline Trained train(const Bundle& bundle, const std::string& label, const Tensors& data, const Settings& how, const Tensors& kept = {}) {
  if (!data.count("y")) throw Error("y: the data has no labels to train with");
  const Tensor& labels = data.at("y");
  const size_t samples = labels.shape.empty() ? 0 : size_t(labels.shape[0]);
  for (const auto& [name, tensor] : data)
    if (!samples || tensor.shape.empty() || size_t(tensor.shape[0]) != samples)
      throw Error(name + ": expected as many samples as labels, at least one");
  const int64_t classes = bundle.manifest.at("classes");
  Tensor present = zeros({classes}, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
  for (size_t i = 0; i < samples && labels.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64; ++i) {
    const int64_t one = labels.data<int64_t>()[i];
    if (one < 0 || one >= classes) throw Error("y: label " + std::to_string(one) + ", expected 0 to " + std::to_string(classes - 1));
    present.bytes[size_t(one)] = 1;
  }
  Steps steps(bundle, label, how.lr, how.seed, present, kept);
  const Json& table = steps.table;
  const std::string objective = table.at("objective").at("name");
  if (objective == "dyn" || objective == "scaffold") throw Error("objective " + objective + ": this client does not store its tensors");
  const size_t size = how.batch_size ? how.batch_size : table.at("batch_size").get<size_t>(), graphs = table.at("graphs").size();
  const unsigned epochs = how.epochs ? how.epochs : table.at("epochs").get<unsigned>();
  std::mt19937 draws(how.seed);
  std::vector<size_t> order(samples);
  std::iota(order.begin(), order.end(), 0);
  Trained found;
  for (unsigned epoch = 0; epoch < epochs; ++epoch) {
    if (how.seed) std::shuffle(order.begin(), order.end(), draws);
    for (size_t first = 0; first < samples; first += size) {
      Tensors batch;
      for (const auto& [name, tensor] : data) batch.emplace(name, rows(tensor, &order[first], std::min(size, samples - first)));
      if (table.value("augment", "none") == "flip") mirror_half(batch.at("x"), draws);
      found.losses.push_back(steps.step(batch, graphs > 1 ? draws() % graphs : 0));
    }
  }
  found.tensors = steps.tensors();
  return found;
}
}  // namespace edgefl
