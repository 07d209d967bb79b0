"""Flower's own FedAvg on masked sums, as a Flower app."""
