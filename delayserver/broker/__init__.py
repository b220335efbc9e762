"""The project's own broker: where delivered messages wait for their consumers.

The core (`Broker`) is synchronous and takes the time as an argument. Only `service/commit.py`, `service/pulls.py` and
`service/local_broker.py` wait.
"""
