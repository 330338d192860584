#!/usr/bin/env python3
"""Writes debian/changelog from Cargo.toml, CHANGELOG.md and the last commit.

The version is that of Cargo.toml. As long as CHANGELOG.md has no section of that version, it is
not released, and the version ends with `~git` and the time of the last commit: each such package
is newer than an earlier one, and older than the release.

The entry has the first sentence of each change.
"""

import os
import re
import subprocess
import textwrap
from email.utils import format_datetime
from datetime import datetime, timezone
from pathlib import Path

root = Path(__file__).resolve().parent.parent
version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.M)[1]
sections = re.split(r"^## \[(.*?)\].*$", (root / "CHANGELOG.md").read_text(), flags=re.M)[1:]
sections = dict(zip(sections[::2], sections[1::2]))
revision = os.environ.get("PRAMFS_DEB_REVISION", "1")

when = os.environ.get("SOURCE_DATE_EPOCH")
if not when:
    git = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    when = subprocess.run(git, check=True, capture_output=True, text=True).stdout
time = datetime.fromtimestamp(int(when), timezone.utc)

changes = sections.get(version)
if changes is None:
    changes = sections["Unreleased"]
    version += time.strftime("~git%Y%m%d.%H%M%S")

control = (root / "debian/control").read_text()
maintainer = re.search(r"^Maintainer: (.*)$", control, re.M)[1]

print(f"pramfs ({version}-{revision}) unstable; urgency=medium\n")
for change in re.findall(r"^- (.*(?:\n  .*)*)", changes, re.M):
    change = re.sub(r"\s+", " ", change)
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`])", change)[0].rstrip(":")
    print(textwrap.fill(sentence, 76, initial_indent="  * ", subsequent_indent="    "))
print(f"\n -- {maintainer}  {format_datetime(time)}")
