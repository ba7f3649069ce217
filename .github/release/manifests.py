"""Write the Homebrew formula and the winget manifests of a release: python manifests.py FOLDER --url PROJECT

FOLDER has the release's files: wheel, requirements.txt and the zips for Windows. Their hashes go into the
manifests, which are written there as clairvoyant.rb and winget/*.yaml.
"""

import argparse
import hashlib
from pathlib import Path

FORMULA = """\
class Clairvoyant < Formula
  include Language::Python::Virtualenv

  desc "Proxy that sends the shortest predicted LLM answer first"
  homepage "{url}"
  url "{files}/{wheel}", using: :nounzip
  version "{version}"
  sha256 "{wheel_sha256}"
  license "MIT"

  depends_on "python@3.13"

  # Some dependencies have no source release: all are installed from wheels, by the hashes in this file.
  resource "requirements" do
    url "{files}/requirements.txt"
    sha256 "{requirements_sha256}"
  end

  def install
    virtualenv_create(libexec, "python3.13")
    pip = ["python3.13", "-m", "pip", "--python=#{{libexec}}/bin/python", "install"]
    resource("requirements").stage do
      system(*pip, "--only-binary=:all:", "--require-hashes", "--requirement=requirements.txt")
    end
    system(*pip, "--no-deps", *Dir["*.whl"])
    bin.install_symlink libexec/"bin/clairvoyant"
    man1.install_symlink libexec/"share/man/man1/clairvoyant.1"
    generate_completions_from_executable(bin/"clairvoyant", shell_parameter_format: :click)
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/clairvoyant --version")
    assert_match "short answers", shell_output("#{{bin}}/clairvoyant demo --requests 4 --speed 5000")
  end
end
"""

VERSION = """\
# yaml-language-server: $schema=https://aka.ms/winget-manifest.version.1.9.0.schema.json
PackageIdentifier: {identifier}
PackageVersion: {version}
DefaultLocale: en-US
ManifestType: version
ManifestVersion: 1.9.0
"""

LOCALE = """\
# yaml-language-server: $schema=https://aka.ms/winget-manifest.defaultLocale.1.9.0.schema.json
PackageIdentifier: {identifier}
PackageVersion: {version}
PackageLocale: en-US
Publisher: {owner}
PackageName: Clairvoyant
PackageUrl: {url}
License: MIT
LicenseUrl: {url}/blob/v{version}/LICENSE
ShortDescription: A proxy in front of a local LLM server that sends the shortest predicted answer first.
Moniker: clairvoyant
Tags:
- llm
- ollama
- proxy
- scheduling
ReleaseNotesUrl: {url}/releases/tag/v{version}
ManifestType: defaultLocale
ManifestVersion: 1.9.0
"""

INSTALLER = """\
# yaml-language-server: $schema=https://aka.ms/winget-manifest.installer.1.9.0.schema.json
PackageIdentifier: {identifier}
PackageVersion: {version}
InstallerType: zip
NestedInstallerType: portable
NestedInstallerFiles:
- RelativeFilePath: clairvoyant\\bin\\clairvoyant.exe
  PortableCommandAlias: clairvoyant
ArchiveBinariesDependOnPath: true
Commands:
- clairvoyant
Installers:
{installers}ManifestType: installer
ManifestVersion: 1.9.0
"""

INSTALLERS = """\
- Architecture: {architecture}
  InstallerUrl: {files}/{name}
  InstallerSha256: {sha256}
"""


def main() -> None:
    """Write the manifests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", required=True, help="the project, https://HOST/OWNER/NAME")
    args = parser.parse_args()
    url = args.url.rstrip("/")
    (wheel,) = args.folder.glob("*.whl")
    version, owner = wheel.name.split("-")[1], url.split("/")[-2]
    files = f"{url}/releases/download/v{version}"
    facts = {
        "url": url,
        "files": files,
        "version": version,
        "owner": owner,
        "identifier": f"{owner}.Clairvoyant",
    }
    formula = FORMULA.format(
        **facts,
        wheel=wheel.name,
        wheel_sha256=sha256(wheel),
        requirements_sha256=sha256(args.folder / "requirements.txt"),
    )
    (args.folder / "clairvoyant.rb").write_text(formula)
    installers = [
        INSTALLERS.format(
            architecture=architecture, files=files, name=zipped.name, sha256=sha256(zipped).upper()
        )
        for architecture, suffix in (("x64", "amd64"), ("arm64", "arm64"))
        for zipped in args.folder.glob(f"*-windows-{suffix}.zip")
    ]
    if len(installers) != 2:
        parser.error(f"{args.folder} needs one zip for amd64 and one for arm64")
    texts = {"": VERSION, ".locale.en-US": LOCALE, ".installer": INSTALLER}
    (args.folder / "winget").mkdir(exist_ok=True)
    for kind, text in texts.items():
        target = args.folder / "winget" / f"{facts['identifier']}{kind}.yaml"
        target.write_text(text.format(**facts, installers="".join(installers)))


def sha256(file: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
