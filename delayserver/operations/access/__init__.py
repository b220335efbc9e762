"""What one client may do: its rights, its limits, and the tokens behind them."""
