"""Reads documents (plain text, JSON) out of the unpacked packages.

Knows each package's files; knows nothing of tokens.
"""

import gzip
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# JSON decoded from a package; its shape differs from file to file
Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_DROPPED = re.compile(r"(?is)<(script|style|nav|head|svg|button|form)\b.*?</\1>|<!--.*?-->")
_BLOCK = re.compile(r"(?i)</?(p|div|tr|table|ul|ol|dl|dd|pre|section|h[1-6]|br|hr|blockquote)\b[^>]*>")
_ITEM = re.compile(r"(?i)<(li|dt)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
_BLANK = re.compile(r"[ \t]*\n(\s*\n)+")
_EMPTY_ITEM = re.compile(r"(?m)^ ?-\s*\n+(?=\s*-|\s*\n|\Z)")
_SPACES = re.compile(r"[ \t\u00a0]+")

_MIN_CHARS = 120
_MAX_CHARS = 60_000


def html_to_text(page: str) -> str:
    """Plain text of an HTML page: tags dropped, blocks on lines of their own, list items dashed."""
    page = _DROPPED.sub("", page)
    page = _BLOCK.sub("\n", _ITEM.sub("\n- ", page))
    page = html.unescape(_TAG.sub("", page))
    page = _BLANK.sub("\n\n", _SPACES.sub(" ", page))
    return _EMPTY_ITEM.sub("", page).strip()


def documents(name: str, root: Path) -> Iterator[str]:
    """The documents of one source in a fixed order: exact repeats, very short ones and tails dropped."""
    seen: set[bytes] = set()
    for document in READERS[name](root):
        text = document.strip()[:_MAX_CHARS]
        digest = hashlib.sha256(text.encode()).digest()
        if len(text) >= _MIN_CHARS and digest not in seen:
            seen.add(digest)
            yield text


def _files(root: Path, *patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})


def _read(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="replace")


def _load(path: Path) -> dict[str, Json]:
    loaded: dict[str, Json] = json.loads(_read(path))
    return loaded


def _dump(value: Json) -> str:
    """JSON text, compact or indented by a hash of the content, so that both forms are seen."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if hashlib.sha256(compact.encode()).digest()[0] % 2:
        return compact
    return json.dumps(value, ensure_ascii=False, indent=2)


def _read_pages(root: Path, *patterns: str) -> Iterator[str]:
    return (html_to_text(_read(path)) for path in _files(root, *patterns))


def _read_python(root: Path) -> Iterator[str]:
    return (_read(path) for path in _files(root, "usr/share/doc/python3.11/html/_sources/**/*.rst.txt"))


def _read_nodejs(root: Path) -> Iterator[str]:
    for path in _files(root, "usr/share/doc/nodejs/api/*.md.gz"):
        # one document a chapter, without the link definitions at the end and the change lists
        text = re.sub(r"(?s)<!--.*?-->\n*", "", _read(path))
        text = re.sub(r"(?m)^\[[^\]]*\]: \S+\n?", "", text)
        yield from re.split(r"(?m)^(?=## )", text)


def _read_postgresql(root: Path) -> Iterator[str]:
    return _read_pages(root, "usr/share/doc/postgresql-doc-15/html/*.html")


def _read_erlang(root: Path) -> Iterator[str]:
    return _read_pages(root, "usr/share/doc/erlang-doc/**/doc/html/*.html")


def _read_rust(root: Path) -> Iterator[str]:
    base = "usr/share/doc/rust-doc/html"
    books = [f"{base}/{book}/**/*.html" for book in ("book", "reference", "nomicon")]
    library = [f"{base}/std/**/{kind}.*.html" for kind in ("struct", "trait", "enum", "macro", "keyword")]
    yield from _read_pages(root, *books)
    # a library page is its description, then long lists of implementations that are alike everywhere
    yield from (page[:8_000] for page in _read_pages(root, *library))


def _read_scap(root: Path) -> Iterator[str]:
    for path in _files(root, "usr/share/xml/scap/ssg/content/ssg-debian11-xccdf.xml"):
        for rule in re.findall(r"(?s)<xccdf-1.2:Rule\b.*?</xccdf-1.2:Rule>", _read(path)):
            kept = re.findall(r"(?s)<xccdf-1.2:(?:title|description|rationale)\b.*?</xccdf-1.2:", rule)
            yield html_to_text("<p>".join(part.removesuffix("</xccdf-1.2:") for part in kept))


def _read_botocore(root: Path) -> Iterator[str]:
    for path in _files(root, "botocore/data/*/*/service-2.json.gz"):
        service = _load(path)
        shapes = service.get("shapes")
        operations = service.get("operations")
        assert isinstance(shapes, dict)
        assert isinstance(operations, dict)
        prose = [_prose(service), *(_prose(operation) for operation in operations.values())]
        yield "\n\n".join(part for part in prose if part)[:40_000]
        for name, shape in list(shapes.items())[:60]:
            yield _dump({"name": name, "shape": shape})


def _prose(described: Json) -> str:
    text = described.get("documentation") if isinstance(described, dict) else None
    return html_to_text(text) if isinstance(text, str) else ""


def _read_google(root: Path) -> Iterator[str]:
    for path in _files(root, "googleapiclient/discovery_cache/documents/*.json"):
        schemas = _load(path).get("schemas")
        if isinstance(schemas, dict):
            for schema in list(schemas.values())[:60]:
                yield _dump(schema)


def _read_octokit(root: Path) -> Iterator[str]:
    for path in _files(root, "package/api.github.com/index.json"):
        events: list[dict[str, Json]] = json.loads(_read(path))
        for event in events:
            examples = event["examples"]
            assert isinstance(examples, list)
            for example in examples:
                yield _dump(example)


def _read_prowler(root: Path) -> Iterator[str]:
    for path in _files(root, "prowler/providers/**/*.metadata.json"):
        check = _load(path)
        yield _dump(
            {
                key: value
                for key, value in check.items()
                if value and key not in ("AdditionalURLs", "RelatedUrl")
            }
        )
        yield check_as_prose(check)


def check_as_prose(check: dict[str, Json]) -> str:
    """A cloud check as Markdown: title, description, risk, recommendation."""
    remediation = check.get("Remediation")
    advice = remediation.get("Recommendation") if isinstance(remediation, dict) else None
    text = advice.get("Text") if isinstance(advice, dict) else None
    return (
        f"# {check.get('CheckTitle')}\n\n{check.get('Description')}\n\n"
        f"## Risk\n\n{check.get('Risk')}\n\n## Recommendation\n\n{text}"
    )


_CLUSTERS = (
    "backdoor",
    "banker",
    "botnet",
    "exploit-kit",
    "ransomware",
    "rat",
    "stealer",
    "threat-actor",
    "tool",
)


def _read_misp(root: Path) -> Iterator[str]:
    for cluster in _CLUSTERS:
        for path in _files(root, f"pymispgalaxies/data/misp-galaxy/clusters/{cluster}.json"):
            values = _load(path)["values"]
            assert isinstance(values, list)
            for value in values:
                assert isinstance(value, dict)
                if value.get("description"):
                    yield f"{value['value']} ({cluster.replace('-', ' ')}): {value['description']}"


READERS: dict[str, Callable[[Path], Iterable[str]]] = {
    "python": _read_python,
    "nodejs": _read_nodejs,
    "postgresql": _read_postgresql,
    "erlang": _read_erlang,
    "rust": _read_rust,
    "scap": _read_scap,
    "botocore": _read_botocore,
    "google": _read_google,
    "octokit": _read_octokit,
    "prowler": _read_prowler,
    "misp": _read_misp,
}
