"""Other servers and nodes: deliveries from them, their permission, the route to them."""
