#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into a virtual environment of its own
# below target/, and runs its tests there: doctests, types, pandas, pyarrow and zarr among them.
#
#   scripts/test-python.sh [ARGUMENTS of pytest]
#
# PYTHON chooses the interpreter: python3, or the one of a build without the GIL. PROFILE is the
# profile of the build: dev. PRAMFS_LIBRARY and PRAMFS_MOUNT are a libpramfs and a mount.pramfs that
# exist; without them, they are built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
python=${PYTHON:-python3}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

tag=$("$python" -c 'import sys, sysconfig; print(f"{sys.version_info[0]}.{sys.version_info[1]}" + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))')
case $tag in
3.1[1-9]*) ;;
*)
    echo "the package needs Python 3.11 or newer, and $python is $tag: set PYTHON" >&2
    exit 1
    ;;
esac

# Kept between runs, and made anew for other packages.
venv=$target/python/$tag
wanted=$(cat python/requirements-test.txt)
if [[ ! -x $venv/bin/python || $(cat "$venv/wanted" 2>/dev/null) != "$wanted" ]]; then
    echo "test-python: installing the packages of the tests for Python $tag"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
    if [[ $tag != *t ]]; then
        "${pip[@]}" -r python/requirements-test.txt
    else
        # Not all have a wheel for it, and to compile pandas takes longer than all the tests.
        "${pip[@]}" --only-binary :all: $(grep -E '^(maturin|pytest)==' python/requirements-test.txt)
        while read -r package; do
            "${pip[@]}" --only-binary :all: "$package" </dev/null 2>"$venv/pip.log" && continue
            if ! grep -q 'No matching distribution' "$venv/pip.log"; then
                cat "$venv/pip.log" >&2
                exit 1
            fi
            echo "test-python: *** SKIPPED: the tests with ${package%%=*}: no wheel of $package for Python $tag ***"
            [[ -z ${CI-} ]] || exit 1
        done < <(grep -v '^#' python/requirements-test.txt)
    fi
    printf '%s\n' "$wanted" >"$venv/wanted"
fi

# The library of C, for the test of both in one process, and the program that mounts.
if [[ -z ${PRAMFS_LIBRARY:-} ]]; then
    cargo build --quiet -p pramfs-capi
    export PRAMFS_LIBRARY=$target/debug/libpramfs_c.so
fi
if [[ -z ${PRAMFS_MOUNT:-} ]]; then
    cargo build --quiet -p pramfs-fuse --bins
    export PRAMFS_MOUNT=$target/debug/mount-pramfs
fi
wheels=$target/python/wheels-$tag
rm -rf "$wheels"
"$venv/bin/maturin" build --quiet --locked --profile "${PROFILE:-dev}" --compatibility linux \
    --interpreter "$venv/bin/python" --manifest-path python/Cargo.toml --out "$wheels" --target-dir "$target"
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/*.whl
echo "test-python: $(cd "$wheels" && ls -s --block-size=K ./*.whl)"

if [[ $tag != *t ]]; then
    echo "test-python: Python $tag has a GIL; python=\$(scripts/python-without-gil.sh) && make test-python PYTHON=\"\$python\" tests a build without it"
fi
# Outside of python/, so that the installed package is tested.
exec "$venv/bin/python" -X dev -m pytest -c python/pyproject.toml --rootdir python -p no:cacheprovider \
    --import-mode=append python/tests "$@"
