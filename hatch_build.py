"""What a package page shows: the README with whole links, and where the project lives.

A package page resolves no relative link. The publisher gives the project's address:
CLAIRVOYANT_PROJECT_URL=https://github.com/OWNER/clairvoyant uv build
"""

import os
import re
from pathlib import Path
from typing import Any

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
