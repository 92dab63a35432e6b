"""Files of a bundle that mean harm: paths, sizes, names and any damage end in one message."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from handmade import Regression
from hostile_graphs import GRAPHS
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_bundle import contents, manifest, replaced, rewrite, tier, trainable, written

from edgefl.bundle.manifest import TierEntry
from edgefl.bundle.manifest_file import parse, read
from edgefl.bundle.sandbox import SandboxLimits
from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError
from edgefl.util.files import sha256


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a\\b", "C:x", "a/../b", "./a", "", "a//b", "a/", "a\nb", "a\x1b[2J", "a /b", " a", "\u202eb", "a\0b"]
)
def test_paths_that_leave_the_bundle_or_read_differently_elsewhere(path):
    for entry in ({"forward": path}, {"train": {**trainable(Regression())[0].train.model_dump(), "predict": path}}):
        with pytest.raises(ValidationError, match="expected a relative path inside the bundle"):
            tier(0.5, **entry)


def test_files_that_are_one_file_elsewhere_and_names_that_are_taken(tmp_path):
    for extra, message in (("1/Forward.ONNX", "several spellings"), ("manifest.sig", "cannot hold its hash")):
        with pytest.raises(BundleError, match=message):
            write(tmp_path / "bundle", manifest(), {**contents(), extra: b""})
    with pytest.raises(ValidationError, match="tiers\n  Tuple should have at most 100 items"):
        manifest(*(tier(1) for _ in range(101)))
    assert not list(tmp_path.iterdir())


def test_what_is_no_folder_is_not_unpacked(tmp_path):
    folder, archive = written(tmp_path / "bundle"), tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder / "manifest.json", "manifest.json")
    with pytest.raises(BundleError, match=r"bundle\.zip: a file; a folder is expected: unpack an archive of a bundle first"):
        verify(archive)
    with pytest.raises(BundleError, match="nowhere: no such folder; give the folder bundle of a run"):
        read(tmp_path / "nowhere")


def test_sizes_are_looked_at_before_any_content(tmp_path, monkeypatch):
    folder = written(tmp_path / "bundle")
    with (folder / "1" / "forward.onnx").open("r+b") as file:
        file.truncate(1 << 40)  # a hole of a terabyte, for which there is no room
    monkeypatch.setattr("edgefl.bundle.verify.check_tiers", None)
    with pytest.raises(BundleError, match=r"1/forward\.onnx: 1099511627776 bytes, the manifest says \d{3}$"):
        verify(folder)
    rewrite(folder, lambda m: m["files"]["1/forward.onnx"].update(bytes=1 << 40))
    with pytest.raises(BundleError, match=r"1,099,511,\d+,\d+ bytes by its manifest, expected at most 68,719,476,736"):
        verify(folder)
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match=r"manifest\.json: 1,099,511,627,776 bytes, expected at most 16,777,216"):
        verify(folder)


def test_messages_stay_short_and_printable(tmp_path):
    folder = written(tmp_path / "bundle")
    for i in range(200):
        (folder / f"extra\n\x1b[{i:03}").touch()
    with pytest.raises(BundleError) as caught:
        verify(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder}: extra\\n\\x1b[000: not in the manifest"
    assert (len(lines), lines[-1]) == (51, f"{folder}: and more")
    rewrite(folder, lambda m: m.update({f"a\nkey {i}": i for i in range(1000)}))
    with pytest.raises(BundleError) as caught:
        verify(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder}/manifest.json: 'a\\nkey 0': unknown key"
    assert (len(lines), lines[-1]) == (21, f"{folder}/manifest.json: and 980 more")


def test_the_reason_for_no_updates_is_printable_and_short(tmp_path, called):
    entry, files = trainable(Regression())
    write(tmp_path / "bundle", manifest(entry, input_shape=(1, 2, 3)), files)
    rewrite(tmp_path / "bundle", lambda m: m["tiers"][0]["train"].update(no_update="\x1b[2J\n" + "x" * 10_000, upload={}))
    status, out, _ = called("verify", str(tmp_path / "bundle"))
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith("devices send no updates: ")]
    assert line.removeprefix("devices send no updates: ") == "\\x1b[2J\\n" + "x" * 291


def test_folders_in_folders_without_end_are_listed_without_recursion(tmp_path):
    folder = written(tmp_path / "bundle")
    inner, depth = folder / "1" / "d", 1500
    for _ in range(depth):  # from the innermost outwards, as no path is that long
        outer = folder / "1" / "e"
        outer.mkdir()
        if inner.exists():
            inner.rename(outer / "d")
        outer.rename(inner)
    with pytest.raises(BundleError, match="1/d/: not in the manifest"):
        verify(folder)
    for _ in range(depth - 1):  # what clears up after tests does recurse
        (inner / "d").rename(folder / "1" / "e")
        inner.rmdir()
        (folder / "1" / "e").rename(inner)


def test_every_refusal_of_a_bundle_ends_with_status_2(tmp_path, called):
    folder = written(tmp_path / "bundle")
    status, out, errors = called("verify", str(folder))
    assert (status, errors) == (0, "")
    assert re.fullmatch(
        rf"tier 1: max abs error \S+\ntier 0\.5: max abs error \S+\n{folder}: 5 files verified; not signed\n", out
    )
    replaced(folder, "1/forward.onnx", GRAPHS["sequence"][0].SerializeToString())
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))
    status, out, errors = called("verify", str(folder))
    assert (status, out) == (2, "")
    assert errors == f"Error: {folder}: tier 1: 1/forward.onnx: operators that a bundle may not hold: SequenceConstruct\n"
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*")) == before
    status, out, errors = called("verify", str(folder), "--memory", "much")
    assert (status, out) == (2, "")


def mutated(content: bytes, kind: str, place: float, with_byte: int) -> bytes:
    """Return ``content`` cut, or with a byte changed, taken away or put in."""
    at = int(place * (len(content) - 1))
    middle = {"cut": None, "flip": bytes([content[at] ^ (1 << with_byte % 8)]), "set": bytes([with_byte]), "drop": b""}
    return content[:at] if middle[kind] is None else content[:at] + middle[kind] + content[at + 1 :]


MUTATION = st.tuples(
    st.sampled_from(["cut", "flip", "flip", "set", "drop"]), st.floats(0, 1), st.integers(0, 255), st.integers(0, 5)
)


@settings(max_examples=2)
@given(st.lists(MUTATION, min_size=25, max_size=25))
def test_no_damage_with_a_right_hash_ends_in_anything_but_a_message(tmp_path_factory, mutations):
    entry, own = trainable(Regression())
    tiers, files = [], {}
    for i, (kind, place, with_byte, which) in enumerate(mutations, 1):
        label = f"{i / 100:g}"
        text = entry.model_copy(update={"tier": i / 100, "label": label}).model_dump_json().replace("0.5/", f"{label}/")
        tiers.append(TierEntry.model_validate_json(text))
        here = {name.replace("0.5/", f"{label}/"): content for name, content in own.items()}
        name = sorted(here)[which]
        files |= {**here, name: mutated(here[name], kind, place, with_byte)}
    folder = tmp_path_factory.mktemp("damaged") / "bundle"
    write(folder, manifest(*reversed(tiers), input_shape=(1, 2, 3)), files)
    said = ""
    try:
        verify(folder, limits=SandboxLimits(memory_bytes=2 << 30, file_s=20))
    except BundleError as error:
        said = str(error)
    for line in said.splitlines():
        assert re.match(rf"{folder}: tier 0\.\d+: 0\.\d+/\w+\.(onnx|safetensors): (?!cannot be checked)", line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["../x", "1/forward.onnx"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    entry, files = trainable(Regression())
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    write(folder, manifest(entry, input_shape=(1, 2, 3)), files)
    return (folder / "manifest.json").read_text()


@given(st.data())
def test_any_value_in_a_manifest_is_right_or_refused(text, data):
    whole = values = json.loads(text)
    while True:
        key = data.draw(st.sampled_from(sorted(values) if isinstance(values, dict) else range(len(values))))
        if not (isinstance(values[key], dict | list) and values[key] and data.draw(st.booleans())):
            break
        values = values[key]
    values[key] = data.draw(JSON)
    content = json.dumps({**whole, "manifest_sha256": "0" * 64}).encode()
    said = "x: "
    try:
        parse(Path("x"), content.replace(b"0" * 64, sha256(content).encode(), 1))
    except BundleError as error:
        said = str(error)
    assert all(line.startswith("x: ") and line.isprintable() for line in said.splitlines())
