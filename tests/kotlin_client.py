"""The client in Kotlin as a desktop JVM has it: compiled once for a module of tests, 30 s of processor time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from requirements import JNA, require, unavailable

from edgefl.util.files import shared

SOURCES = shared("export") / "kotlin"
# A short life is not worth the second compiler, and a JVM that crashes leaves no file in the working directory.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ErrorFileToStderr")


@dataclass(frozen=True)
class KotlinClient:
    """The compiled client.

    Attributes:
        classes: where Java finds it, Kotlin's own library and JNA.
        library: onnxruntime, as its Python package brings it.
    """

    classes: str
    library: Path

    def command(self, *arguments: object) -> list[str]:
        """Return the command line as a user writes it."""
        return ["java", *_QUICK, "-cp", self.classes, "edgefl.MainKt", *map(str, arguments), "--library", str(self.library)]

    def batch(self, commands: Sequence[Sequence[object]]) -> list[tuple[int, str, str]]:
        """Run commands one after another in one process; return exit status, output and errors of each."""
        given = json.dumps([[*map(str, command), "--library", str(self.library)] for command in commands])
        done = subprocess.run(
            ["java", *_QUICK, "-cp", self.classes, "edgefl.Batch"],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return [(status, out, errors) for status, out, errors in json.loads(done.stdout)]

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run one command on a bundle that need not be signed, unless a key is given."""
        return self.batch([[*arguments, *([] if "--key" in arguments else ["--allow-unsigned"])]])[0]


def compiled(folder: Path) -> KotlinClient:
    """Compile the client, its driver and the app into ``folder``, the app against stand-ins of Android's classes.

    Skip where Java, the compiler, JNA or the library is missing.
    """
    require("java", "the Kotlin compiler", "JNA")
    library = next(iter(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")), None)
    if library is None:
        unavailable("libonnxruntime.so", "this build of onnxruntime has none")
    jars = _jars()
    standard = next(jars.glob("kotlin-stdlib-*.jar"))
    here = Path(__file__).parent / "export"
    folders = (SOURCES / "core", SOURCES / "desktop", SOURCES / "app" / "src" / "main" / "kotlin", here, here / "android")
    sources = [path for place in folders for path in sorted(place.glob("*.kt"))]
    classes = os.pathsep.join(map(str, (standard, JNA)))
    out = folder / "client.jar"
    options = ["-no-stdlib", "-no-reflect", "-Werror", "-jvm-target", "17", "-cp", classes, "-d", str(out)]
    compiler = ["java", *_QUICK, "-cp", str(jars / "*"), "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"]
    built = subprocess.run([*compiler, *map(str, sources), *options], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:4000]
    return KotlinClient(os.pathsep.join((str(out), classes)), library)


def _jars() -> Path:
    """Return the folder of the compiler's jars, which a package for notebooks brings."""
    found = importlib.util.find_spec("run_kotlin_kernel")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "jars"
