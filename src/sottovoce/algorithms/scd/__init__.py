"""`scd`, `scd-sequential`, `scd-primal`: stochastic dual coordinate descent."""
