"""The privacy core: guarantee, queries, mechanisms, accounting, ledger and the gate."""
