"""Access tokens: how they are made, and what becomes of a table of them. For the server, and for tools beside one."""
