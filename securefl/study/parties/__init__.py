"""The folders and processes of a deployment's parties. Each party has its own folder, made from one study.

`plan_file`   the file `party.toml`: name, arm, seed, ledger terms, plan and pinned roster
`keys`        a party's long-term keys, and their rotation
`folder`      creates a party's folder, gives it another plan, and opens it
`pinning`     pins the roster that a party agreed to, and replaces its keys
`party_setup` builds the study's algorithm, plan and records for one party, and the party itself
`asking`      runs the study on the server, over any transport that reaches the parties
`serving`     the process of a client or key holder, which answers requests on a socket
`status`      a summary of one party's folder for its owner
"""

from __future__ import annotations
