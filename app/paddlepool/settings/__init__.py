"""Settings of the server. Tasks declare their own."""
