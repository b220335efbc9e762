"""The rights of a client: its roles, its limits, and the tokens behind them."""
