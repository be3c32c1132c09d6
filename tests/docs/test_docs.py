"""The pages name modules, files, commands and make targets that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import click
import pytest

from pulsetrain.cli import pulsetrain
from pulsetrain.hub.status import JobStatus
from tests.repository import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "pulsetrain"
TOP_FOLDERS = {"benchmarks", "deploy", "docs", "examples", "pulsetrain", "tests", ".ci"}
PACKAGE_FOLDERS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def quoted_words(text: str) -> Iterator[str]:
    """Yield every word inside backticks, without the brackets and commas around it."""
    for quoted in re.findall(r"`([^`\n]+)`", without_code_blocks(text)):
        for word in quoted.split():
            yield word.strip("[](),.:;\"'")


def is_repository_path(word: str) -> bool:
    """Whether the word names a file or folder of this repository by its place in it."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", word) or "/" not in word:
        return False
    return word.partition("/")[0] in TOP_FOLDERS | PACKAGE_FOLDERS


def path_exists(word: str) -> bool:
    """Whether a file, a folder or a module of that name exists, from the root or from the package."""
    name = word.rstrip("/")
    return any(path.exists() for base in (ROOT, PACKAGE) for path in (base / name, base / f"{name}.py"))


def dotted_name_exists(word: str) -> bool:
    """Whether ``pulsetrain.a.b`` is a module, or a name that stands in the source of one."""
    folder, *names = ROOT, *word.removesuffix("()").split(".")
    for place, name in enumerate(names):
        if (folder / name).is_dir():
            folder = folder / name
            continue
        module = folder / f"{name}.py"
        rest = names[place + 1 :] if module.exists() else names[place:]
        source = (module if module.exists() else folder / "__init__.py").read_text()
        return all(re.search(rf"\b{re.escape(part)}\b", source) for part in rest[:1])
    return True


@pages
def test_paths_and_modules_exist(page):
    text = page.read_text()
    paths = {w for w in quoted_words(text) if is_repository_path(w) and "/a/" not in w}  # a/b.py: any module
    missing = sorted(w for w in paths if not path_exists(w))
    dotted = {w for w in quoted_words(text) if re.fullmatch(r"pulsetrain(\.\w+)+(\(\))?", w)}
    records = re.compile(r"pulsetrain\.(yaml|rules|spans|steps)$")  # files, and topics of Kafka
    missing += sorted(w for w in dotted if not records.search(w) and not dotted_name_exists(w))
    assert not missing


def test_a_path_or_module_that_does_not_exist_is_seen():
    text = "`stream/spool/` `stream/nosuch.py` `DATA/nodes` `pulsetrain.init()` `pulsetrain.nosuch` n/a"
    words = list(quoted_words(text))
    assert [w for w in words if is_repository_path(w)] == ["stream/spool/", "stream/nosuch.py"]
    assert [path_exists(w) for w in ("stream/spool/", "stream/nosuch.py", "deploy/compose.yaml")] == [
        True, False, True,
    ]  # fmt: skip
    assert [dotted_name_exists(w) for w in ("pulsetrain.init()", "pulsetrain.nosuch")] == [True, False]


@pages
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#\s]+)", without_code_blocks(page.read_text()))
    local = [t for t in targets if not re.match(r"\w+:", t)]
    assert not [t for t in local if not (page.parent / t).exists()]


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading.

    >>> slug("[notify.NAME]"), slug("Which hub")
    ('notifyname', 'which-hub')
    """
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@pages
def test_links_lead_to_headings(page):
    wrong = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", without_code_blocks(page.read_text())):
        other = page.parent / target if target else page
        if not re.match(r"\w+:", target) and other.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", other.read_text(), flags=re.M)
            wrong += [] if anchor in map(slug, headings) else [f"{target}#{anchor}"]
    assert not wrong


def command_lines(text: str) -> Iterator[str]:
    """Yield the shell commands of code blocks, fenced or indented, with continued lines joined."""
    fenced = "\n".join(re.findall(r"^```(?:sh|bash|console|)\n(.*?)^```", text, flags=re.S | re.M))
    indented = "\n".join(re.findall(r"^ {4}(.*)$", without_code_blocks(text), flags=re.M))
    for line in re.sub(r"\\\n\s*", " ", f"{fenced}\n{indented}").splitlines():
        yield line.strip().removeprefix("$ ")


def pulsetrain_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command line that calls pulsetrain, a pipe before it left out."""
    for line in command_lines(text):
        line = line.rpartition(" | ")[2]
        if re.match(r"pulsetrain( |$)", line) and not line.startswith("pulsetrain:"):
            yield shlex.split(line, comments=True)[1:]


def unknown_flag(words: list[str]) -> str:
    """The first word that the command line does not know, "" for none. A script's own flags are its own."""
    command: click.Command = pulsetrain
    words = list(words)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"-h", "--help", "--version"}
    takes_script = any(parameter.name == "script" for parameter in command.params)
    for word in (w.strip("[]()") for w in words):
        if word == "--" or (takes_script and word.endswith(".py")):
            return ""
        if re.match(r"--?[a-z]", word) and word.partition("=")[0].replace("_", "-") not in known:
            return word
    return ""


@pages
def test_commands_parse(page):
    wrong = [(words, unknown_flag(words)) for words in pulsetrain_commands(page.read_text())]
    assert not [f"pulsetrain {' '.join(words)}: {flag}" for words, flag in wrong if flag]


def test_a_flag_or_command_that_does_not_exist_is_seen():
    text = "    pulsetrain status --bogus\n    dmesg | pulsetrain nosuch\n    pulsetrain run train.py --own\n"
    assert [unknown_flag(words) for words in pulsetrain_commands(text)] == ["--bogus", "nosuch", ""]


def options(command: click.Command) -> Iterator[click.Option]:
    """Yield the options that the help of a command, or of one below it, shows."""
    yield from (each for each in command.params if isinstance(each, click.Option) and not each.hidden)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from options(each)


@pytest.mark.parametrize("name", sorted(pulsetrain.commands))
def test_every_option_of_a_command_is_on_its_page(name):
    """Options of `agent` are those of `run`, and many commands share those that say which hub is meant."""
    folder = ROOT / "docs/commands"
    asked = (name, "README", *(["run"] if name == "agent" else []))
    said = "".join((folder / f"{page}.md").read_text() for page in asked)
    known = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said)}
    assert not [option.opts for option in options(pulsetrain.commands[name]) if known.isdisjoint(option.opts)]


@pages
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = re.findall(r"(?:^ {4}|`)make ([\w-]+)", page.read_text(), flags=re.M)
    assert set(named) <= targets


def test_every_page_of_docs_is_linked():
    """A reader who starts at the README finds every page."""
    linked: set[Path] = set()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not re.match(r"\w+:", target):
                linked.add((page.parent / target).resolve())
    folders = {path for path in linked if path.is_dir()}
    pages = {page for page in PAGES if page.parent != ROOT and page.parent not in folders}
    assert not {str(p.relative_to(ROOT)) for p in pages - linked}


def test_the_page_of_status_lists_what_a_job_has_and_all_its_states():
    page = (ROOT / "docs/commands/status.md").read_text()
    missing = [key for key in get_type_hints(JobStatus) if f'"{key}"' not in page]
    summary = (ROOT / "pulsetrain/hub/summary.py").read_text()
    states = set(re.findall(r'return "([a-z_]+)", ', summary)) | {"slow", "hung", "warning"}
    assert (missing, sorted(state for state in states if f"`{state}`" not in page)) == ([], [])
