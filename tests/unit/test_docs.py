"""What the documents say is true: links lead somewhere, the example loads, the verbs exist."""

import re
from pathlib import Path

import pytest

from icestream.cli.main import cli
from icestream.config.load import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    for link in links:
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_exist(page):
    verbs = re.findall(r"(?:`|bin/)icestream ([a-z]+)", page.read_text())
    assert set(verbs) <= set(cli.commands)


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        assert set(re.findall(r"(?:^ +|`)make ([a-z-]+)", page.read_text(), re.M)) <= targets


def test_the_pipelines_of_the_readme_are_valid(tmp_path):
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    file = tmp_path / "icestream.yml"
    kinds = []
    for text in texts:
        file.write_text(text)
        kinds.append(load(file).pipeline.source.type)
        assert len(text.splitlines()) <= 22
    assert kinds == ["files", "kafka", "kafka"]


def test_no_page_names_a_module_that_is_gone():
    for page in PAGES:
        for name in re.findall(r"`([a-z_/]+\.py)`", page.read_text()):
            places = [ROOT / name, *(ROOT / "src").rglob(Path(name).name)]
            assert any(place.exists() for place in places), f"{page.name} names {name}"
