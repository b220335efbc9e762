"""The project's own broker: where delivered messages wait for their consumers.

The core (`broker.Broker`) is synchronous and takes the time as an argument; `commit` and `pulls` are
the parts that wait.
"""
