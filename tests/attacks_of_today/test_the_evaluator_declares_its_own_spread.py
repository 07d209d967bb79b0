"""With a declared baseline the bound on the spread is the evaluator's own word, and so is the anchor.

`encrypt --declared` takes all options from the evaluator's file and refuses flags beside it, so a client
can state no bound of its own; `reveal` takes them from the file of scores, which the evaluator signed.
Neither says the number. An evaluator that declares `spread = 1e6`, and scales of 1e9 for all elements but
one, has that one mean read.

i60.1: "clients and key holder check it, so that no legal query is nearly one entry". threat-model,
"Matching between files": "then nobody has one entry of a profile read in place of a score"; the table: "a
spread of weights above `--spread`: the key holder refuses the file".
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import securefl
from securefl.commands.main import cli
from securefl.core.errors import SecureFLError
from securefl.matching import Anchor, Bounds, Options, document

LENGTH, VICTIM, FILES = 84, 3, 40


def declared(spread: float = 1e6) -> tuple[Options, securefl.Profile]:
    """Options of a lying evaluator, and its baseline, of which one weight alone counts."""
    scale = np.full(LENGTH, 1e9)
    scale[VICTIM] = 1.0
    bounds = Bounds(weight=4, spread=spread)
    high = bounds.variance_high
    mean, variance = np.zeros(LENGTH), np.full(LENGTH, high) * scale**2
    mean[VICTIM] = -0.9 * bounds.weight_norm(LENGTH) * high
    return Options(bounds=bounds, anchor=Anchor(np.zeros(LENGTH), scale)), securefl.Profile(mean, variance)


def test_a_declared_baseline_reads_no_single_mean() -> None:
    holder, evaluator = securefl.KeyHolder.generate(parameters="pads"), securefl.Evaluator.generate()
    options, baseline = declared()
    rng, means, sealed = np.random.default_rng(1), [], []
    try:
        declaration = evaluator.declare(holder.public, baseline, options=options)
        own = declaration.checked(holder.public, evaluator.public)  # as a client does
        for k in range(FILES):
            profile = securefl.Profile(rng.normal(size=LENGTH), np.exp(rng.normal(size=LENGTH)), 50)
            means.append(profile.mean[VICTIM])
            sealed.append(profile.encrypt(holder.public, evaluator.public, label=f"p{k}", options=own))
        scores = evaluator.match(holder.public, baseline, sealed)
        found = holder.reveal(scores, evaluator.public).scores
    except SecureFLError:
        return
    told = np.stack([[found[f"p{k}"] for k in range(FILES)], np.ones(FILES)], axis=1)
    left = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0] - np.array(means)
    share = float(np.std(left) / np.std(means))
    assert share > 0.05, f"{100 * share:.3g} % of the mean's deviation is left open"


def test_a_client_is_told_what_it_agrees_to(tmp_path: Path) -> None:
    """What `encrypt --declared` prints names neither the spread nor the anchor of the evaluator's file."""
    for role, out in (("key-holder", "K"), ("evaluator", "V")):
        made = CliRunner().invoke(cli, ["keygen", "--role", role, "--out", str(tmp_path / out)])
        assert made.exit_code == 0, made.output
    public = securefl.matching.PublicKeys.from_document(
        document.read(tmp_path / "K/public.key", "public-key")
    )
    key = document.read(tmp_path / "V/evaluator.key", "evaluator-key")
    evaluator = securefl.Evaluator.from_document(key)
    options, baseline = declared()
    told = evaluator.declare(public, baseline, options=options)
    document.write(tmp_path / "declared.json", told.to_document())
    (tmp_path / "p.json").write_text(json.dumps({"mean": [0.5] * LENGTH, "variance": [1.0] * LENGTH}))
    words = ["--public", "K/public.key", "--evaluator", "V/evaluator.pub", "--profile", "p.json"]
    paths = [str(tmp_path / word) if not word.startswith("--") else word for word in words]
    done = CliRunner().invoke(
        cli, ["encrypt", *paths, "--declared", str(tmp_path / "declared.json"), "-o", str(tmp_path / "p.enc")]
    )
    assert done.exit_code != 0 or "spread" in done.output, done.output
