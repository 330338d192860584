# nix build; nix run .#pramfs -- doctor /dev/shm. docs/packaging.md says how it is checked.
{
  description = "pramfs, a crash-safe file system for persistent memory";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
      manifest = builtins.fromTOML (builtins.readFile ./Cargo.toml);
      pramfs = pkgs.rustPlatform.buildRustPackage {
        pname = "pramfs";
        version = manifest.workspace.package.version;
        src = self;
        cargoLock.lockFile = ./Cargo.lock;
        nativeBuildInputs = [ pkgs.pkg-config ];

        # As in every other package: `make build` and `make install`.
        buildPhase = ''
          runHook preBuild
          make build PROFILE=dist
          runHook postBuild
        '';
        # All tests take hours and root.
        doCheck = false;
        installPhase = ''
          runHook preInstall
          make install PROFILE=dist PREFIX=$out HELPERDIR=$out/bin SBINDIR=$out/bin
          runHook postInstall
        '';
        # libpmem2 is loaded at run time, and the loader looks in no common directory.
        postFixup = ''
          for file in $out/bin/* $out/lib/libpramfs.so.*.*; do
            if [ -f "$file" ] && [ ! -L "$file" ]; then
              patchelf --add-rpath ${pkgs.pmdk}/lib "$file"
            fi
          done
        '';
        meta = {
          description = "Crash-safe file system for persistent memory";
          license = with pkgs.lib.licenses; [
            mit
            asl20
          ];
          platforms = [ system ];
          mainProgram = "pramfs";
        };
      };
    in
    {
      packages.${system} = {
        inherit pramfs;
        default = pramfs;
      };
      devShells.${system}.default = pkgs.mkShell {
        inputsFrom = [ pramfs ];
        packages = [ pkgs.pmdk ];
      };
    };
}
