"""Copy the pages of the site into one folder: those of docs/ and those that GitHub wants at the top of the repository.

`scripts/docs` calls it before MkDocs. Links between pages follow the pages; links to other files of the repository
lead to them on the web. A Chinese page has the sections of its original, one by one: each gets the anchor of the
original too, so that a link to the section works in both languages.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from functools import partial
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/pytest-aisbench/pytest-aisbench"
CHINESE = ".zh-CN.md"  # how a page in Chinese ends in the repository; MkDocs knows the language as `zh`
# Pages at the top of the repository, and their names in the site.
TOP = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^([ ]*```.*?^[ ]*```)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def prepare(folder: Path) -> list[str]:
    """Write all pages into `folder`; return one line for each link to nothing and each section not translated."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    pages = {source: source.removeprefix("docs/").replace(CHINESE, ".zh.md") for source in sources} | TOP
    errors: list[str] = []
    for source, page in pages.items():
        parts = _parts(source)
        parts[::2] = [
            _LINK.sub(partial(_followed, source=source, pages=pages, errors=errors), part) for part in parts[::2]
        ]
        if source.endswith(CHINESE):
            errors += untranslated(source)
            anchors = iter([_anchor(title) for _, title in _headings(source.replace(CHINESE, ".md"))])
            parts[::2] = [_HEADING.sub(partial(_with_anchor, anchors=anchors), part) for part in parts[::2]]
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(parts), encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.png"):
        copy = folder / picture.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
    return errors


def untranslated(source: str) -> list[str]:
    """One line if a Chinese page does not have the sections of its original, in their order."""
    original = source.replace(CHINESE, ".md")
    for here, there in zip_longest(_headings(source), _headings(original), fillvalue=("", "")):
        if here[0] != there[0]:
            return [f"{source}: {here[1] or 'the end'!r} stands where {original} has {there[1] or 'its end'!r}"]
    return []


def _parts(source: str) -> list[str]:
    """The text of a page; every second part is code."""
    return _FENCE.split((ROOT / source).read_text(encoding="utf-8"))


def _headings(source: str) -> list[tuple[str, str]]:
    return [(level, title) for part in _parts(source)[::2] for level, title in _HEADING.findall(part)]


def _anchor(title: str) -> str:
    """As GitHub and MkDocs make it of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def _with_anchor(heading: re.Match[str], anchors: object) -> str:
    anchor = next(anchors, "")  # type: ignore[call-overload]
    return f'<a id="{anchor}"></a>\n\n{heading.group(0)}' if anchor else heading.group(0)


def _followed(link: re.Match[str], source: str, pages: dict[str, str], errors: list[str]) -> str:
    text, path, anchor = link.group(1), link.group(2), link.group(3) or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    here = posixpath.dirname(pages[source]) or "."
    if target in pages:
        if source.endswith(CHINESE) != target.endswith(CHINESE) and target.replace(CHINESE, ".md") == source.replace(
            CHINESE, ".md"
        ):
            return _other_language(text, pages[target])
        page = pages[target].replace(
            ".zh.md", ".md"
        )  # MkDocs takes the translation where the reader's language has one
        return f"[{text}]({posixpath.relpath(page, here)}{anchor})"
    if not (ROOT / target).exists():
        errors.append(f"{source}: there is no {target}")
    if target.endswith(".png"):
        return f"[{text}]({posixpath.relpath(target.removeprefix('docs/'), here)})"
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"[{text}]({REPOSITORY}/{kind}/main/{target}{anchor})"


def _other_language(text: str, page: str) -> str:
    """A link to the same page in the other language; MkDocs itself has no word for it."""
    if page.endswith(".zh.md"):
        return f'<a href="zh/{page.replace(".zh.md", ".html")}">{text}</a>'
    return f'<a href="../{page.replace(".md", ".html")}">{text}</a>'


if __name__ == "__main__":
    lines = prepare(Path(sys.argv[1]))
    sys.exit("\n".join(lines) if lines else 0)
