// Inference, and the training steps of a bundle's tier.
#pragma once

#include "order.hpp"

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

  // The input of the next run that an output is: NAME of NAME.out; other outputs have no next run, and keep their names.
  static std::string next(const std::string& output) {
    const bool is = output.size() > 4 && output.compare(output.size() - 4, 4, ".out") == 0;
    return is ? output.substr(0, output.size() - 4) : output;
  }

  // Runs it, and returns its outputs by the names of `next`.
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
    for (size_t i = 0; i < outputs.size(); ++i) found.emplace(next(outputs[i]), std::move(results[i]));
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
    for (const Graph& graph : graphs_)
      for (const std::string& name : graph.outputs)
        if (const std::string next = Graph::next(name); start_.count(next)) changing_.insert(next);
  }

  static bool is_of(const State& state, const Bundle& bundle) {
    const auto found = state.about.find("bundle");
    return found != state.about.end() && found->second == bundle.manifest.at("manifest_sha256");
  }

  // Takes a step of a graph (0: the first) on a batch, the step `number` of the training, and returns its loss. Diverged if the loss or a tensor
  // is not finite; nothing changes then.
  float step(const Tensors& batch, size_t graph, size_t number) {
    for (const auto& [name, tensor] : batch) values_.insert_or_assign(name, view(tensor));
    auto found = graphs_.at(graph).run(values_);
    const float loss = *floats(found.at("loss"), "loss", 1);
    const auto diverged = [number](const std::string& what) {
      return Diverged("step " + std::to_string(number) + ": " + what + ": training diverged; a smaller learning rate may help");
    };
    if (!std::isfinite(loss)) throw diverged("the loss is " + std::to_string(loss));
    for (const auto& [name, value] : found)
      if ((name.rfind("p.", 0) == 0 || name.rfind("s.", 0) == 0) && !finite(value, name)) throw diverged(name.substr(2) + " would hold NaN or infinity");
    for (auto& [name, value] : found) values_.insert_or_assign(name, std::move(value));
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

  // All that steps change, the optimizer's state included, as progress has it.
  Tensors changing() const {
    Tensors found;
    for (const std::string& name : changing_) found.emplace("now:" + name, copy_of(values_.at(name)));
    return found;
  }

  // Continues from what `changing` returned; Error, which begins with `where`, if it is of other graphs.
  void restore(const Tensors& found, const std::string& where) {
    for (const std::string& name : changing_) {
      const auto stored = found.find("now:" + name);
      Tensor& own = start_.at(name);
      if (stored == found.end() || stored->second.type != own.type || stored->second.shape != own.shape)
        throw Error(where + ": " + name + ": missing or of another shape: it is of another model");
      own = stored->second;
      values_.insert_or_assign(name, view(own));
    }
  }

 private:
  static bool finite(const Ort::Value& value, const std::string& name) {
    const float* first = floats(value, name);
    return std::all_of(first, first + value.GetTensorTypeAndShapeInfo().GetElementCount(), [](float one) { return std::isfinite(one); });
  }

  Tensors held_, start_;
  std::set<std::string> changing_;
  std::map<std::string, Ort::Value> values_;
  std::vector<Graph> graphs_;
};
}  // namespace edgefl
