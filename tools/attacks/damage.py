"""Ways to damage bytes, files and values. What is damaged, and how, is drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attacks.harness import Rng


def _flip(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    for at in rng.integers(len(content), size=int(rng.choice([1, 1, 1, 8]))):
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _zeros(content: bytes, rng: Rng) -> bytes:
    start = int(rng.integers(len(content)))
    end = min(len(content), start + int(rng.choice([1, 64, 4096])))
    return content[:start] + bytes(end - start) + content[end:]


def _middle(content: bytes, rng: Rng) -> bytes:
    start, end = sorted(rng.integers(len(content) + 1, size=2))
    return content[:start] + content[end:]


DAMAGES: dict[str, Callable[[bytes, Rng], bytes]] = {
    "bits flipped": _flip,
    "cut": lambda content, rng: content[: int(rng.integers(len(content)))],
    "zeros": _zeros,
    "a part lost": _middle,
    "longer": lambda content, rng: content + rng.bytes(int(rng.integers(1, 200))),
    "noise": lambda content, rng: rng.bytes(len(content)),
    "empty": lambda content, rng: b"",
    "twice": lambda content, rng: content + content,
}
"""How bytes are damaged: name → content, of at least one byte, and random numbers → other content."""


def damaged(content: bytes, rng: Rng) -> tuple[str, bytes]:
    """Return the name of a damage, and ``content`` with it, which is different."""
    while True:
        how = str(rng.choice(list(DAMAGES)))
        if (found := DAMAGES[how](content, rng) if content else rng.bytes(3)) != content:
            return how, found


def spoil(files: Sequence[Path], rng: Rng) -> tuple[str, Path]:
    """Damage one of ``files`` on the disk, exchange two of them, or take one away; return how, and which one."""
    path = files[int(rng.integers(len(files)))]
    draw, others = rng.random(), [other for other in files if other.read_bytes() != path.read_bytes()]
    if draw < 0.1:
        path.unlink()
        return "gone", path
    if draw < 0.15:
        path.unlink()
        path.mkdir()
        return "a folder", path
    if draw < 0.3 and others:
        shutil.copyfile(others[int(rng.integers(len(others)))], path)
        return "another file", path
    how, content = damaged(path.read_bytes(), rng)
    path.write_bytes(content)
    return how, path


NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    1.5,
    -0.5,
    1e-300,
    1e300,
    10**6,
    10**9,
    2**31,
    2**63,
    2**64,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
)
TEXTS = (
    "", "x", "0", "-1", "auto", "nan", "1e999", "../../../etc/passwd", "/dev/zero", "/dev/stdin", "\x1b[2J\x07", "a\nb", "\u202eback",
    "é" * 50,    "x" * 5000, "../x", "con", "\x00", "1,0.5", "%s%n", "{0}", "file.py:f", "os:system", ".", "~", "🙂", "\ud800",
)  # fmt: skip


DEEP = "a deep list"
"""Stands for lists within each other, which hardly any library writes."""


def odd(rng: Rng, depth: int = 0) -> Any:
    """Return a value that is hardly ever right: a number, text, list or table."""
    draw = rng.random()
    if draw < 0.35:
        return NUMBERS[int(rng.integers(len(NUMBERS)))]
    if draw < 0.7:
        return TEXTS[int(rng.integers(len(TEXTS)))]
    if draw < 0.8 or depth > 3:
        return bool(rng.integers(2))
    if draw < 0.9:
        return [odd(rng, depth + 1) for _ in range(int(rng.integers(4)))]
    if draw < 0.95:
        return {TEXTS[int(rng.integers(len(TEXTS)))]: odd(rng, depth + 1) for _ in range(int(rng.integers(3)))}
    return DEEP


def spelled(text: str, rng: Rng) -> bytes:
    """Return JSON or TOML as bytes, with lists within each other, up to too many, in the places of :data:`DEEP`."""
    depth = int(rng.choice([20, 300, 3000, 100_000]))
    return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode(errors="surrogatepass")


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of a JSON value, each the keys and positions that lead to it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, one in inner for place in places(one, (*here, key)))]


def mutated(value: Any, rng: Rng) -> tuple[str, Any]:
    """Change one place of a JSON value, the value itself; return how in words, and the value."""
    known = places(value)[1:]
    *parents, key = known[int(rng.integers(len(known)))]
    inside = value
    for parent in parents:
        inside = inside[parent]
    draw = rng.random()
    if draw < 0.2:
        del inside[key]
        return "a value is gone", value
    if draw < 0.3 and isinstance(inside, dict):
        inside[TEXTS[int(rng.integers(len(TEXTS)))]] = odd(rng)
        return "an unknown key", value
    if draw < 0.4 and isinstance(inside, list):
        inside.append(inside[key])
        return "a value comes twice", value
    if draw < 0.5 and isinstance(inside[key], int | float):
        factor = float(rng.choice([-1, 0, 1e-9, 1e9, 2]))
        inside[key] = inside[key] * factor if abs(inside[key]) < 10**300 else factor
        return "another number", value
    inside[key] = odd(rng)
    return "an odd value", value
