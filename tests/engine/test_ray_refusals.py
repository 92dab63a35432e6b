"""Clusters and nodes that engine ray refuses, each with the remedy: kinds, limits, tokens and addresses."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from command import edgefl
from ray_nodes import ray_nodes
from ray_runs import on, words_of
from requirements import require

from edgefl.client.client import Clients
from edgefl.contrib.ray.address import check_token
from edgefl.data.digits import digits
from edgefl.engine.contract import Cluster, open_engine
from edgefl.errors import ConfigError
from edgefl.testing import rules_of_engines as rules

require("ray")


def test_a_node_of_another_kind_is_refused(head, tmp_path):
    head.mend(1)
    head.add({"ATEN_CPU_CAPABILITY": "avx2"})
    told = edgefl(*words_of(on(head)), f"--out={tmp_path}/run")
    assert told.returncode == 2
    assert "mixed_nodes: node 127.0.0." in told.stderr
    assert "pins ATEN_CPU_CAPABILITY=avx2 there, none here" in told.stderr
    assert not (tmp_path / "run").exists()


def test_a_node_that_cannot_limit_memory_as_hard_needs_is_refused(head):
    unfit = Cluster(head.address, mixed=True, limits={"watch": 1000.0})  # the test before may have left a node of another kind
    with pytest.raises(
        ConfigError, match=r"node 127\.0\.0\..*: enforce: hard cannot limit watch to 1,000 bytes of memory, expected at"
    ):
        open_engine("ray", 1, Clients(rules.TASK, digits()), unfit).__enter__()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {},
            "ray_auth: the Ray cluster at 127.0.0.2:.* refuses this computer's token .*; copy ~/.ray/auth_token of the head node here",
        ),
        ({"auth": False}, "ray_auth: the Ray cluster at 127.0.0.2:.* wants a token .*; leave out --no-ray-auth"),
    ],
)
def test_a_token_that_is_refused_is_told_from_a_missing_cluster(head, monkeypatch, capfd, how, message):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 32)
    with pytest.raises(ConfigError, match=message):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster(head.address, **how)).__enter__()
    assert capfd.readouterr() == ("", "")


def test_without_a_token_the_remedy_is_said(head, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"ray_auth: this computer has no token .*; copy ~/.ray/auth_token of the head node here, or"
    ):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster(head.address)).__enter__()


ASK = """
import sys
from edgefl.engine.contract import Cluster
from edgefl.contrib.ray.cluster import connected
for auth in (False, True):
    with connected(Cluster(sys.argv[1], auth=auth), 0):
        print("connected", auth)
"""


def test_a_cluster_without_tokens_is_told_from_one_that_accepts_them():
    with ray_nodes("disabled") as open_to_all:  # a process of its own: Ray's module in C++ remembers how others were met
        done = subprocess.run([sys.executable, "-c", ASK, open_to_all.address], capture_output=True, text=True, check=False)
    assert done.stdout == "connected False\n"
    assert "was started without tokens; give --no-ray-auth, or start its nodes with RAY_AUTH_MODE=token" in done.stderr


def test_a_folder_that_is_too_long_for_sockets_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        ConfigError, match="ray_address: Ray cannot run in .*107 bytes.*; set TMPDIR to a folder with a shorter name"
    ):
        open_engine("ray", 1, Clients(rules.TASK, digits()), Cluster("local")).__enter__()


def test_another_server_is_no_cluster():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(ConfigError, match=r"found no Ray cluster at 127.0.0.1:\d+ \(something else listens there\)"):
            open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster(f"127.0.0.1:{server.server_port}")).__enter__()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "127.0.0.1:1 cannot be reached .*; start the head of the cluster there with 'ray start --head'"),
        ("ray://here:1", "expected auto, local or HOST:PORT"),
        ("here", "expected auto, local or HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address, message):
    with pytest.raises(ConfigError, match=message):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster(address)).__enter__()


def test_a_computer_without_ray_is_told_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Ray, which is not installed; run pip install 'edgefl-sim\[ray\]'"):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster()).__enter__()


def test_a_computer_without_a_cluster_is_told_how_to_start_one(monkeypatch):
    def none(address, *more):
        raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to.")

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", none)
    with pytest.raises(
        ConfigError, match=r"^ray_address: found no Ray cluster at auto \(Could not find any running Ray instance\); start one"
    ):
        check_token(Cluster("auto", auth=False), None)
