"""What packages of distributions install to describe the package says what the wheel says."""

import importlib.metadata
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/python-metadata.py"


def fields(distribution):
    """The fields of METADATA, without order, and without licence files, which a package has elsewhere."""
    contents = {
        name: sorted(value) if isinstance(value, list) else value.strip()
        for name, value in distribution.metadata.json.items()
    }
    contents.pop("license_file", None)
    return contents


def test_metadata_of_packages_is_that_of_the_wheel(tmp_path):
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, timeout=60)
    (folder,) = tmp_path.iterdir()
    ours = importlib.metadata.Distribution.at(folder)
    wheels = importlib.metadata.distribution("pramfs")
    assert folder.name == f"pramfs-{wheels.version}.dist-info"
    assert fields(ours) == fields(wheels)
    assert ours.read_text("entry_points.txt").split() == wheels.read_text("entry_points.txt").split()
    # A wheel for a build without the GIL is for one version, and no package has it.
    if "abi3" in (wheel := wheels.read_text("WHEEL")):
        tag = [line for line in wheel.splitlines() if line.startswith("Tag:")]
        assert [line for line in ours.read_text("WHEEL").splitlines() if line.startswith("Tag:")] == tag
