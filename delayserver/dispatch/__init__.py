"""Due rows go to the nodes of broker groups, with retries, breakers and failover."""
