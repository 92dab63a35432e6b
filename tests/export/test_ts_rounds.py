"""Old and expired bundles in the TypeScript client, by the file of rounds that it shares with the Python client."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from handmade import samples
from python_client import header
from signing import LINE, of_round
from ts_client import batch, installed

from edgefl.util.keys import SigningKey


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("ts"))


def test_an_older_or_expired_bundle_does_not_come_back(client, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    owner = SigningKey.new(tmp_path / "owner.pem")
    bundles = {
        "old": of_round(tmp_path / "old", owner, 1), "new": of_round(tmp_path / "new", owner, 9),
        "over": of_round(tmp_path / "over", owner, 9, expires="2020-01-31T00:00:00Z"),
        "odd": of_round(tmp_path / "odd", owner, 9, expires="soon"), "other": of_round(tmp_path / "other", owner, 1, line="b" * 64),
    }  # fmt: skip
    asked = ["old", "new", "new", "old", "over", "odd", "other"]
    more = [("old", "--allow-older"), ("over", "--allow-older"), ("old", "--key", bundles["old"] / "manifest.pub")]
    orders = [("infer", bundles[name], "0.5", tmp_path / "data.npz", *rest) for name, *rest in ([one] for one in asked)]
    orders += [("infer", bundles[name], "0.5", tmp_path / "data.npz", *rest) for name, *rest in more]
    found = batch(client, orders)
    assert [status for status, _, _ in found] == [0, 0, 0, 2, 2, 2, 0, 0, 0, 2]
    errors = [text for _, _, text in found]
    assert "is of round 1, and this device has met round 9 of it; get the newest bundle; --allow-older uses this one" in errors[3]
    assert "expired at 2020-01-31T00:00:00Z; get the newest bundle" in errors[4]
    assert "freshness.json: expected a line of rounds, and when the bundle expires" in errors[5]
    stored = json.loads((tmp_path / "config" / "edgefl" / "rounds.json").read_text())
    assert stored == {"rounds": {f"{owner.public}/{LINE}": 9, f"{owner.public}/{'b' * 64}": 1}}


def test_the_updates_of_a_bundle_that_will_expire_say_until_when_they_count(client, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    expires, state, out = "2999-01-31T00:00:00Z", tmp_path / "state", tmp_path / "update"
    bundle = of_round(tmp_path / "still", SigningKey.new(tmp_path / "owner.pem"), 2, expires=expires)
    orders = [("train", bundle, "0.5", tmp_path / "data.npz", "--out", state), ("update", state, "--out", out, "--unsigned")]
    assert [status for status, _, _ in batch(client, orders)] == [0, 0]
    assert header(out)["deadline"] == expires


@pytest.mark.parametrize("name", ["manifest.json", "manifest.pub", "manifest.sig"])
def test_what_is_no_regular_file_is_not_read(name, client, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bundle = of_round(tmp_path / "bundle", SigningKey.new(tmp_path / "owner.pem"), 1)
    np.savez(tmp_path / "data.npz", x=samples(10)[0])
    orders = []
    for kind in ("pipe", "zero"):
        (bundle / name).unlink()
        os.mkfifo(bundle / name) if kind == "pipe" else (bundle / name).symlink_to("/dev/zero")
        orders += batch(client, [("infer", bundle, "0.5", tmp_path / "data.npz")])
    assert [(status, out) for status, out, _ in orders] == [(2, "")] * 2
