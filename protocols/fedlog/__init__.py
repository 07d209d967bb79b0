"""FedLog: a Bayesian head from one small sufficient statistic per client (see `head`)."""
