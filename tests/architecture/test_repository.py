"""Files of the repository that no program reads: each says what the code and the packages say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from securefl import __version__

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = {re.split(r"[^\w.-]", line)[0] for line in PROJECT["dependencies"]}


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version() -> None:
    said = read("CITATION.cff")
    assert (said["cff-version"], said["version"], said["license"]) == (
        "1.2.0",
        __version__,
        PROJECT["license"],
    )
    assert all(said[key] for key in ("message", "title", "authors"))


def test_hosted_checks_run_the_same_script_on_each_python() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == supported
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == ".ci/run"
    # A tag of an action can be moved to other code; a commit cannot.
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in job["steps"] if "uses" in step)


def test_hooks_and_templates_name_what_is_there() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    check = re.search(r"^check: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert check
    assert {hook["entry"].split("/")[-1].split()[0] for hook in local["hooks"]} <= {
        *re.findall(r"\w+", check[1])
    }
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= {*form}, path
        assert all(field["attributes"]["label"] for field in form["body"]), path


def test_security_tells_of_every_package_that_a_party_installs() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.M)
    assert len(rows) == len({*rows})
    assert {*rows} == DIRECT
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (ROOT / link).exists(), link


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_a_party_installs_is_what_was_tested_each_file_by_its_hash() -> None:
    text = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M)
    assert len(entries) == len(re.findall(r"^\S", text, re.M)), "`make lock` writes it"
    tested = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    tested = {plain(name): version for name, version in tested.items()}
    assert {name: tested[plain(name)] for name, _, _ in entries} == {
        name: version.removesuffix("+cpu") for name, version, _ in entries
    }
    assert {plain(name) for name in DIRECT} <= {plain(name) for name, _, _ in entries}
