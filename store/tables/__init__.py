"""Small files with the state of the rest: checkpoint, days, ledger, names, identity."""
