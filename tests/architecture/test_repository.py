"""Files of the repository that no program reads: each says what the code and the packages say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from bill import state
from release import write_sums

from securefl import __version__
from securefl.commands.party import serve

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
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


def test_one_system_is_supported_and_said() -> None:
    systems = [one for one in PROJECT["classifiers"] if one.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert re.search(
        r"^Python 3\.11 to 3\.13, Linux, x86_64\.", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    deployment = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\w+), supported \|", deployment, re.M) == ["Linux"]


def test_hosted_checks_run_the_same_script_on_each_python() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == supported
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == ".ci/run"
    # A tag of an action can be moved to other code; a commit cannot.
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in job["steps"] if "uses" in step)


def test_a_pull_request_cannot_reach_more_than_its_own_run() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    said = yaml.safe_load(text)  # YAML 1.1 reads `on` as true
    assert {*said[True]} == {"push", "pull_request"}
    assert said["permissions"] == {"contents": "read"}
    (job,) = said["jobs"].values()
    assert "permissions" not in job
    assert not any(step["with"]["persist-credentials"] for step in job["steps"] if "uses" in step)
    assert {*re.findall(r"\${{ *([\w.]+)", text)} == {"matrix.python"}, "words of others would be commands"


def test_hosted_checks_set_what_the_script_reads() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "${ON:-" in script
    assert job["env"]["ON"] == "${{ matrix.python }}"
    targets = re.findall(r"\bmake ([\w-]+)", script)
    assert {*targets} <= {*re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)}


def test_no_program_is_committed() -> None:
    said = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    if not said:
        pytest.skip("no repository of git")
    files = [path for path in map(ROOT.joinpath, said.decode().split("\0")[:-1]) if path.is_file()]
    programs = (b"\x7fELF", b"MZ", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"!<arch>", b"\0asm", b"PK\3\4")
    assert [path for path in files if path.read_bytes()[:8].startswith(programs)] == []
    assert [path for path in files if path.suffix in (".pyc", ".so", ".a", ".jar", ".whl")] == []


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
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", text, re.M)
    assert [name for name, cells in rows if not all(map(str.strip, cells.split("|")))] == []
    names = [name for name, _ in rows]
    assert len(names) == len({*names})
    assert {*names} == DIRECT | {"cffi", "flwr", "grpcio", "httpx", "uvicorn"}
    files = [*(ROOT / "tests").rglob("test_*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", text):
        assert name in {path.name for path in files}, name
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("extra", ["", "flower"])
def test_what_a_party_installs_is_what_was_tested_each_file_by_its_hash(extra: str) -> None:
    lock = DEPLOY / f"requirements{extra and '-'}{extra}.txt"
    text = lock.read_text(encoding="utf-8")
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
    more = {re.split(r"[^\w.-]", line)[0] for line in PROJECT["optional-dependencies"].get(extra, ())}
    assert {plain(name) for name in DIRECT | more} <= {plain(name) for name, _, _ in entries}


def bill(path: Path, **licences: object) -> Path:
    """A bill of packages with these licences, beside one that declares none."""
    found = {"dp-accounting": None} | {name.replace("_", "-"): own for name, own in licences.items()}
    components = [{"name": name} | ({"licenses": own} if own else {}) for name, own in found.items()]
    said = {"metadata": {"component": {"name": "securefl"}}, "components": components}
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def test_a_bill_has_the_version_and_a_licence_of_each_package_declared_or_concluded(tmp_path: Path) -> None:
    declared = [{"license": {"acknowledgement": "declared", "id": "MIT"}}]
    path = bill(tmp_path / "bill.json", attrs=declared)
    state(path)
    said = json.loads(path.read_text(encoding="utf-8"))
    first, second = said["components"]
    assert said["metadata"]["component"] == {"name": "securefl", "version": __version__}
    assert second["licenses"] == declared
    assert first["licenses"] == [{"acknowledgement": "concluded", "expression": "Apache-2.0"}]
    for wrong in ({"attrs": None}, {"dp_accounting": declared}):
        with pytest.raises(SystemExit, match=next(iter(wrong)).replace("_", "-")):
            state(bill(tmp_path / "bill.json", **wrong))


@pytest.mark.parametrize("licence", [{}, {"name": "License :: OSI Approved :: BSD License"}])
def test_a_name_of_several_licences_is_none(licence: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="attrs"):
        state(bill(tmp_path / "bill.json", attrs=[{"license": licence}]))


def test_each_of_two_components_of_one_name_has_a_licence(tmp_path: Path) -> None:
    path = bill(tmp_path / "bill.json")
    said = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(said | {"components": said["components"] * 2}))
    state(path)
    found = json.loads(path.read_text(encoding="utf-8"))["components"]
    assert [bool(one["licenses"]) for one in found] == [True, True]


def test_the_sums_of_a_release_are_of_every_file_beside_them(tmp_path: Path) -> None:
    for name in ("securefl.whl", "Containerfile", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert lines == [
        f"{sha256(name.encode()).hexdigest()}  {name}" for name in ("Containerfile", "securefl.whl")
    ]


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_what_is_no_bill_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "bill.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit, match=r"bill\.json, got .*make bill"):
        state(path)


def unit(name: str) -> dict[str, list[str]]:
    """The keys of a unit of systemd, each with its values."""
    lines = (DEPLOY / f"securefl-{name}.service").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("=", 1) for line in lines if re.match(r"\w+=", line)]
    return {key: [value for other, value in pairs if other == key] for key, _ in pairs}


@pytest.mark.parametrize("name", ["party", "relay"])
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if not (analyze := shutil.which("systemd-analyze")):
        pytest.skip("no systemd-analyze")
    text = (DEPLOY / f"securefl-{name}.service").read_text(encoding="utf-8")
    own = tmp_path / f"securefl-{name}.service"
    own.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), encoding="utf-8")
    words = [analyze, "verify", "--man=no", "--recursive-errors=no", str(own)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_party_of_a_unit_starts_apart_from_its_relay_and_without_a_network(tmp_path: Path) -> None:
    party, relay = unit("party"), unit("relay")
    command = shlex.split(party["ExecStart"][0])
    assert command[:3] == ["/opt/securefl/bin/securefl", "party", "serve"]
    with serve.make_context("serve", [str(tmp_path), *command[4:]]) as context:
        said = context.params
    # A folder of the party that the unit keeps read-only would stop it.
    assert party["ReadWritePaths"] == [command[3]]
    assert [*said["allow"]] == relay["User"]
    assert relay["User"] != party["User"]
    assert relay["SupplementaryGroups"] == party["Group"]
    assert (party["PrivateNetwork"], party["RestrictAddressFamilies"]) == (["yes"], ["AF_UNIX"])
    # Behind private users the kernel would tell the party nobody's number.
    assert not {"PrivateUsers", "DynamicUser"} & {*party, *relay}


def test_what_is_installed_by_hand_is_in_a_release_and_where_the_units_look() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    wheel = f"securefl-{__version__}-py3-none-any.whl"
    calls = re.findall(r"^(/\S+)/bin/pip install (.*)$", text, re.M)
    homes = {str(Path(unit(name)["ExecStart"][0].split()[0]).parents[1]) for name in ("party", "relay")}
    assert {home for home, _ in calls} == homes
    for _, rest in calls:
        assert re.search(rf"-r requirements\.txt$|(^| |/){re.escape(wheel)}$", rest), rest
    assert [rest.split()[-1] for _, rest in calls if "--require-hashes" in rest] == ["requirements.txt"]


def test_units_and_image_give_large_blocks_back_whole() -> None:
    setting = "MALLOC_MMAP_THRESHOLD_=262144"
    assert all(setting in unit(name)["Environment"][0].split() for name in ("party", "relay"))
    assert setting in (DEPLOY / "Containerfile").read_text(encoding="utf-8").split()


def test_uv_looks_for_a_package_in_all_indexes() -> None:
    """By default it stops at the first one that has any version of a package, such as torch's."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = [line for line in text.splitlines() if "--extra-index-url" in line]
    assert called
    assert all("--index-strategy unsafe-best-match" in line for line in called)


