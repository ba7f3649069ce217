"""Hook of mkdocs (mkdocs.yml): links that lead out of docs/ go to the repository."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with whole links to files beside docs/."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if not target.startswith("../"):
            return link[0]
        return f"]({config.repo_url or 'https://github.com'}/blob/HEAD/{target[3:]}{link[2] or ''})"

    return LINK.sub(outside, markdown)
