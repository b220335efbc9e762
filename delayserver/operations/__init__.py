"""The operations behind the requests.

They know no connection and no frame, so another front can use them. A continuation is an argument of the call: the
answer to a `send`, called in the step of its sync, or the taker of a pull. Other such arguments are `Outlet` (how
much may be handed out), `Broadcasts` (the places of a consumer), `Work` (slices of a long request) and `Peer` (the
other end of the connection).
"""
