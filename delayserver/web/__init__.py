"""The HTTP gateway: JSON over HTTP for a server, in a process of its own. A client of the server's protocol."""
