"""Commands that run a server or a gateway, configure it and watch it."""
