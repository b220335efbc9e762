"""The operations that change the broker's state: arrivals, pulls, acks, redeliveries, retention."""
