# Entry points. `make` alone lists the targets. Each recipe is one command that can
# also be typed by hand.

PREFIX     ?= /usr/local
SBINDIR    ?= $(PREFIX)/sbin
# mount(8), mkfs(8) and fsck(8) look for their helpers only in /sbin. If that is a
# link to /usr/sbin or /usr/bin, packages must not have files below it.
HELPERDIR  ?= $(or $(shell readlink -f /sbin),/sbin)
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
BASHDIR    ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR     ?= $(PREFIX)/share/zsh/site-functions
FISHDIR    ?= $(PREFIX)/share/fish/vendor_completions.d
# All versions of Python 3 look there on a Debian. For packages: `make install` leaves it out.
PYTHONDIR  ?= $(PREFIX)/lib/python3/dist-packages
DESTDIR    ?=
CARGO      ?= cargo
STRIP      ?= strip
FUZZ_TIME  ?= 60

bindir  = $(DESTDIR)$(PREFIX)/bin
sbindir = $(DESTDIR)$(SBINDIR)
preloaddir = $(DESTDIR)$(PREFIX)/lib/pramfs
# systemd looks there in /usr and in /usr/local.
unitdir = $(DESTDIR)$(PREFIX)/lib/systemd/system
systemd = scripts/systemd
# udev looks there likewise.
rulesdir = $(DESTDIR)$(PREFIX)/lib/udev/rules.d
udev    = scripts/udev
rules   = 60-pramfs.rules
# For file(1).
magic   = scripts/file
sharedir = $(DESTDIR)$(PREFIX)/share/pramfs
units   = $(notdir $(wildcard $(systemd)/*.service $(systemd)/*.timer))
# The programs that they start, beside the tools.
unit-scripts = collect-pstore keep-region
places  = s|@BINDIR@|$(PREFIX)/bin|; s|@SBINDIR@|$(SBINDIR)|; s|@LIB@|$(PREFIX)/lib/pramfs|
mandir  = $(DESTDIR)$(MANDIR)
bashdir = $(DESTDIR)$(BASHDIR)
zshdir  = $(DESTDIR)$(ZSHDIR)
fishdir = $(DESTDIR)$(FISHDIR)
# The programs with completions.
completed = pramfs pramfs-virtiofsd mkfs.pramfs fsck.pramfs mount.pramfs umount.fuse.pramfs
docdir  = $(DESTDIR)$(PREFIX)/share/doc/pramfs
helpers = $(DESTDIR)$(HELPERDIR)
libdir  = $(DESTDIR)$(LIBDIR)
incdir  = $(DESTDIR)$(INCLUDEDIR)
pythondir = $(DESTDIR)$(PYTHONDIR)
# The profile of cargo that is built and installed. PROFILE=dist is for packages: no debug
# information, and no path of the builder in any file.
PROFILE ?= release
target  = $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)
# Of the workspace.
version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Of the binary interface of the library for C, which has numbers of its own.
abi     := $(shell sed -n 's/^const ABI: &str = "\(.*\)";/\1/p' capi/build.rs)
soname  := libpramfs.so.$(firstword $(subst ., ,$(abi)))
# Without the rlib of the tests: cargo optimises across crates only without it.
build-lib = $(CARGO) rustc --locked --profile $(PROFILE) -p pramfs-capi --lib --crate-type cdylib,staticlib
ifeq ($(PROFILE),dist)
# The places of sources as they appear in messages of a panic. The later one wins.
moved = $(CURDIR)=/usr/src/pramfs $(if $(CARGO_TARGET_DIR),$(abspath $(CARGO_TARGET_DIR))=/usr/src/pramfs/target) \
	$(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src=/usr/src/crates
export RUSTFLAGS := $(RUSTFLAGS) $(foreach m,$(moved),--remap-path-prefix=$m)
export CFLAGS := $(CFLAGS) $(foreach m,$(moved),-ffile-prefix-map=$m)
endif

# Finds a freshly installed toolchain without a new login.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-suites test-programs test-load test-python test-vm test-replication test-bare crash takeover mutants sanitize loom bench experiments scale instructions settings startup build build-python install install-programs install-lib install-preload install-manuals install-python uninstall deb test-deb test-packaging check-reproducible sbom deps deps-test deps-bench fmt fmt-check clippy docs book fuzz fuzz-smoke test-user check-msrv check-aarch64 check-deny publish-check

help: ## shows this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: deps ## makes, mounts, fills, maps, kills and recovers a file system
	@scripts/demo.sh

test: deps-test ## all tests, including those that mount (as root)
	@scripts/test.sh

test-user: deps ## the tests that need no root, and no other suites and programs
	@scripts/test-user.sh

test-suites: deps-test ## long runs of pjdfstest, fsx, stress-ng, fio, dbench on a mount
	PRAMFS_SUITES=long scripts/test.sh -p pramfs-tests --test suites

test-programs: deps-test ## compilers, databases, git, rsync, Python's tests on a mount
	PRAMFS_PROGRAMS=full scripts/test.sh -p pramfs-tests --test programs

test-load: deps-test ## 24 writers and readers for ten minutes, every byte accounted for
	PRAMFS_LOAD_SECONDS=$(or $(LOAD_SECONDS),600) scripts/test.sh -p pramfs-tests --test load

test-python: ## builds the wheel of the Python package and tests it, with pandas, pyarrow and zarr
	@scripts/deps.sh --python
	@scripts/test-python.sh $(PYTEST_ARGS)

test-vm: ## power cuts and a systemd boot on an emulated NVDIMM, and virtiofs, in QEMU (VM_ARGS="--cuts 10")
	@scripts/test-vm.sh $(VM_ARGS)

test-replication: ## GlusterFS, NFS, rsync, pramfs save and DRBD over several machines, as root (TEST_ARGS="--only nfs")
	@scripts/test-replication.sh $(TEST_ARGS)

crash: deps-test ## runs the crash explorer for hours; QUICK=1 for minutes
	$(CARGO) run --release -p pramfs-tests --bin crash-explorer -- $(if $(QUICK),--quick,--resume $(or $(CARGO_TARGET_DIR),target)/crash-progress.json)
	@scripts/sigkill.sh $(if $(QUICK),400,4000)

takeover: deps-test ## kills a thousand servers of a mount under programs that must not notice
	$(CARGO) build --bins
	PRAMFS_TAKEOVER_KILLS=$(or $(KILLS),1000) $(CARGO) test -p pramfs-tests --test takeover -- --nocapture

mutants: deps-test ## breaks the engine at each place that orders stores: the tests must notice
	MUTANT_TABLE=$(CURDIR)/docs/mutants.md $(CARGO) test -p pramfs-tests --features mutants --test mutants -- --nocapture

sanitize: ## runs two threads on the engine, under Miri and ThreadSanitizer (nightly)
	@scripts/sanitize.sh

loom: ## explores the lock-free protocols under the memory model, unchanged and weakened
	@scripts/loom.sh

bench: deps-bench ## measures speed against the competitors, in one run
	$(CARGO) build --release -p pramfs-preload
	$(CARGO) run --release -p pramfs-bench -- run

experiments: deps-bench ## repeats the four published experiments, renews their tables and charts
	$(CARGO) build --release -p pramfs-preload
	$(CARGO) run --release -p pramfs-bench -- xip
	$(CARGO) run --release -p pramfs-bench -- odirect
	$(CARGO) run --release -p pramfs-bench -- parallel
	$(CARGO) run --release -p pramfs-bench -- unmapped
	$(CARGO) run --release -p pramfs-bench -- report

scale: deps-bench ## measures throughput with 1, 2, 4, ... threads
	$(CARGO) run --release -p pramfs-bench -- scale

instructions: deps-bench ## counts the instructions of each operation and request with valgrind
	$(CARGO) run --release -p pramfs-bench -- count
	$(CARGO) run --release -p pramfs-bench -- requests

startup: ## measures how long a mount takes until it is live (after make build, as root)
	@scripts/startup.sh $(or $(TIMES),100)

settings: deps-bench ## measures what the settings of the compiler are worth (half an hour of builds)
	$(CARGO) run --release -p pramfs-bench -- settings

build: ## release build of all programs, their manuals and the C library
	$(CARGO) build --locked --profile $(PROFILE) -p pramfs-tools -p pramfs-fuse -p pramfs-manuals --bins
	$(target)/pramfs-manuals $(target)/share
	$(build-lib)
	@# Apart: it needs fewer features of the crates that it shares with the programs.
	$(CARGO) build --locked --profile $(PROFILE) -p pramfs-preload

# As maturin builds it for the wheel: for the stable ABI, and without a libpython. No Python is needed.
build-python: ## release build of the extension module for Python, for packages without pip
	PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1 $(CARGO) rustc --locked --profile $(PROFILE) -p pramfs-python --lib

# Stops if one of the named files of the build is missing. Nothing is built here: `sudo make
# install` would leave files of root in the target directory, or find no cargo. The second argument
# is the target that builds them, if it is another than `build`.
is-built = for file in $1; do test -e $(target)/$$file || { \
	echo "$(target)/$$file is not built yet: type 'make $(or $2,build)$(if $(filter-out release,$(PROFILE)), PROFILE=$(PROFILE))' as an ordinary user first" >&2; exit 1; }; done

install: install-programs install-lib install-preload install-manuals ## installs what is built (PREFIX, SBINDIR, HELPERDIR, LIBDIR, INCLUDEDIR, MANDIR, DESTDIR)

install-programs: # without the libraries
	@$(call is-built,pramfs pramfs-virtiofsd mkfs-pramfs fsck-pramfs mount-pramfs)
	@if $(target)/pramfs --version | grep -q testing; then echo "this build contains test hooks (cargo build --workspace, cargo test -p pramfs): type 'make build' first" >&2; exit 1; fi
	install -d $(bindir) $(sbindir) $(helpers) $(docdir)
	install -m 0755 $(target)/pramfs $(bindir)/pramfs
	install -m 0755 $(target)/pramfs-virtiofsd $(bindir)/pramfs-virtiofsd
	install -m 0755 $(target)/mkfs-pramfs $(sbindir)/mkfs.pramfs
	install -m 0755 $(target)/fsck-pramfs $(sbindir)/fsck.pramfs
	install -m 0755 $(target)/mount-pramfs $(sbindir)/mount.pramfs
	$(STRIP) $(addprefix $(bindir)/,pramfs pramfs-virtiofsd) $(addprefix $(sbindir)/,mkfs.pramfs fsck.pramfs mount.pramfs)
	@# A link as second name, unless both places are the same. The links are relative,
	@# so that they are also valid in a package's tree.
	for tool in mkfs fsck mount; do \
		test $(sbindir)/$$tool.pramfs -ef $(helpers)/$$tool.pramfs || ln -srf $(sbindir)/$$tool.pramfs $(helpers)/$$tool.pramfs || exit 1; \
		ln -srf $(sbindir)/$$tool.pramfs $(helpers)/$$tool.fuse.pramfs || exit 1; \
	done
	ln -srf $(sbindir)/mount.pramfs $(helpers)/umount.fuse.pramfs
	install -m 0644 LICENSE-MIT LICENSE-APACHE CHANGELOG.md $(docdir)
	install -d $(unitdir) $(preloaddir)
	for unit in $(units); do \
		sed -e '$(places)' $(systemd)/$$unit > $(unitdir)/$$unit && chmod 0644 $(unitdir)/$$unit || exit 1; \
	done
	for script in $(unit-scripts); do \
		sed -e '$(places)' $(systemd)/$$script > $(preloaddir)/$$script && chmod 0755 $(preloaddir)/$$script || exit 1; \
	done
	install -d $(rulesdir) $(sharedir)
	sed -e '$(places)' $(udev)/$(rules) > $(rulesdir)/$(rules) && chmod 0644 $(rulesdir)/$(rules)
	install -m 0644 $(magic)/magic $(sharedir)/magic

install-lib: ## installs the C library alone
	@$(call is-built,libpramfs_c.so libpramfs_c.a)
	@if grep -aq '$(version)+testing' $(target)/libpramfs_c.so; then echo "this build contains test hooks: type 'make build' first" >&2; exit 1; fi
	install -d $(libdir)/pkgconfig $(incdir)
	install -m 0644 $(target)/libpramfs_c.so $(libdir)/libpramfs.so.$(abi)
	$(STRIP) --strip-unneeded $(libdir)/libpramfs.so.$(abi)
	ln -sf libpramfs.so.$(abi) $(libdir)/$(soname)
	ln -sf $(soname) $(libdir)/libpramfs.so
	install -m 0644 $(target)/libpramfs_c.a $(libdir)/libpramfs.a
	$(STRIP) --strip-debug $(libdir)/libpramfs.a
	install -m 0644 capi/include/pramfs.h $(incdir)/pramfs.h
	@# @PRIVATE@ is what a program needs besides, if it links libpramfs.a.
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
		-e 's|@VERSION@|$(version)|; s|@PRIVATE@|-lgcc_s -lpthread -lm -ldl|' \
		capi/pramfs.pc.in > $(libdir)/pkgconfig/pramfs.pc
	chmod 0644 $(libdir)/pkgconfig/pramfs.pc

install-preload: # where pramfs run looks for it, next to the tool
	@$(call is-built,libpramfs_preload.so)
	install -d $(preloaddir)
	install -m 0644 $(target)/libpramfs_preload.so $(preloaddir)/libpramfs_preload.so
	$(STRIP) --strip-unneeded $(preloaddir)/libpramfs_preload.so

install-python: # the Python package, and its description for pip
	@$(call is-built,libpramfs_python.so,build-python)
	@if grep -aq '$(version)+testing' $(target)/libpramfs_python.so; then echo "this build contains test hooks: type 'make build-python' first" >&2; exit 1; fi
	install -d $(pythondir)/pramfs
	install -m 0644 python/pramfs/*.py python/pramfs/*.pyi python/pramfs/py.typed $(pythondir)/pramfs
	install -m 0644 $(target)/libpramfs_python.so $(pythondir)/pramfs/_native.abi3.so
	$(STRIP) --strip-unneeded $(pythondir)/pramfs/_native.abi3.so
	python3 scripts/python-metadata.py $(pythondir)

install-manuals: # the pages and completions of the last build
	@test -d $(target)/share/man || { echo "the manuals are not built yet: type 'make build' as a user who has $(CARGO)" >&2; exit 1; }
	install -d $(bashdir) $(zshdir) $(fishdir)
	for section in 1 3 5 7 8; do \
		install -d $(mandir)/man$$section && \
		install -m 0644 $(target)/share/man/man$$section/*.$$section $(mandir)/man$$section || exit 1; \
	done
	for program in $(completed); do \
		install -m 0644 $(target)/share/completions/bash/$$program $(bashdir)/$$program && \
		install -m 0644 $(target)/share/completions/zsh/_$$program $(zshdir)/_$$program && \
		install -m 0644 $(target)/share/completions/fish/$$program.fish $(fishdir)/$$program.fish || exit 1; \
	done

uninstall: ## removes the installed files
	rm -f $(bindir)/pramfs $(bindir)/pramfs-virtiofsd $(preloaddir)/libpramfs_preload.so
	rm -f $(helpers)/umount.fuse.pramfs $(addprefix $(preloaddir)/,$(unit-scripts)) $(addprefix $(unitdir)/,$(units))
	rm -f $(foreach tool,mkfs fsck mount,$(helpers)/$(tool).pramfs $(helpers)/$(tool).fuse.pramfs $(sbindir)/$(tool).pramfs)
	rm -f $(addprefix $(libdir)/,libpramfs.so $(soname) libpramfs.so.$(abi) libpramfs.a pkgconfig/pramfs.pc) $(incdir)/pramfs.h
	rm -f $(addprefix $(docdir)/,LICENSE-MIT LICENSE-APACHE CHANGELOG.md)
	rm -f $(mandir)/man1/pramfs.1 $(mandir)/man1/pramfs-*.1 $(mandir)/man3/libpramfs.3 $(mandir)/man5/pramfs.5 $(mandir)/man7/pramfs.7
	rm -f $(addprefix $(mandir)/man8/,pramfs-virtiofsd.8 $(foreach tool,mkfs fsck mount,$(tool).pramfs.8 $(tool).fuse.pramfs.8) umount.fuse.pramfs.8)
	rm -f $(foreach program,$(completed),$(bashdir)/$(program) $(zshdir)/_$(program) $(fishdir)/$(program).fish)
	rm -f $(rulesdir)/$(rules) $(sharedir)/magic
	rm -f $(addprefix $(pythondir)/pramfs/,$(notdir $(wildcard python/pramfs/*.py python/pramfs/*.pyi)) py.typed _native.abi3.so __pycache__/*.pyc)
	rm -f $(addprefix $(pythondir)/pramfs-$(version).dist-info/,METADATA WHEEL entry_points.txt)
	-rmdir $(docdir) $(preloaddir) $(sharedir) $(pythondir)/pramfs/__pycache__ $(pythondir)/pramfs $(pythondir)/pramfs-$(version).dist-info 2>/dev/null

deb: ## builds the Debian packages, in target/deb
	@scripts/deb.sh

test-deb: ## installs, uses, upgrades and purges the Debian packages in a clean chroot (as root)
	@scripts/test-deb.sh

test-packaging: ## builds the RPM, and checks the Nix flake and the PKGBUILD, where their tools are
	@scripts/test-packaging.sh

test-bare: ## runs `make demo` in a bare Debian 13, which installs all that it needs (as root)
	@scripts/test-bare.sh

check-reproducible: ## builds the Debian packages once more in another directory, and compares them
	@scripts/check-reproducible.sh

sbom: ## lists what is linked into the programs, as CycloneDX (cargo-cyclonedx)
	@scripts/sbom.sh

deps: ## installs the missing requirements to build and mount
	@scripts/deps.sh

deps-test:
	@scripts/deps.sh --test --suites --programs

deps-bench:
	@scripts/deps.sh --bench

fmt: ## formats the sources
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

# Twice: programs have no hooks for tests, and tests have all of them. Each call compiles the
# dependencies with the features that it needs.
clippy: ## runs the lints, warnings denied
	$(CARGO) clippy --workspace --exclude pramfs --exclude pramfs-fsck --exclude pramfs-loom --exclude pramfs-tests --all-targets -- -D warnings
	$(CARGO) clippy -p pramfs -p pramfs-fsck -p pramfs-loom -p pramfs-tests --features pramfs-tests/mutants --all-targets -- -D warnings

docs: ## builds the API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --exclude pramfs-tests --no-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p pramfs-tests --no-deps

book: ## builds the documentation site from docs/ into target/book (mdbook)
	@scripts/book.sh

fuzz: ## runs each fuzz target for FUZZ_TIME seconds (cargo-fuzz)
	@scripts/fuzz.sh $(FUZZ_TIME)

fuzz-smoke: ## runs each fuzz target for a minute (nightly, cargo-fuzz)
	@scripts/fuzz-smoke.sh

check-msrv: ## compiles everything with the oldest supported Rust
	@scripts/check-msrv.sh

check-aarch64: ## compiles the library and the programs for aarch64, without libpmem2
	@scripts/check-aarch64.sh

check-deny: ## licences, advisories and sources of the dependencies (cargo-deny)
	@scripts/check-deny.sh

publish-check: deps ## packs and compiles the crates that users link, as for crates.io
	@scripts/publish-check.sh
