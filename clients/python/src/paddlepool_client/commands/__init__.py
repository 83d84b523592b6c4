"""Commands that ask a server; they need the extra `commands`."""
