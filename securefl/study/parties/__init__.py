"""The parties of a deployment, each with a folder of its own, made from one study.

plan_file   what a party agreed to: its part, the study's arm and seed, its terms, the plan, the roster
keys        its lasting keys, and their rotation
folder      its files: made from a study, and opened
pinning     the roster that it agreed to, and new keys
made        the study's algorithm and records as this party has them, and the party that follows
asking      the server's run, over whatever reaches the parties
serving     its process, behind its socket
status      what its owner may see of it
"""

from __future__ import annotations
