// Progress of a training: a file from which an interrupted one continues, to the same bits as without an interruption.
#pragma once

#include "steps.hpp"

namespace edgefl {

// Where progress is stored (an empty path: nowhere), and after how many steps again.
struct Checkpoint {
  Path path;
  size_t every = 10;
  std::string key;  // a hash of what is trained; progress of anything else is refused

  // Brings back the last steps that were stored, and returns the losses of all; none if there is no such file.
  std::vector<float> restored(Steps& steps, Order& order) const {
    if (path.empty() || !std::filesystem::exists(path)) return {};
    const std::string where = path.string();
    if (!std::filesystem::is_regular_file(path)) throw Error(where + ": is no file; give another --checkpoint");
    Tensors tensors;
    Metadata about;
    std::vector<float> found;
    try {
      tensors = safetensors(content_of(path), where, &about);
      const Tensor& losses = tensors.at("losses");
      found.assign(floats(losses, "losses"), floats(losses, "losses") + count_of(losses.shape));
    } catch (const std::exception& error) {
      throw Error(where + ": not the progress of a training (" + error.what() + "); delete it to begin anew");
    }
    if (about["key"] != key) throw Error(where + ": of another training: bundle, tier, data or settings differ; delete it to begin anew");
    steps.restore(tensors, where);
    order.move(about["order"], where);
    return found;
  }

  // Writes all that changes after so many steps, if it is time to.
  void store(const Steps& steps, const Order& order, const std::vector<float>& losses) const {
    if (path.empty() || losses.size() % every) return;
    Tensors tensors = steps.changing();
    Tensor& stored = tensors["losses"] = zeros({int64_t(losses.size())});
    std::copy(losses.begin(), losses.end(), stored.data<float>());
    write(path, to_safetensors(tensors, {{"key", key}, {"order", order.place()}}));
  }
};
}  // namespace edgefl
