"""The examples."""

import pathlib
import re
import subprocess
import sys

from conftest import needs, skipped

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def test_load_array_maps_without_copy(scratch):
    needs("numpy")
    program = EXAMPLES / "load_array.py"
    if not program.exists():
        skipped(f"{program} is not here")
    for _ in range(2):
        said = subprocess.run(
            [sys.executable, program, scratch / "region", "32"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert said.startswith("array of 32 MiB, 8192 rows of 1024 numbers\n")
        assert re.search(r"array mapped, used +\d+ us", said)
    usage = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert usage.returncode == 1 and "load_array.py REGION" in usage.stderr
