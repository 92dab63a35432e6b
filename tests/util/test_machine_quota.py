"""How many cores the quotas of control groups leave a process."""

import pytest

from edgefl.util import machine

OLD = ("cpu,cpuacct/a/cpu.cfs_quota_us", "cpu,cpuacct/a/cpu.cfs_period_us")
GROUPS = {
    "cgroup 2": ("0::/a/b\n", {"a/b/cpu.max": "200000 100000"}, 2.0),
    "an outer group": ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
    "a namespace of its own": ("0::/\n", {"cpu.max": "300000 100000"}, 3.0),
    "the host's path": ("0::/docker/1234\n", {"cpu.max": "150000 100000"}, 1.5),
    "cgroup 1": (
        "4:cpu,cpuacct:/a\n3:memory:/a\n",
        dict(zip(OLD, ("400000", "100000"), strict=True)),
        4.0,
    ),
    "cgroup 1 as cpu": ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2.0),
    "no limit of 1": ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "no limit of 2": ("0::/\n", {"cpu.max": "max 100000"}, None),
    "nonsense": ("::\nx\n0::/\n", {"cpu.max": "?"}, None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_smallest_quota_of_the_groups_counts(tmp_path, name):
    own, files, expected = GROUPS[name]
    (tmp_path / "own").write_text(own)
    for path, content in files.items():
        (tmp_path / "mounts" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounts" / path).write_text(content)
    assert machine.cpu_quota(tmp_path / "own", tmp_path / "mounts") == expected
    assert machine.cpu_quota(tmp_path / "none", tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (2.9, 2), (0.5, 1), (99.0, 8)])
def test_usable_threads_are_within_the_quota(monkeypatch, quota, threads):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda logical: 8)
    assert machine.usable_threads() == threads