def test_a_relay_that_its_superlink_refuses_is_started_again_without_end() -> None:
    """By default systemd gives a unit up that starts five times within ten seconds."""
    (pause,) = unit("relay")["RestartSec"]
    assert float(pause.removesuffix("s")) > 10 / 5


def test_the_image_is_pinned_and_runs_as_no_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    steps = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", "")
    words = [step.split(maxsplit=1) for step in steps.splitlines()]
    said = {word: [rest for other, rest in words if other == word] for word, _ in words}
    assert all(re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image) for image in said["FROM"])
    assert not {"ADD", "EXPOSE"} & {*said}, "nothing is fetched without a hash, and no port is opened"
    installs = [one for run in said["RUN"] for one in run.split("&&") if "pip install" in one]
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    assert [int(part) > 0 for part in said["USER"][-1].split(":")] == [True, True]
    assert words.index(["USER", said["USER"][-1]]) > max(words.index(["RUN", run]) for run in said["RUN"])
    (lock,) = (rest for rest in said["ARG"] if rest.startswith("LOCK="))
    assert (DEPLOY / lock.removeprefix("LOCK=")).is_file()


def test_a_changed_pin_of_a_release_tool_is_installed(tmp_path: Path) -> None:
    made = tmp_path / ".installed"
    made.touch()
    for age, due in ((0, False), (-(10**9), True)):
        now = (ROOT / "Makefile").stat().st_mtime + 1 + age
        os.utime(made, (now, now))
        words = ["make", "-s", "-q", f"RELEASE={tmp_path}", str(made)]
        assert subprocess.run(words, cwd=ROOT, check=False).returncode == int(due)


def test_endurance_plays_both_carriers_and_fails_if_one_did(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/played\ncase "$*" in *"$RED"*) exit 1; esac\n')
    python.chmod(0o755)
    for name in (".installed", ".tested"):
        (tmp_path / name).touch()
    for red, code in (("neither", 0), ("--carrier sockets", 2), ("--carrier flower", 2)):
        (tmp_path / "played").unlink(missing_ok=True)
        words = ["make", "-s", f"VENV={tmp_path}", "endurance"]
        env = os.environ | {"RED": red}
        assert subprocess.run(words, cwd=ROOT, env=env, capture_output=True, check=False).returncode == code
        played = (tmp_path / "played").read_text(encoding="utf-8")
        assert re.findall("--rounds 2000 --carrier (.*)", played) == ["sockets", "flower"]
