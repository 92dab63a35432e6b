// Reads a bundle, infers, trains, and writes the update, with onnxruntime's Objective-C API and what iOS has.
// Not run by the tests of edgefl: run `check` on a device before you use it.
import CryptoKit
import Foundation
import onnxruntime_objc  // as a Swift package: import OnnxRuntimeBindings

struct BundleError: Error { let message: String }

typealias Table = [String: Any]

struct Tensor {
    var type = ORTTensorElementDataType.float
    var shape: [Int]
    var data: Data

    var floats: [Float] { data.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) } }
    static func scalar(_ value: Double) -> Tensor { Tensor(shape: [], data: withUnsafeBytes(of: Float(value)) { Data($0) }) }
    func zeros() -> Tensor { Tensor(shape: shape, data: Data(count: data.count)) }

    func rows(_ order: [Int]) -> Tensor {
        let row = data.count / shape[0]
        let chosen = order.reduce(into: Data()) { $0.append(data.subdata(in: $1 * row..<($1 + 1) * row)) }
        return Tensor(type: type, shape: [order.count] + shape.dropFirst(), data: chosen)
    }

    func value() throws -> ORTValue {
        try ORTValue(tensorData: NSMutableData(data: data), elementType: type, shape: shape.map { NSNumber(value: $0) })
    }

    static func of(_ value: ORTValue) throws -> Tensor {
        let about = try value.tensorTypeAndShapeInfo()
        return Tensor(type: about.elementType, shape: about.shape.map(\.intValue), data: Data(try value.tensorData()))
    }
}

func safetensors(_ content: Data) throws -> [String: Tensor] {
    let length = Int(content.prefix(8).reversed().reduce(UInt64(0)) { $0 << 8 | UInt64($1) })
    guard content.count >= 8, length <= content.count - 8 else { throw BundleError(message: "not a safetensors file") }
    let header = try JSONSerialization.jsonObject(with: content.subdata(in: 8..<8 + length)) as! Table
    return header.filter { $0.key != "__metadata__" }.mapValues { entry in
        let about = entry as! Table, ends = about["data_offsets"] as! [Int]
        let type: ORTTensorElementDataType = about["dtype"] as! String == "I64" ? .int64 : .float
        return Tensor(type: type, shape: about["shape"] as! [Int], data: content.subdata(in: 8 + length + ends[0]..<8 + length + ends[1]))
    }
}

func toSafetensors(_ tensors: [String: Tensor], _ about: [String: String]) throws -> Data {
    var header: Table = ["__metadata__": about], body = Data()
    for (name, tensor) in tensors {
        header[name] = ["dtype": "F32", "shape": tensor.shape, "data_offsets": [body.count, body.count + tensor.data.count]] as Table
        body.append(tensor.data)
    }
    let text = try JSONSerialization.data(withJSONObject: header)
    return withUnsafeBytes(of: UInt64(text.count).littleEndian) { Data($0) } + text + body
}

func sha256(_ content: Data) -> String { SHA256.hash(data: content).map { String(format: "%02x", $0) }.joined() }

/// A bundle in a folder, signed by the owner of `publisher`, the 32 bytes of an Ed25519 public key.
final class EdgeflBundle {
    let folder: URL, manifest: Table, env: ORTEnv

    init(folder: URL, publisher: Data) throws {
        let content = try Data(contentsOf: folder.appendingPathComponent("manifest.json"))
        let signature = try Data(contentsOf: folder.appendingPathComponent("manifest.sig"))
        let key = try Curve25519.Signing.PublicKey(rawRepresentation: publisher)
        guard key.isValidSignature(signature, for: content) else { throw BundleError(message: "manifest.sig: not by the publisher") }
        let values = try JSONSerialization.jsonObject(with: content) as! Table
        guard values["format_version"] as? Int == 2, let own = values["manifest_sha256"] as? String,
              var text = String(data: content, encoding: .utf8), let place = text.range(of: own)
        else { throw BundleError(message: "manifest.json: expected format_version 2") }
        text.replaceSubrange(place, with: String(repeating: "0", count: 64))
        guard sha256(Data(text.utf8)) == own else { throw BundleError(message: "manifest.json: changed") }
        setenv("ORT_DISABLE_TELEMETRY", "1", 0) // onnxruntime would send figures of models and of the device to its maker
        (self.folder, manifest, env) = (folder, values, try ORTEnv(loggingLevel: .warning))
    }

    func tier(_ label: String) -> Table { (manifest["tiers"] as! [Table]).first { $0["label"] as! String == label }! }

    func content(_ path: String) throws -> Data {
        let entry = (manifest["files"] as! [String: Table])[path]!
        let found = try Data(contentsOf: folder.appendingPathComponent(path))
        guard sha256(found) == entry["sha256"] as! String else { throw BundleError(message: "\(path): changed") }
        return found
    }

    func session(_ path: String) throws -> ORTSession {
        _ = try content(path)
        let options = try ORTSessionOptions()
        try options.setIntraOpNumThreads(1)
        return try ORTSession(env: env, modelPath: folder.appendingPathComponent(path).path, sessionOptions: options)
    }

    func infer(_ label: String, _ samples: [String: Tensor]) throws -> Tensor {
        let session = try session(tier(label)["forward"] as! String)
        let names = Set(try session.inputNames()) // a graph may lack one of several inputs
        let inputs = try samples.filter { names.contains($0.key) }.mapValues { try $0.value() }
        let results = try session.run(withInputs: inputs, outputNames: ["logits"], runOptions: nil)
        return try Tensor.of(results["logits"]!)
    }
}

