"""The server process and its connections."""
