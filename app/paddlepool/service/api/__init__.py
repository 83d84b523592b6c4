"""The HTTP API: routes, middleware, and the table that maps errors to status codes."""
