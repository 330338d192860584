#!/usr/bin/env python3
"""Writes debian/copyright: the licences of pramfs and of all crates that its programs link.

`cargo tree` says which crates are linked, by the features of the packages that are installed, and
without those that only run while compiling. `cargo metadata` says where their sources and licences
are. A crate without a licence file gets the text of the licence that it names; one whose licence
this script does not know ends it with an error, and with that the build.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ["pramfs-tools", "pramfs-fuse", "pramfs-capi", "pramfs-preload", "pramfs-python"]
# Licences whose text Debian has, with the file.
COMMON = {"Apache-2.0": "/usr/share/common-licenses/Apache-2.0"}
# The choice where a crate offers several, the first that it offers.
CHOICE = ["MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "BSD-2-Clause", "Zlib", "Unicode-3.0"]
LICENCE_FILE = re.compile(r"^(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE)([-._].*)?$", re.I)
SOURCE_FILE = re.compile(r"\.(rs|c|h|S|py|sh)$")


def cargo(*arguments):
    """What cargo prints."""
    command = ["cargo", *arguments, "--locked"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"copyright.py: {' '.join(command)}: {run.stderr.strip()}")
    return run.stdout


def linked():
    """Names and versions of the crates that the installed files contain."""
    packages = [argument for name in INSTALLED for argument in ("-p", name)]
    lines = cargo("tree", *packages, "-e", "normal,no-proc-macro", "--prefix", "none",
                  "--format", "{p}", "--no-dedupe", "--target", "x86_64-unknown-linux-gnu")
    return {tuple(line.split()[:2]) for line in lines.splitlines() if line}


def chosen(name, expression):
    """The licences that pramfs uses a crate under, of an SPDX expression."""
    if not expression:
        sys.exit(f"copyright.py: the crate {name} names no licence")
    result = []
    for part in re.split(r"\s+AND\s+", expression):
        offers = [o.strip("() ") for o in re.split(r"\s+OR\s+|/", part)]
        known = [licence for licence in CHOICE if licence in offers]
        if not known:
            sys.exit(f"copyright.py: no known licence in '{expression}' of the crate {name}")
        result.append(known[0])
    return result


def licence_files(directory):
    """The licence files of a crate and of what it contains of others."""
    return sorted(path for path in directory.rglob("*")
                  if LICENCE_FILE.match(path.name) and not SOURCE_FILE.search(path.name)
                  and path.is_file() and "target" not in path.parts)


def holders(files, package):
    """Lines with a copyright, of the licence files, else of the manifest."""
    found = []
    for path in files:
        for line in path.read_text(errors="replace").splitlines():
            line = line.strip(" \t*#-/.")
            notice = re.match(r"(?:Portions )?Copyright:?\s+((?:\(c\)|©|\d{4}).*)", line, re.I)
            if notice and not re.search(r"\[yyyy\]|\{yyyy\}|<year>", line):
                text = re.sub(r"^\(c\)\s*|^©\s*", "", notice[1], flags=re.I)
                text = re.sub(r",?\s*All rights reserved\.?", "", text, flags=re.I).strip()
                if text and text not in found:
                    found.append(text)
    if not found:
        authors = package["authors"] or [f"the authors of {package['name']}"]
        found = [re.sub(r"\s*<[^>]*>", "", author) for author in authors]
    return found


def field(text):
    """A text as the continuation of a field."""
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "\n".join(f" {line}" if line else " ." for line in lines)


def without_holders(text):
    """The conditions of a licence, without what stands before them: headings and holders."""
    lines = [re.sub(r"^\s?(//|#)\s?", "", line) for line in text.splitlines()]
    starts = ("permission ", "redistribution and use")
    first = next((n for n, line in enumerate(lines) if line.strip().lower().startswith(starts)), 0)
    # Holders of parts of the work may follow.
    kept = [line for line in lines[first:] if not re.match(r"\s*Copyright (\(c\)|\d{4})", line, re.I)]
    return "\n".join(kept).strip()


def is_text_of(licence, text):
    """Whether a licence file has the conditions of a licence."""
    words = re.sub(r"\W+", " ", text).lower()
    is_bsd, has_third = "redistributions of source code" in words, "neither the name" in words
    return {
        "ISC": "permission to use copy modify" in words,
        "BSD-2-Clause": is_bsd and not has_third,
        "BSD-3-Clause": is_bsd and has_third,
        "Zlib": "this software is provided as is without" in words,
        "Unicode-3.0": "unicode license v3" in words,
    }.get(licence, False)


class Texts:
    """The texts of the licences, each once."""

    def __init__(self):
        self.of = {"MIT": without_holders((ROOT / "LICENSE-MIT").read_text())}

    def name(self, licence, files):
        """The name of a licence here: a wording of its own gets a name of its own."""
        if licence in COMMON or licence == "MIT":
            return licence
        texts = (file.read_text(errors="replace") for file in files)
        text = next((without_holders(text) for text in texts if is_text_of(licence, text)), None)
        if text is None:
            sys.exit(f"copyright.py: no file with the text of {licence} among {files}")
        # Names of holders apart, most wordings are the same.
        words = re.sub(r"\W+", " ", text).lower()
        for number in range(1, 100):
            name = licence if number == 1 else f"{licence}-{number}"
            if name not in self.of:
                self.of[name] = text
            if re.sub(r"\W+", " ", self.of[name]).lower() == words:
                return name
        sys.exit(f"copyright.py: too many wordings of {licence}")


def stanza(files, copyright, licence, comment=None):
    """Prints what a set of files is under."""
    print(f"Files: {files}")
    print("Copyright: " + "\n           ".join(copyright))
    print(f"License: {licence}")
    if comment:
        print(f"Comment: {comment}")
    print()


def main():
    metadata = json.loads(cargo("metadata", "--format-version", "1"))
    packages = {(p["name"], "v" + p["version"]): p for p in metadata["packages"]}
    texts = Texts()
    print("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/")
    print("Upstream-Name: pramfs")
    print("Comment:")
    print(field("Written by debian/copyright.py from `cargo metadata` and the sources of the crates.\n"
                "The programs and libraries link the crates below vendor/ statically. The source of\n"
                "each is at https://crates.io/crates/NAME/VERSION; `cargo vendor` puts it there."))
    print()
    ours = re.search(r"Copyright (?:\(c\) )?(.*)", (ROOT / "LICENSE-MIT").read_text())[1]
    stanza("*", [ours], "MIT or Apache-2.0")
    stanza("vendor/rust-std/*", ["The Rust Project contributors"], "MIT or Apache-2.0",
           "The standard library of Rust, which rustc links statically.")
    for key in sorted(linked()):
        package = packages[key]
        if package["source"] is None:
            continue
        name, version = key
        directory = Path(package["manifest_path"]).parent
        files = licence_files(directory)
        own = [f for f in files if f.parent == directory]
        names = [texts.name(licence, own) for licence in chosen(name, package["license"])]
        place = f"vendor/{name}-{version[1:]}"
        stanza(f"{place}/*", holders(own, package), " and ".join(names))
        # Sources of others inside a crate, with a licence of their own: the C library in zstd-sys.
        for path in files:
            inside = path.parent.relative_to(directory)
            text = path.read_text(errors="replace")
            if path.parent != directory and is_text_of("BSD-3-Clause", text):
                stanza(f"{place}/{inside}/*", holders([path], package),
                       texts.name("BSD-3-Clause", [path]))
    for name, text in texts.of.items():
        print(f"License: {name}\n{field(text)}\n")
    for name, path in COMMON.items():
        print(f"License: {name}")
        print(field(f"On Debian systems, the text of this licence is in\n{path}.") + "\n")


main()
