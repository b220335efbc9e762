"""What changes the state of the broker: arrivals, pulls, acks, redeliveries, retention."""
