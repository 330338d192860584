#!/usr/bin/env python3
"""Writes pramfs-VERSION.dist-info, by which pip, importlib.metadata and fsspec know the package.

    scripts/python-metadata.py DIRECTORY        the directory that has the package pramfs

It is for packages of distributions, which install without pip. It says what the wheel of maturin
says, from the same files: python/pyproject.toml, python/README.md, and Cargo.toml for the version.
A test of the Python package compares both. Licence files and the list RECORD are left to the
package manager.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirement(text, extra):
    """A requirement that applies if an extra is asked for."""
    return f"Requires-Dist: {text} ; extra == '{extra}'"


def metadata(project, version):
    """The file METADATA."""
    known = {"name", "description", "readme", "requires-python", "license", "keywords", "classifiers",
             "dynamic", "optional-dependencies", "entry-points"}
    if unknown := project.keys() - known:
        sys.exit(f"python-metadata.py: it does not know {', '.join(sorted(unknown))} in "
                 "[project] of python/pyproject.toml: add what METADATA should say of it")
    extras = project["optional-dependencies"]
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Keywords: {','.join(project['keywords'])}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        *(requirement(text, extra) for extra, texts in extras.items() for text in texts),
        *(f"Provides-Extra: {extra}" for extra in extras),
        "Description-Content-Type: text/markdown; charset=UTF-8; variant=GFM",
    ]
    return "\n".join(lines) + "\n\n" + (ROOT / "python" / project["readme"]).read_text()


def tag():
    """The tag of the wheel, by the feature of pyo3 that names the oldest CPython."""
    manifest = (ROOT / "python/Cargo.toml").read_text()
    floor = re.search(r'"abi3-py(\d+)"', manifest)
    if not floor:
        sys.exit("python-metadata.py: python/Cargo.toml has no feature abi3-pyNNN of pyo3")
    return f"cp{floor[1]}-abi3-linux_x86_64"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/python-metadata.py DIRECTORY")
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    folder = Path(sys.argv[1]) / f"{project['name']}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    groups = project["entry-points"].items()
    files = {
        "METADATA": metadata(project, version),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: pramfs\nRoot-Is-Purelib: false\nTag: {tag()}\n",
        "entry_points.txt": "\n".join(
            f"[{group}]\n" + "".join(f"{name}={place}\n" for name, place in points.items())
            for group, points in groups),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


main()
