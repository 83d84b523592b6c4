"""Commands that call a server; they need the extra `commands`."""
