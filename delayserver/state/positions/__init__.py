"""How far each part has come: marks, what waits between them, and the state of a start."""
