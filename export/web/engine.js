// The page's end of the worker: a call is a promise, and a call that trains tells how far it is.

const WORKERS = { wasm: "./worker.js", webgpu: "./worker-gpu.js" };

export class Engine {
  /** `provider` is wasm or webgpu. */
  constructor(provider) {
    this.worker = new Worker(new URL(WORKERS[provider], import.meta.url), { type: "module", name: "edgefl" });
    this.calls = new Map();
    this.last = 0;
    this.worker.onmessage = ({ data }) => this.answered(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const { reject } of this.calls.values()) reject(new Error(`the worker stopped: ${event.message || "it could not be loaded"}`));
      this.calls.clear();
    };
  }

  answered({ id, result, error, progress }) {
    const call = this.calls.get(id);
    if (!call) return;
    if (progress) {
      call.onProgress?.(progress);
      return;
    }
    this.calls.delete(id);
    if (error === undefined) call.resolve(result);
    else call.reject(new Error(error));
  }

  /** Ask the worker for `kind` with `values`; resolves to its result. */
  call(kind, values = {}, onProgress = null) {
    if (this.closed) return Promise.reject(this.closed);
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      this.calls.set(id, { resolve, reject, onProgress });
      this.worker.postMessage({ id, kind, ...values });
    });
  }

  /** End the worker at once; calls that wait for it, or come later, are refused for `reason`. */
  close(reason) {
    this.worker.terminate();
    this.closed = new Error(reason);
    for (const { reject } of this.calls.values()) reject(this.closed);
    this.calls.clear();
  }

  /** Ask every training so far, also one that waits, to end after the step it is at. */
  stop() {
    this.worker.postMessage({ kind: "stop", last: this.last });
  }
}
