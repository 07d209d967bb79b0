"""Mechanisms: what is clipped, how much noise is added, and what epsilon that gives.

clipping     non-finite records are rejected, then norms are bounded, on an integer grid
noise        randomness for privacy, from the operating system
gaussian     the rounded and the discrete Gaussian on integers, with their events
calibration  how much noise an epsilon needs, exactly, by the FedLog paper, by RDP and by PLD
moments      a profile (means, variances, count) and a loss as one noised release each
"""
