"""Packages of extras, which an installation may lack."""

from importlib.util import find_spec

from edgefl.errors import InputError


def check_extra(what: str, package: str, extra: str) -> None:
    """Raise InputError, with the command that installs it, if the Python ``package`` that ``what`` needs is missing.

    >>> check_extra("--log mine", "no_such_package", "edgefl-sim[wandb]")
    Traceback (most recent call last):
        ...
    edgefl.errors.InputError: --log mine needs no_such_package, which is not installed; run pip install 'edgefl-sim[wandb]'
    """
    if find_spec(package) is None:
        raise InputError(f"{what} needs {package}, which is not installed; run pip install '{extra}'")