/// The training graphs of a tier and the tensors that their steps change.
final class Steps {
    let bundle: EdgeflBundle, label: String, table: Table
    private var now: [String: Tensor] = [:], sessions: [ORTSession] = []

    init(_ bundle: EdgeflBundle, _ label: String) throws {
        (self.bundle, self.label, table) = (bundle, label, bundle.tier(label)["train"] as! Table)
        // The Objective-C API has no tensors of booleans.
        guard table["present"] as? Bool != true else { throw BundleError(message: "graphs that read `present` need the C++ client") }
        let held = try safetensors(bundle.content(table["parameters"] as! String))
        sessions = try (table["graphs"] as! [String]).map(bundle.session)
        let scalars = ["lr": table["lr"] as! Double, "beta": table["momentum"] as! Double, "t": 0, "seed": 0]
        now = scalars.mapValues(Tensor.scalar)
        for (role, prefix) in ["trained": "p.", "statistics": "s.", "frozen": "f."] {
            for name in (table[role] as! Table).keys { now[prefix + name] = held[name]! }
        }
        for name in try sessions.flatMap({ try $0.inputNames() }) {
            if name.hasPrefix("m.") || name.hasPrefix("v.") { now[name] = now["p." + name.dropFirst(2)]!.zeros() }
            if name.hasPrefix("f.start.") { now[name] = held[String(name.dropFirst(8))]! }
            if name.hasPrefix("f.shift.") { now[name] = held["control:" + name.dropFirst(8)] ?? held[String(name.dropFirst(8))]!.zeros() }
        }
    }

    /// Takes a step of a graph on a batch (x, or x.NAME of several inputs, and y), and returns its loss. If that, or a tensor, is not finite, nothing changes.
    func step(_ batch: [String: Tensor], graph: Int = 0) throws -> Float {
        let session = sessions[graph]
        let inputs = try session.inputNames().map { ($0, try (batch[$0] ?? now[$0]!).value()) }
        let outputs = Set(try session.outputNames())
        let results = try session.run(withInputs: Dictionary(uniqueKeysWithValues: inputs), outputNames: outputs, runOptions: nil)
        var found: [String: Tensor] = [:]
        for (name, value) in results { found[name.hasSuffix(".out") ? String(name.dropLast(4)) : name] = try Tensor.of(value) }
        for (name, tensor) in found where name == "loss" || name.hasPrefix("p.") || name.hasPrefix("s.") {
            guard tensor.floats.allSatisfy(\.isFinite) else { throw BundleError(message: "\(name) would be NaN or infinite: training diverged; a smaller lr may help") }
        }
        now.merge(found) { $1 }
        return found["loss"]!.floats[0]
    }

    /// A parameter or a statistic as it is now.
    func tensor(_ name: String) -> Tensor { now["p." + name] ?? now["s." + name]! }

    /// The content of an unsigned update; `client` is a random name, another one for each bundle.
    func update(labels: [Int64], steps: Int, client: String) throws -> Data {
        let objective = (table["objective"] as? Table)?["name"] as? String ?? "none", refused = table["no_update"] as? String ?? ""
        guard refused.isEmpty, ["none", "prox"].contains(objective), (table["personal"] as? [String] ?? []).isEmpty
        else { throw BundleError(message: "this client cannot send updates of this tier: \(refused) \(objective)") }
        var about = ["format": "edgefl-update", "version": "1", "bundle": bundle.manifest["manifest_sha256"] as! String,
                     "round": String(bundle.manifest["round"] as? Int ?? 0), "tier": label, "samples": String(labels.count),
                     "steps": String(steps), "client": client]
        if table["labels"] as? Bool == true { about["labels"] = Set(labels).sorted().map(String.init).joined(separator: ",") }
        let sent = (table["upload"] as! Table).keys.map { ($0, now["p." + $0] ?? now["s." + $0] ?? now["f." + $0]!) }
        return try toSafetensors(Dictionary(uniqueKeysWithValues: sent), about)
    }
}

/// Compares every tier with its references; returns a line for each that is wrong.
func check(_ bundle: EdgeflBundle) throws -> [String] {
    var wrong: [String] = []
    for tier in bundle.manifest["tiers"] as! [Table] {
        let label = tier["label"] as! String
        var reference = try safetensors(bundle.content(tier["reference"] as! String))
        let expected = reference.removeValue(forKey: "logits")!.floats
        let found = try bundle.infer(label, reference).floats
        let allowed = 1e-4 * max(1, expected.map(abs).max()!)
        if zip(found, expected).contains(where: { abs($0 - $1) > allowed }) { wrong.append("tier \(label): outputs differ") }
        guard let train = tier["train"] as? Table else { continue }
        var batch = try safetensors(bundle.content(train["reference"] as! String))
        let losses = batch.removeValue(forKey: "losses")!.floats
        let after = batch.filter { $0.key.hasPrefix("after:") }
        batch = batch.filter { !$0.key.hasPrefix("after:") }
        let steps = try Steps(bundle, label)
        for loss in losses where abs(try steps.step(batch) / loss - 1) > 1e-3 { wrong.append("tier \(label): losses differ") }
        let slack: Float = train["optimizer"] as! String == "adam" ? 1e-5 + 6 * Float(train["lr"] as! Double) : 1e-5
        for (key, tensor) in after {
            let now = steps.tensor(String(key.dropFirst(6))).floats, expected = tensor.floats
            let every = max(1, (now.count + 255) / 256), allowed = 1e-3 * expected.map(abs).max()! + slack // every k-th value, at most 256
            if expected.indices.contains(where: { abs(now[$0 * every] - expected[$0]) > allowed }) { wrong.append("tier \(label): \(key.dropFirst(6)) differs") }
        }
    }
    return wrong
}
