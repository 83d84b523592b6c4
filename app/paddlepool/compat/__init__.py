"""Compatible APIs: formats of other servers, answered by this server's tasks."""
