"""What a package page shows (the README with whole links, and where the project lives), and a wheel's commit.

A package page resolves no relative link, so the publisher gives the address of the project, and the commit if
the sources have no .git directory:
CLAIRVOYANT_PROJECT_URL=https://github.com/OWNER/clairvoyant CLAIRVOYANT_COMMIT=3f2a9c1e uv build
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "CLAIRVOYANT_PROJECT_URL"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#)[^)]+)\)")


def with_whole_links(readme: str, url: str) -> str:
    """Return a README whose links lead into the repository at `url`; pictures to their bytes."""
    return LINK.sub(
        lambda found: (
            f"{found['image']}[{found['text']}]"
            f"({url}/{'raw' if found['image'] else 'blob'}/HEAD/{found['target']})"
        ),
        readme,
    )


class ProjectPage(MetadataHookInterface):
    """Adds the README and the URLs to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what depends on where the project lives; plain, and no URLs, where nobody said."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get(VARIABLE, "").rstrip("/")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_whole_links(text, url) if url else text,
        }
        metadata["urls"] = {
            name: f"{url}{path}"
            for name, path in {
                "Homepage": "",
                "Documentation": "/blob/HEAD/docs/README.md",
                "Changelog": "/blob/HEAD/CHANGELOG.md",
                "Issues": "/issues",
            }.items()
            if url
        }


class Commit(BuildHookInterface[Any]):
    """Puts the commit into the wheel, for `clairvoyant --version`. An editable install asks git."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file and have it included; nothing where the commit is unknown."""
        asked = ["git", "-C", self.root, "rev-parse", "--short=8", "HEAD"]
        commit = os.environ.get("CLAIRVOYANT_COMMIT", "")[:8]
        if not commit and (Path(self.root) / ".git").exists():
            commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if commit and version == "standard":
            path = Path(self.directory) / "commit.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit)
            build_data["force_include"][str(path)] = "clairvoyant_cli/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file."""
        (Path(self.directory) / "commit.txt").unlink(missing_ok=True)
